#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up JUnit reports: a line each, and last the plain line "N passed, N failed, N skipped".

    count_tests.py <report.xml>...

Answers 1 if any test failed, a report cannot be read, or nothing ran at all.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def count(report: Path) -> Counter[str]:
    counts: Counter[str] = Counter(passed=0, failed=0, skipped=0)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        children = {child.tag for child in case}
        if children & {"failure", "error"}:
            counts["failed"] += 1
        elif "skipped" in children or case.get("status") in ("notrun", "disabled"):
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def text(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped"))


def main() -> int:
    total: Counter[str] = Counter()
    for path in map(Path, sys.argv[1:]):
        try:
            counts = count(path)
        except (OSError, ElementTree.ParseError) as error:
            print(f"{path.stem}: no report ({error})")
            counts = Counter(failed=1)
        print(f"{path.stem}: {text(counts)}")
        total += counts
    print(text(total))
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
