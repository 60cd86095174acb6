"""What tools take: the length of names and the number of arguments."""

MOST_ARGUMENTS = 12
LONGEST_PROVIDER, LONGEST_NAME = 59, 63
"""What perf and DTrace take: perf puts ``sdt_`` before the provider's name, and both have 63 characters for a name."""
