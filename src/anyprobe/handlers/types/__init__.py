"""Types of handlers: annotations, layouts, debug information's types, conventions of calls.

In: annotations and debug information. Out: types with sizes, and where arguments are.
Must not generate code.
"""
