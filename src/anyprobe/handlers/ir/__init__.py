"""The intermediate language of handlers: structured statements over pure, total expressions.

In: what the front end builds. Out: values that passes and back ends walk.
Must not hold anything whose meaning depends on a machine.
"""
