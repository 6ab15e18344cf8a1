# SPDX-License-Identifier: Apache-2.0
"""Programs that run as several processes of one group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fixtures import DEADLINE_S


def run_processes(program: str, ranks: int, store: Path, *arguments: str) -> None:
    """``program``, beside this file, once for each rank, with that, how many there are, a file for
    what they tell one another, and more."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen([sys.executable, str(Path(__file__).with_name(program)), str(rank),
                          str(ranks), str(store), *arguments],
                         env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True) for rank in range(ranks)]
    try:
        told = [process.communicate(timeout=DEADLINE_S - 20)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()  # the others wait for one that has failed
    assert not any(process.returncode for process in processes), "\n".join(told)[-6000:]
