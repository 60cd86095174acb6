"""One module per command. Apart from the rest of ``cli``: here a module may be called ``list`` and hide nothing."""
