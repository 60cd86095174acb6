"""Archives: results as files and documents, read again and compared.

In: snapshots. Out: files, and snapshots again. Must not look at a process.
"""
