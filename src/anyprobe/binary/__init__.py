"""What object files say about code: symbols, bounds, control flow, liveness. Knows no process."""
