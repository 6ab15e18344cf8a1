# SPDX-License-Identifier: Apache-2.0
"""Reads the pages: which code blocks they hold and what is to be done with each.

A block of C++ or Python runs as it stands; the blocks of a language on one page are one program,
read from top to bottom. A comment above a block says where that is different:

    <!-- block: examples/cpp/branches.cpp -->   a part of a file that is itself tested
    <!-- shown: reason -->                      cannot run, and why
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\s*$")
DIRECTIVE = re.compile(r"^<!-- (block|shown): (.+) -->$")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of the first line of the code, from 1
    language: str
    code: str
    directive: str = ""  # "block", "shown" or none
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """The file of a C++ block is built and run by its own test."""
        return not self.directive or (self.directive, self.language) == ("block", "python")


def find_pages() -> list[Path]:
    folders = ("bench", "bridge", "docs", "examples", "src", "tests", "tool")
    inner = (page for folder in folders for page in (ROOT / folder).rglob("*.md"))
    return sorted([*ROOT.glob("*.md"), *inner])


def find_blocks(*languages: str) -> list[Block]:
    return [block for page in find_pages() for block in read_blocks(page)
            if not languages or block.language in languages]


def read_blocks(page: Path) -> Iterator[Block]:
    directive, argument, start, language = "", "", 0, ""
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if start:
            if line.strip() == "```":
                code = "\n".join(lines[start - 1:number - 1]) + "\n"
                yield Block(page, start, language, code, directive, argument)
                directive, argument, start = "", "", 0
        elif fence := FENCE.match(line):
            start, language = number + 1, fence[1]
        elif found := DIRECTIVE.match(line):
            directive, argument = found[1], found[2]
        elif line.strip():
            directive, argument = "", ""


def page_program(blocks: list[Block]) -> str:
    """The blocks of one page as one text, each line at its own number."""
    text = ""
    for block in blocks:
        text += "\n" * (block.line - 1 - text.count("\n")) + block.code
    return text


def is_part_of(code: str, file: Path) -> bool:
    """The code stands in the file, line by line, at whatever indentation."""
    wanted = textwrap.dedent(code).strip().splitlines()
    lines = file.read_text().splitlines()
    for start in range(len(lines) - len(wanted) + 1):
        part = textwrap.dedent("\n".join(lines[start:start + len(wanted)])).splitlines()
        if [line.rstrip() for line in part] == [line.rstrip() for line in wanted]:
            return True
    return False
