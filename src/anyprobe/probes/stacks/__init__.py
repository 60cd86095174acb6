"""Stacks and addresses by name: frames gone up in the controller, symbols, and where a fault ended the program.

In: registers and memory. Out: names and frames. Must not touch the target.
"""
