# SPDX-License-Identifier: Apache-2.0
"""Programs that run as several processes of one group.

    python processes.py <program> <ranks> <store> [arguments...]
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path


def run_processes(program: str, ranks: int, store: Path, *arguments: str) -> None:
    """``program``, beside this file, once for each rank, with that, how many there are, a file for
    what they tell one another, and more."""
    from fixtures import DEADLINE_S  # here: the processes have no use for pytest

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(Path(__file__).with_name(program)), str(ranks),
               str(store), *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, start_new_session=True) as group:
        try:
            told, _ = group.communicate(timeout=DEADLINE_S - 20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group.pid, signal.SIGKILL)
    assert group.returncode == 0, told[-6000:]


def leave(status: int) -> None:
    """Ends the process. What Python does at an end, to all of torch's objects, takes a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(program: str, ranks: str, *arguments: str) -> int:
    """Imports once what takes each process seconds, then forks. No thread of torch runs so early,
    and those of numpy expect forks."""
    run = runpy.run_path(program)["main"]
    sys.stdout.flush()
    for rank in range(int(ranks)):
        if os.fork() == 0:
            run(str(rank), ranks, *arguments)
            leave(0)
    for _ in range(int(ranks)):
        _, status = os.wait()
        if status != 0:
            os.killpg(0, signal.SIGKILL)  # the others would wait for the one that failed
    return 0


if __name__ == "__main__":
    leave(main(*sys.argv[1:]))
