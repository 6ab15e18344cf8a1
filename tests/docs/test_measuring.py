# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/measuring.md are those that scripts/measuring.py writes from the results."""

from __future__ import annotations

import json
import subprocess
import sys

from pages import ROOT

MACHINE = {"processor": "a CPU", "cores": 4, "torch": "2.11.0+cu130", "gpu": "a GPU",
           "command": "trainer.py trainer.json --rounds 3 (ended early)"}
CASES = [{"case": "one", "step_us": {"torch_compile": 20000, "one line of ours": 5000},
          "over_compile": 4.0, "iqr": 0.25},
         {"case": "two", "step_us": {"torch_compile": 1234567.8, "one line of ours": 1000},
          "over_compile": 1234.5678, "iqr": 1}]
PAGE = "Before.\n\n<!-- table: trainer -->\nold\n<!-- end -->\n\nAfter.\n"
WRITTEN = """Before.

<!-- table: trainer -->
transformers 5.0, a GPU, torch 2.11.0: `python bench/gpu/trainer.py --rounds 3`; ms a step

|case|`torch_compile`|with `record(trainer)`|times|
|---|---|---|---|
|one|20.00|5.00|4.00 (IQR 0.25)|
|two|1,234.57|1.00|1234.57 (IQR 1.00)|
<!-- end -->

After.
"""


def measuring(*arguments):
    return subprocess.run([sys.executable, ROOT / "scripts/measuring.py", *arguments],
                          capture_output=True, text=True, check=False)


def test_the_page_is_the_one_that_its_script_writes():
    done = measuring("--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_table_has_the_rows_of_its_json(tmp_path):
    (tmp_path / "gpu_trainer.json").write_text(json.dumps(
        {"machine": MACHINE, "transformers": "5.0", "cases": CASES}))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    options = ("--page", page, "--results", tmp_path)
    checked = measuring("--check", *options)
    assert (checked.returncode, checked.stdout.count("\n")) == (1, 1), checked.stderr
    assert page.read_text() == PAGE
    assert measuring(*options).returncode == 0
    assert page.read_text() == WRITTEN
    assert measuring("--check", *options).returncode == 0


def test_a_name_without_a_table_is_told(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: nothing -->\n<!-- end -->\n")
    done = measuring("--page", page)
    assert done.returncode == 1
    assert "no table is named nothing" in done.stderr
