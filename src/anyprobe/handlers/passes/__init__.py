"""Passes over the intermediate language, one file each: a function from a handler to a handler."""
