"""Words for numbers in messages."""


def times(count: int) -> str:
    """Return how often something has happened."""
    return "once" if count == 1 else f"{count} times"
