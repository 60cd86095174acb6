"""Sphinx's settings for ``make docs``: the documents as they are, and the public API from its docstrings."""

project = "anyprobe"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
html_theme = "furo"
html_title = "anyprobe"
