# SPDX-License-Identifier: Apache-2.0
"""The page: page.html with what is known written into it as JSON. The command's `show --html`
writes plans into the same file.

Threads: any. Failure: none.
"""

from __future__ import annotations

import functools
import html
import importlib.resources
import json
from typing import Any

_PLACE = "@ANABRANCH_DATA@"  # once in page.html
_NOTEBOOK_HEIGHT_PX = 640


def page_of(contents: dict[str, Any]) -> str:
    """One file that fetches nothing. No name of the user's can end the element that the data
    stands in."""
    data = json.dumps(contents, separators=(",", ":")).replace("<", "\\u003c")
    return _template().replace(_PLACE, data)


def frame_of(page: str) -> str:
    """The page in a notebook's cell, where its styles and its script touch nothing else."""
    return (f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}" title="Anabranch" '
            f'style="width: 100%; height: {_NOTEBOOK_HEIGHT_PX}px; border: 0"></iframe>')


@functools.cache
def _template() -> str:
    return (importlib.resources.files("anabranch._explain") / "page.html").read_text("utf-8")
