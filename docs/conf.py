"""How the documentation is built: `make docs`."""

import covey

project = "Covey"
author = "The Covey contributors"
project_copyright = "The Covey contributors, Apache-2.0"
version = release = covey.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
# The docstrings say what each parameter is, with its shape; the signature stays short.
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"Covey {version}"
# The same tree gives the same pages: no date of the build.
html_last_updated_fmt = None
