# SPDX-License-Identifier: Apache-2.0
"""Pages against the tree: layout.md and the folders, errors.md and the codes, blocks and files."""

from __future__ import annotations

import ast
import re
import sys
import unittest
from pathlib import Path

from pages import DIRECTIVE, ROOT, find_blocks, find_pages, is_part_of

sys.path.insert(0, str(ROOT / "tests/rooms"))
from check_rooms import CUDA_CHAIN, HOST_CHAIN, ROOMS

CODE = re.compile(r'^ANABRANCH_CODE\((\w+), (\d+), "(.+)"\)$', re.MULTILINE)
SECTION = re.compile(r"^## (E\d{4}) (\w+)$", re.MULTILINE)
STAGES = ("program", "plan", "record", "launch", "plan file", "torch", "configuration")
# Nobody's folders: made by a build, a run or a tool.
IGNORED = {"build", "dist", "out"}


def core_codes() -> list[tuple[str, str, str]]:
    """(E0101, kProgramInvalid, meaning), in the order of codes.inc."""
    text = (ROOT / "include/anabranch/codes.inc").read_text()
    return [(f"E{int(number):04}", name, meaning) for name, number, meaning in CODE.findall(text)]


def python_codes() -> list[tuple[str, str, str]]:
    """The table CODES of errors.py, read without importing it."""
    module = ast.parse((ROOT / "python/anabranch/errors.py").read_text())
    table = next(node.value for node in module.body
                 if isinstance(node, ast.AnnAssign) and node.target.id == "CODES")
    return [(f"E{code:04}", name, meaning)
            for code, (name, meaning) in ast.literal_eval(table).items()]


def error_sections() -> dict[str, tuple[str, str]]:
    """Code -> (name, text), in the order of the page."""
    parts = SECTION.split((ROOT / "docs/errors.md").read_text())[1:]
    return {code: (name, text) for code, name, text in zip(*[iter(parts)] * 3)}


