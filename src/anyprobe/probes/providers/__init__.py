"""Where probes come from, other than the functions of a process."""
