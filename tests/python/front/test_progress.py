# SPDX-License-Identifier: Apache-2.0
"""The line that says which region is being compiled."""

from __future__ import annotations

import io
import sys
import time
from types import ModuleType

import pytest

from anabranch._compile import progress
from anabranch._compile.progress import progress_line

pytestmark = [pytest.mark.oldest, pytest.mark.own]


class Handle:
    """In the place of IPython's: keeps what it showed."""

    def __init__(self):
        self.shown = made.append(self) or []

    def display(self, data, raw):
        self.shown.append(("new", data["text/plain"]))

    def update(self, data, raw):
        self.shown.append(("same", data["text/plain"]))


made: list[Handle] = []


@pytest.fixture
def at_once(monkeypatch):
    made.clear()
    monkeypatch.setattr(progress, "_AFTER_SECONDS", 0.0)


def notebook(monkeypatch, handle=Handle):
    display = ModuleType("IPython.display")
    display.DisplayHandle = handle
    for name, module in (("ipykernel", ModuleType("ipykernel")), ("IPython", ModuleType("IPython")),
                         ("IPython.display", display)):
        monkeypatch.setitem(sys.modules, name, module)


def compile_two(wanted=None):
    with progress_line(2, wanted) as step:
        for name in ("a", "b"):
            step(name)
            time.sleep(0.05)  # the line comes from another thread


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_notebook_has_the_line_in_one_place_of_its_cell(monkeypatch, at_once):
    notebook(monkeypatch)
    compile_two()
    (handle,) = made
    kinds, texts = zip(*handle.shown)
    assert kinds[0] == "new" and set(kinds[1:]) == {"same"}
    assert "anabranch: compiling region 2 of 2 (b)" in texts and texts[-1] == ""


def test_a_terminal_has_the_line_and_is_left_clean(monkeypatch, at_once):
    monkeypatch.setattr(sys, "stderr", Terminal())
    compile_two()
    said = sys.stderr.getvalue()
    assert "compiling region 2 of 2 (b)" in said and said.endswith("\r" + " " * 78 + "\r")


@pytest.mark.parametrize("wanted", [None, False])
def test_elsewhere_nothing_is_said(monkeypatch, at_once, wanted):
    monkeypatch.setattr(sys, "stderr", io.StringIO() if wanted is None else Terminal())
    compile_two(wanted)
    assert sys.stderr.getvalue() == ""


def test_a_notebook_that_is_gone_stops_nothing(monkeypatch, at_once):
    class Gone(Handle):
        def display(self, data, raw):
            raise RuntimeError("no kernel")

    notebook(monkeypatch, Gone)
    compile_two()
    assert made and not made[0].shown
