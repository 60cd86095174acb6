"""Decoding, encoding and displacing x86-64 instructions. Knows no process and no file."""
