# SPDX-License-Identifier: Apache-2.0
"""Writes python/anabranch/_core/abi.py, which says in ctypes what bridge/anabranch_c.h says in C.

    python scripts/make_abi.py [--check]

--check writes nothing, and exits with 1 where the file is not what this would write. The header is
read by what it consists of: structures of scalars, pointers and small arrays, and prototypes, each
behind ANABRANCH_C. Anything else in it is refused, with its text.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER, ABI = ROOT / "bridge/anabranch_c.h", ROOT / "python/anabranch/_core/abi.py"
SCALARS = {"int32_t": "c_int32", "int64_t": "c_int64", "uint8_t": "c_uint8",
           "uint32_t": "c_uint32", "uint64_t": "c_uint64", "size_t": "c_size_t",
           "ptrdiff_t": "c_ssize_t", "double": "c_double", "int": "c_int", "void": "None"}
# In Python, where the other one is taken.
OTHER_NAMES = {"HostOptions": "HostOptionsFields", "Report": "ReportFields", "Step": "StepFields"}
COMMENT, STRUCTURE = re.compile(r"/\*.*?\*/", re.S), re.compile(
    r"typedef struct Anabranch(\w+) \{(.*?)\} Anabranch\1;", re.S)
PROTOTYPE = re.compile(r"ANABRANCH_C (.+?)\banabranch_(\w+)\((.*?)\);", re.S)
LEFT_ALONE = re.compile(r"extern \"C\" \{|\}|typedef struct Anabranch(\w+) Anabranch\1;")
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The C ABI of bridge/anabranch_c.h: its structures, and each function's result and arguments.

Made by scripts/make_abi.py, which a test runs. ``library`` loads the functions. Handles are void
pointers; arrays of numbers that are read may be bytes.
"""

from __future__ import annotations

import ctypes
from ctypes import (
'''


class Header:
    """What stands in the text of a header."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"^#.*$", "", COMMENT.sub("", text), flags=re.M)
        self.structures = STRUCTURE.findall(text)
        self._names = [name for name, _ in self.structures]
        self.prototypes = PROTOTYPE.findall(text)
        rest = map(str.strip, PROTOTYPE.sub("", STRUCTURE.sub("", text)).split("\n"))
        if left := [line for line in rest if line and not LEFT_ALONE.fullmatch(line)]:
            raise SystemExit(f"{HEADER.name}: not understood: {left[0]}")

    def type_of(self, declared: str, *, is_field: bool) -> str:
        """Of a declaration without its name: ``const char*``."""
        base = declared.replace("const", "").replace("*", "").strip()
        depth = declared.count("*")
        if depth == 0:
            return SCALARS.get(base) or self._structure(base)
        if base == "char":
            return "c_char_p" if depth == 1 else "POINTER(c_char_p)"
        is_read = declared.lstrip().startswith("const") or "* const" in declared
        if depth > 1 or base == "void":
            return "c_void_p" if depth == 1 or (is_read and not is_field) else "POINTER(c_void_p)"
        if base in SCALARS:
            return "c_void_p" if is_read and not is_field else f"POINTER({SCALARS[base]})"
        is_handle = base.removeprefix("Anabranch") not in self._names
        return "c_void_p" if is_handle else f"POINTER({self._structure(base)})"

    def _structure(self, base: str) -> str:
        name = base.removeprefix("Anabranch")
        if name not in self._names:
            raise SystemExit(f"{HEADER.name}: of no known type: {base}")
        return OTHER_NAMES.get(name, name)

    def fields_of(self, body: str) -> list[tuple[str, str]]:
        """(name, type)"""
        fields = []
        for declared in filter(None, map(str.strip, body.split(";"))):
            kind, name, count = re.fullmatch(r"(.+?)(\w+)(\[\d+\])?", declared, re.S).groups()
            of_one = self.type_of(kind.strip(), is_field=True)
            fields.append((name, f"{of_one} * {count[1:-1]}" if count else of_one))
        return fields

    def arguments_of(self, declared: str) -> list[str]:
        if declared.strip() == "void":
            return []
        unnamed = [re.sub(r"(?<=[\s*])\w+$", "", one.strip())
                   if re.search(r"[\s*]\w+$", one.strip()) and one.strip() not in SCALARS
                   else one for one in declared.split(",")]
        return [self.type_of(one.strip(), is_field=False) for one in unnamed]


def wrapped(head: str, items: list[str], tail: str) -> list[str]:
    """On lines of a hundred characters at most, which go on below the first item."""
    lines = textwrap.wrap(", ".join(items) + tail, 100 - len(head), break_long_words=False)
    return [head + lines[0], *(" " * len(head) + line for line in lines[1:])]


def written(header: Header) -> str:
    body: list[str] = []
    for name, fields in header.structures:
        body += ["", "", f"class {OTHER_NAMES.get(name, name)}(ctypes.Structure):",
                 f'    """Anabranch{name}."""', ""]
        items = [f'("{field}",\0{kind})' for field, kind in header.fields_of(fields)]
        body += [line.replace("\0", " ") for line in wrapped("    _fields_ = [", items, "]")]
    body += ["", "", "# Name -> result, arguments.", "SIGNATURES: dict[str, tuple[Any, ...]] = {"]
    for result, name, arguments in header.prototypes:
        kinds = [header.type_of(result.strip(), is_field=False), *header.arguments_of(arguments)]
        body += wrapped(f'    "{name}": (', kinds, ",)," if len(kinds) == 1 else "),")
    body.append("}")
    text = "\n".join(body) + "\n"
    used = sorted({*re.findall(r"\b(?:POINTER|c_\w+)\b", text)},
                  key=lambda name: [part.zfill(2) for part in re.split(r"(\d+)", name)])
    return HEAD + "".join(f"    {name},\n" for name in used) \
        + ")\nfrom typing import Any\n" + text


def main() -> None:
    text = written(Header(HEADER.read_text()))
    if "--check" in sys.argv[1:]:
        raise SystemExit(0 if ABI.read_text() == text else
                         f"{ABI.relative_to(ROOT)} is not what {HEADER.name} says: "
                         "run python scripts/make_abi.py")
    ABI.write_text(text)


if __name__ == "__main__":
    main()
