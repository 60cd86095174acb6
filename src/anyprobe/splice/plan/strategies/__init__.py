"""Strategies: each a way of getting a site's hits into a patch, tried in one order.

In: a site and what is known around it. Out: a splice or the reason why it does not apply.
Must not write bytes: `codegen` does.
"""
