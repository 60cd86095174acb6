"""Snapshots for the eye. A report sees an immutable snapshot and a console, never a process."""
