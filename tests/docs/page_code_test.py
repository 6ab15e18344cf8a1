# SPDX-License-Identifier: Apache-2.0
"""The C++ on our pages compiles without a warning, links and runs.

    page_code_test.py <compiler> <library>
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import ROOT, find_blocks, page_program

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
DEADLINE_S = 60


def run_page(page: Path, text: str, compiler: str, library: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "page.cpp")
        source.write_text(f'#line 1 "{page}"\n{text}')
        program = Path(folder, "page")
        build = [compiler, *FLAGS, str(source), "-o", str(program), library, "-pthread",
                 f"-Wl,-rpath,{Path(library).parent}"]
        for command in (build, [str(program)]):
            done = subprocess.run(command, cwd=folder, check=False, timeout=DEADLINE_S)
            if done.returncode != 0:
                print(f"{page.relative_to(ROOT)}: {command[0]} answered {done.returncode}")
                return False
    return True


def main() -> int:
    compiler, library = sys.argv[1:]
    failed = 0
    blocks = [block for block in find_blocks("cpp") if block.runs]
    for page, of_page in itertools.groupby(blocks, lambda block: block.page):
        failed += not run_page(page, page_program(list(of_page)), compiler, library)
    print(f"{len(blocks)} C++ blocks, {failed} pages failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
