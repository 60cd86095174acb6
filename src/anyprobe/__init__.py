"""anyprobe."""
