#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the command answers to the shell, and that it says so where its output cannot be written.

    exit_codes_test.py <the command> <folder of payloads of plan files>
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMMAND, PAYLOADS = Path(sys.argv[1]), Path(sys.argv[2])
DONE, NO, USAGE, UNUSABLE, REFUSED = range(5)
GOOD, OTHER, BROKEN = "steps_3.bin", "steps_8_events.bin", "found_d164a404.bin"


def seal(payload: bytes) -> bytes:
    """A plan file: see docs/file-formats.md."""
    checksum = 0xCBF29CE484222325
    for byte in payload:
        checksum = (checksum ^ byte) * 0x100000001B3 % 2**64
    return b"ANBRPLAN" + struct.pack("<IIQQ", 1, 0, len(payload), checksum) + payload


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (128 << 20, 128 << 20))


class ExitCodes(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in (GOOD, OTHER, BROKEN):
            (self.folder / name).write_bytes(seal((PAYLOADS / name).read_bytes()))
        (self.folder / "text").write_text("no plan at all")
        (self.folder / "cut").write_bytes((self.folder / GOOD).read_bytes()[:-1])
        (self.folder / "trace.json").write_text('{"traceEvents": []}')

    def run_command(self, *words: str, **options) -> subprocess.CompletedProcess:
        given = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **options}
        return subprocess.run([COMMAND, *words], cwd=self.folder, timeout=120, check=False, **given)

    def check(self, code: int, *words: str, error: str = "") -> None:
        with self.subTest(" ".join(words)):
            done = self.run_command(*words)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertIn(error, done.stderr)
            self.assertEqual(bool(done.stderr), code not in (DONE, NO) or bool(error), done.stderr)

    def test_done(self):
        for words in (("--help",), ("--version",), ("run", "--help"), ("doctor",),
                      ("doctor", "--json"), ("check", GOOD), ("show", GOOD),
                      ("show", "trace.json"), ("show", "--html", GOOD), ("compare", GOOD, GOOD),
                      ("run", GOOD, "--null-regions", "-n", "1"),
                      ("run", GOOD, "--null-regions", "-n", "0", "--max-memory", "1g"),
                      ("trace", GOOD, "-n", "1", "-o", "out.json"),
                      ("trace", GOOD, "-n", "1", "-o", "/dev/null")):
            self.check(DONE, *words)

    def test_the_answer_is_no(self):
        self.check(NO, "compare", GOOD, OTHER)
        self.check(NO, "check", BROKEN, error="E0202")

    def test_the_command_line_is_wrong(self):
        for words in ((), ("chekc",), ("check",), ("check", GOOD, GOOD), ("show", "--strict", GOOD)):
            self.check(USAGE, *words)
        for option in ("-n", "--launches", "--lanes"):
            for number in ("-1", "", "1x", "1.5", "4294967296", "18446744073709551617"):
                self.check(USAGE, "run", GOOD, option, number, error="0 to 4294967295")
        for number in ("-5", "", "1x", "-5g", "18446744073709551616", "16777216t", "9" * 30):
            self.check(USAGE, "run", GOOD, "--max-memory", number, error="0 to 18446744073709551615")

    def test_a_file_cannot_be_used(self):
        for command in ("check", "show", "run", "trace"):
            for file in ("missing", ".", "text", "cut", "-"):
                self.check(UNUSABLE, command, file, error="E050")
        for files in (("missing", GOOD), (GOOD, "missing"), (GOOD, "text"), ("cut", GOOD)):
            self.check(UNUSABLE, "compare", *files, error="E050")
        self.check(UNUSABLE, "show", "--html", "trace.json", error="no plan file")
        self.check(UNUSABLE, "trace", GOOD, "-n", "1", "-o", "no/such.json", error="E0501")
        self.check(UNUSABLE, "trace", GOOD, "-n", "1", "-o", "/dev/full", error="No space left")
        self.check(UNUSABLE, "--cmakedir", error="E0501")

    def test_a_plan_is_refused(self):
        for command in ("show", "run", "trace"):
            self.check(REFUSED, command, BROKEN, error="E0202")
        self.check(REFUSED, "compare", GOOD, BROKEN, error="E0202")
        self.check(REFUSED, "run", GOOD, error="E0301")
        self.check(REFUSED, "run", GOOD, "--null-regions", "--max-memory", "0", error="E0107")

    def test_output_that_cannot_be_written_is_no_success(self):
        for words in (("--help",), ("--version",), ("doctor",), ("doctor", "--json"),
                      ("check", GOOD), ("show", GOOD), ("show", "trace.json"),
                      ("show", "--html", GOOD),
                      ("compare", GOOD, GOOD), ("compare", GOOD, OTHER),
                      ("run", GOOD, "--null-regions"), ("trace", GOOD, "-n", "1")):
            with self.subTest(" ".join(words)), open("/dev/full", "w") as full:
                done = self.run_command(*words, capture_output=False, stdout=full,
                                        stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, UNUSABLE, done.stderr)
                self.assertIn("No space left on device", done.stderr)
            with self.subTest(" ".join(words) + " >&-"):
                done = self.run_command(*words, capture_output=False, stderr=subprocess.PIPE,
                                        preexec_fn=lambda: os.close(1))
                self.assertEqual(done.returncode, UNUSABLE, done.stderr)

    def test_a_dash_is_standard_input(self):
        for words, file in ((("check", "-"), GOOD), (("show", "-"), GOOD),
                            (("show", "-"), "trace.json"), (("show", "--html", "-"), GOOD),
                            (("compare", "-", GOOD), GOOD),
                            (("run", "-", "--null-regions", "-n", "1"), GOOD)):
            with self.subTest(" ".join(words)), (self.folder / file).open("rb") as stdin:
                done = self.run_command(*words, stdin=stdin)
                self.assertEqual(done.returncode, DONE, done.stderr)

    def test_doctor_prints_json_alone(self):
        done = self.run_command("doctor", "--json")
        self.assertEqual(list(json.loads(done.stdout))[0], "library")
        self.assertEqual(done.stderr, "")

    def test_help_tells_the_exit_codes(self):
        text = self.run_command("--help").stdout
        for code in range(5):
            self.assertRegex(text, rf"(?m)^  {code}  ")
        self.assertIn("Examples:", text)

    def test_little_memory_is_an_error(self):
        done = self.run_command("trace", GOOD, "-n", "100000000", preexec_fn=limit_memory)
        self.assertEqual(done.returncode, REFUSED, done.stderr)
        self.assertIn("no memory", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
