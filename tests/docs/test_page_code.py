# SPDX-License-Identifier: Apache-2.0
"""The Python on our pages runs, a page from top to bottom, in a process and a folder of its own."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from pages import ROOT, find_blocks, page_program

DEADLINE_S = 280
PAGES = {
    str(page.relative_to(ROOT)): page_program(list(blocks))
    for page, blocks in itertools.groupby(
        (block for block in find_blocks("python") if block.runs), lambda block: block.page)
}


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path):
    program = tmp_path / "page.py"  # a file: torch reads the source of what it compiles
    program.write_text(PAGES[page])
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True,
                          text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, f"{page}, same line numbers:\n{done.stderr[-4000:]}"
