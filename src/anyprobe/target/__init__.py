"""The live process: every system call on it goes through here."""
