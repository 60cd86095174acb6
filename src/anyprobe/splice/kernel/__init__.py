"""Splices in a kernel: what is planned where, and patches and writes as values for who may write there.

In: the kernel's code as the analysis sees it, and what is wanted. Out: patches at given addresses, with the writes that
lead to them. Must not touch a kernel.
"""
