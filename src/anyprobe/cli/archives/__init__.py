"""Archives on the command line: shown again, added up, compared.

In: names of files. Out: what the command that measured them would have shown. Must not touch a process.
"""
