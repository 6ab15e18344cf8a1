#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles one source both ways: as it stands, which must succeed, and with ANABRANCH_MUST_FAIL,
which must fail with the message that the line `// expect: "<regular expression>"` names. The good
twin proves that the bad one fails for that reason and no other.

    run_twin.py <source> <compiler> [flags...]
"""

import re
import subprocess
import sys
from pathlib import Path


def compile_twin(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run([*command, "-fsyntax-only"], capture_output=True, text=True, check=False)


def main() -> int:
    source, *command = sys.argv[1:]
    found = re.search(r'^// expect: "(.+)"$', Path(source).read_text(), re.MULTILINE)
    if not found:
        print(f'{source}: has no line // expect: "<regular expression>"')
        return 1
    good = compile_twin([*command, source])
    if good.returncode != 0:
        print(f"{source}: the good twin does not compile:\n{good.stderr}")
        return 1
    bad = compile_twin([*command, "-DANABRANCH_MUST_FAIL=1", source])
    if bad.returncode == 0:
        print(f"{source}: the bad twin compiles")
        return 1
    if not re.search(found[1], bad.stderr):
        print(f"{source}: the bad twin fails for another reason than {found[1]!r}:\n{bad.stderr}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
