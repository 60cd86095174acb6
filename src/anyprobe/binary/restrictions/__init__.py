"""Code that must not be displaced, or that makes threads which are not like others.

In: `Text`. Out: ranges and findings.
Must not decide what follows from them: `splice` and `probes` do.
"""
