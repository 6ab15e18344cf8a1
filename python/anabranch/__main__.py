# SPDX-License-Identifier: Apache-2.0
"""The ``anabranch`` command of the Python package: the C++ command, and Python's part of doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from anabranch import doctor, errors
from anabranch._redact import redact


def find_command() -> Path:
    """The C++ command: in the package, or in the build of a source tree."""
    here = Path(__file__).resolve()
    looked = [here.parent / "bin" / "anabranch", here.parents[2] / "build/release/tool/anabranch"]
    for path in looked:
        if os.access(path, os.X_OK) and path.is_file():
            return path
    raise errors.CompileError(
        606, f"anabranch: the command is not there: {', '.join(map(str, looked))}.",
        "Install the package again, or build it with `make release`.")


def main(arguments: list[str] | None = None) -> int:
    """Answers the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["doctor"] and set(given[1:]) <= {"--json", "--test"}:
        return _tell_all("--test" in given, "--json" in given)
    try:
        return subprocess.run([find_command(), *given], check=False).returncode
    except errors.CompileError as error:
        print(error, file=sys.stderr)
        return 1


def _tell_all(test: bool, is_json: bool) -> int:
    """Python's part of doctor, and behind it what the C++ command finds."""
    rows = doctor.findings(test)
    status = doctor.exit_status(rows)
    found = doctor.json_of(rows)
    if not is_json:
        print(doctor.lines_of(rows), flush=True)
    try:
        done = subprocess.run([find_command(), "doctor", *(["--json"] if is_json else [])],
                              check=False, text=True, stdout=subprocess.PIPE)
        status = done.returncode or status
        if not is_json:
            print(redact(done.stdout), end="")
        elif done.returncode == 0:
            found = json.loads(redact(done.stdout)) | found
    except errors.CompileError as error:
        print(redact(str(error)), file=sys.stderr)
        status = 1
    if is_json:
        print(json.dumps(found, indent=2))
    return status


if __name__ == "__main__":
    sys.exit(main())
