# SPDX-License-Identifier: Apache-2.0
"""Sphinx makes a site of the pages, as they stand: `make docs`."""

import re

import anabranch

project = "Anabranch"
release = version = anabranch.__version__
copyright = "the authors of Anabranch"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["site", "pictures"]

html_theme = "furo"
html_title = f"Anabranch {release}"
html_show_sourcelink = False

# As GitHub makes them, which shows the same pages.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"

OUTSIDE = r"(?<!!)\[([^\]]+)\]\({}([^)]+)\)"


def without_links_to_the_tree(app, name, source):
    """What a page links to beside the pages is in the source tree and not on the site."""
    outside = OUTSIDE.format(re.escape("../" * (name.count("/") + 1)))
    source[0] = re.sub(outside, lambda link: f"`{link[2]}`" if link[1].strip("`") == link[2]
                       else f"{link[1]} (`{link[2]}`)", source[0])


def setup(app):
    app.connect("source-read", without_links_to_the_tree)
