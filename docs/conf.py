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


def keep_property_docstrings_whole(app, what, name, object_, options, lines):
    """Napoleon takes what stands before a colon for a type: "ESS of each step: (T,)."."""
    if what == "property":
        lines[:] = [line.replace(": (", " (") for line in lines]


def setup(app):
    # Before napoleon, which has the default priority of 500.
    app.connect("autodoc-process-docstring", keep_property_docstrings_whole, priority=400)
