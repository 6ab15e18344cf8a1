# SPDX-License-Identifier: Apache-2.0
"""The pictures of the pages are those that their script draws from what was measured."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest
from pages import ROOT

PICTURES = ROOT / "docs/pictures"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    subprocess.run([sys.executable, PICTURES / "draw.py", folder], check=True)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_every_picture_is_the_one_that_its_script_draws(drawn):
    committed = {path.name: path.read_text() for path in PICTURES.glob("*.svg")}
    assert sorted(committed) == sorted(drawn)
    for name, picture in committed.items():
        assert picture == drawn[name], f"run docs/pictures/draw.py: {name} is of other figures"


def test_every_picture_has_a_title_and_colours_for_dark_pages(drawn):
    for name, picture in drawn.items():
        assert ElementTree.fromstring(picture)[0].tag.endswith("title"), name
        assert "prefers-color-scheme: dark" in picture, name