class Errors(unittest.TestCase):
    def test_every_code_has_a_section_and_every_section_a_code_in_order(self):
        for codes in (core_codes(), python_codes()):
            self.assertEqual(codes, sorted(codes), "codes are not in order")
        codes = sorted((code, name) for code, name, _ in [*core_codes(), *python_codes()])
        self.assertEqual(len({code for code, _ in codes}), len(codes), "a number has two meanings")
        sections = [(code, name) for code, (name, _) in error_sections().items()]
        self.assertEqual(sections, codes)

    def test_a_section_says_stage_sample_meaning_and_what_to_try(self):
        meanings = {code: meaning for code, _, meaning in [*core_codes(), *python_codes()]}
        for code, (_, text) in error_sections().items():
            with self.subTest(code):
                stage = re.search(r"^\*\*Stage\*\* ([\w ]+)\.$", text, re.MULTILINE)
                self.assertIsNotNone(stage, "no line '**Stage** name.'")
                self.assertIn(stage[1], STAGES)
                sample = re.search(r"^```text\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
                self.assertIsNotNone(sample, "no sample message")
                self.assertIn(f"[{code}]", sample[1])
                self.assertIn(f"**Meaning** {meanings[code][0].upper()}{meanings[code][1:]}", text)
                self.assertRegex(text, r"(?m)^\*\*Try\*\* \S")

    def test_every_code_is_provoked_by_a_test(self):
        files = [*(ROOT / "src").rglob("*_test.cpp"), *(ROOT / "tool").rglob("*_test.cpp"),
                 *(ROOT / "bridge").rglob("*_test.cpp"), *(ROOT / "tests").rglob("*.cpp"),
                 *(ROOT / "tests/python").rglob("*.py")]
        text = "\n".join(file.read_text() for file in files)
        for code, name, _ in [*core_codes(), *python_codes()]:
            if "E0311" <= code < "E0400":
                continue  # by its example on the page, in test_refusal_codes.py
            with self.subTest(code):
                # The last alternative is a line of a table: the error's class and its code.
                number = int(code[1:])
                pattern = rf"StatusCode::{name}\b|\b{code}\b|code\W+{number}\b|Error, {number}\b"
                self.assertTrue(re.search(pattern, text), f"no test names {name} or {code}")


class Layout(unittest.TestCase):
    def setUp(self):
        self.page = (ROOT / "docs/layout.md").read_text()

    def test_the_rooms_of_the_page_are_the_folders_of_src(self):
        on_page = re.findall(r"^\| `src/([\w/]+)/` \|", self.page, re.MULTILINE)
        folders = {str(file.parent.relative_to(ROOT / "src"))
                   for file in (ROOT / "src").rglob("CMakeLists.txt")}
        self.assertEqual(set(on_page), folders)
        flow = [room.split("/")[0] for room in on_page]
        self.assertEqual(sorted(flow, key=list(ROOMS).index), flow, "not in the order of the data")

    def test_the_rooms_within_record_are_on_its_page_in_the_order_of_the_data(self):
        page = (ROOT / "src/record/README.md").read_text()
        on_page = re.findall(r"^\| `([\w/]+)/` \|", page, re.MULTILINE)
        self.assertEqual([f"record/{room}" for room in on_page], [*HOST_CHAIN, *CUDA_CHAIN])

    def test_the_folders_of_the_page_are_the_folders_of_the_tree(self):
        on_page = re.findall(r"^\| `([\w./]+)/` \|", self.page, re.MULTILINE)
        for folder in on_page:
            self.assertTrue((ROOT / folder).is_dir(), f"docs/layout.md names {folder}/")
        top = {path.name for path in ROOT.iterdir()
               if path.is_dir() and not path.name.startswith(".") and path.name not in IGNORED}
        self.assertEqual(top - {folder.split("/")[0] for folder in on_page}, set())

    def test_every_room_has_a_readme_that_says_what_it_promises(self):
        for file in (ROOT / "src").rglob("CMakeLists.txt"):
            readme = file.with_name("README.md")
            with self.subTest(str(readme.relative_to(ROOT))):
                self.assertTrue(readme.is_file())
                text = readme.read_text()
                for word in ("In", "Out", "Promised", "Refused"):
                    self.assertRegex(text, rf"(?m)^\*\*{word}\.?\*\*")


class Headers(unittest.TestCase):
    def test_the_page_of_headers_shows_all_that_are_public(self):
        page = (ROOT / "docs/api-cpp.md").read_text()
        shown = re.findall(r"^:::\{literalinclude\} \.\./include/anabranch/(.+)$", page,
                           re.MULTILINE)
        public = ROOT / "include/anabranch"
        self.assertEqual(sorted(shown), sorted(
            str(file.relative_to(public)) for file in public.rglob("*") if file.is_file()))


class Words(unittest.TestCase):
    """A page that grows has to say less elsewhere."""

    reference = {"errors.md", "file-formats.md", "api-cpp.md"}

    def test_all_pages_are_read_in_two_hours(self):
        words = 0
        for page in (*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md")):
            if page.name not in self.reference:
                text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
                # The table of options is what config.py says.
                words += len(re.sub(r"^\| `\w+` \|.*$", "", text, flags=re.MULTILINE).split())
        self.assertLess(words, 30_000)


class Reports(unittest.TestCase):
    """Forms for reports of users, as text: nothing that reads YAML is needed to test here."""

    forms = ROOT / ".github/ISSUE_TEMPLATE"

    def test_forms_for_what_is_wrong_require_the_output_of_the_doctor(self):
        for name in ("bug_report.yml", "wrong_result.yml"):
            field = (self.forms / name).read_text().split("id: doctor")[1]
            self.assertIn("python -m anabranch.doctor --test", field, name)
            self.assertIn("required: true", field, name)

    def test_the_switches_of_the_form_are_those_of_the_page_in_its_order(self):
        page = (ROOT / "docs/python.md").read_text().split("## When something is wrong")[1]
        switches = re.findall(r"^\| `(.+?)` \|", page.split("\n## ")[0], re.MULTILINE)
        form = re.findall(r"^        - (\S+)$", (self.forms / "wrong_result.yml").read_text(),
                          re.MULTILINE)
        self.assertGreater(len(switches), 3)
        self.assertEqual(form, switches)


class Blocks(unittest.TestCase):
    def test_a_part_of_a_file_stands_in_that_file(self):
        for block in find_blocks():
            if block.directive == "block":
                with self.subTest(str(block)):
                    file = ROOT / block.argument
                    self.assertTrue(file.is_file() and is_part_of(block.code, file))

    def test_every_directive_stands_above_a_block(self):
        for page in find_pages():
            written = sum(bool(DIRECTIVE.match(line)) for line in page.read_text().splitlines())
            read = sum(bool(block.directive) for block in find_blocks() if block.page == page)
            self.assertEqual(written, read, str(page))

    def test_languages_are_those_that_some_test_knows(self):
        known = {"", "text", "cpp", "python", "cmake", "sh", "bash"}
        for block in find_blocks():
            self.assertIn(block.language, known, str(block))

    def test_cmake_blocks_are_parts_of_the_tested_consumer(self):
        for block in find_blocks("cmake"):
            self.assertEqual(block.directive, "block", f"{block}: name the file that is tested")

    def test_commands_name_what_exists(self):
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        presets = set(re.findall(r'"name": "(\w+)"', (ROOT / "CMakePresets.json").read_text()))
        for block in find_blocks("sh", "bash"):
            for command in block.code.splitlines():
                with self.subTest(f"{block}: {command}"):
                    for target in re.findall(r"\bmake ([\w-]+)", command):
                        self.assertIn(target, targets)
                    for preset in re.findall(r"--preset[ =](\w+)", command):
                        self.assertIn(preset, presets)
                    for file in re.findall(r"\b[\w/]+/\w+\.(?:py|sh|plan)\b", command):
                        self.assertTrue(Path(ROOT, file).is_file() or file.startswith("out/"), file)


class Variables(unittest.TestCase):
    def test_a_variable_of_ours_on_a_page_is_one_that_the_tree_reads(self):
        files = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").iterdir(),
                 *(path for folder in ("bench", "python", "src", "tests", "tool")
                   for path in (ROOT / folder).rglob("*")
                   if path.suffix in (".py", ".cpp", ".h", ".cmake", ".txt"))]
        text = "\n".join(file.read_text() for file in files if file != Path(__file__))
        options = re.findall(r"^    (\w+): .* = ", (ROOT / "python/anabranch/config.py").read_text(),
                             re.MULTILINE)
        made = {f"ANABRANCH_{force}{option.upper()}" for option in options
                for force in ("", "FORCE_")}
        for page in find_pages():
            for name in set(re.findall(r"\bANABRANCH_[A-Z_]+\b", page.read_text())) - made:
                with self.subTest(f"{page.relative_to(ROOT)}: {name}"):
                    self.assertTrue(re.search(rf"\b{name}\b", text), "nobody reads it")


class Links(unittest.TestCase):
    def test_links_inside_the_tree_lead_somewhere(self):
        for page in find_pages():
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
                with self.subTest(f"{page.relative_to(ROOT)} -> {target}"):
                    self.assertTrue((page.parent / target).exists())


if __name__ == "__main__":
    unittest.main()
