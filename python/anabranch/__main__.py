# SPDX-License-Identifier: Apache-2.0
"""The ``anabranch`` command of the Python package: the C++ command, and Python's part of doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from anabranch import doctor, errors


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
    found = doctor.as_json() if given == ["doctor", "--json"] else None
    if given == ["doctor"]:
        print(doctor.report(), flush=True)
    try:
        done = subprocess.run([find_command(), *given], check=False, text=True,
                              stdout=None if found is None else subprocess.PIPE)
        status = done.returncode
        if found is not None and status == 0:
            found = json.loads(done.stdout) | found
    except errors.CompileError as error:
        print(error, file=sys.stderr)
        status = 1
    if found is not None:
        print(json.dumps(found, indent=2))
    return status


if __name__ == "__main__":
    sys.exit(main())
