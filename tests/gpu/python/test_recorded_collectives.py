# SPDX-License-Identifier: Apache-2.0
"""Collectives of compiled graphs, and of torch's DDP, in recordings of two processes, a GPU each
or both on one: they run beside kernels and change no bit. What each process does is in
collective_recordings.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures import DEADLINE_S

PROCESSES = 2
STEPS = ("layers_in_order", "gradients_are_scattered", "two_groups", "all_kinds",
         "a_process_with_a_kernel_more", "asked_by_overlap", "gathers_in_groups",
         "processes_that_see_other_shapes", "gradients_are_averaged_by_ddp",
         "steps_under_ddp_that_stay_plain")


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_two_processes_is_what_it_is_unrecorded(step):
    program = Path(__file__).with_name("collective_recordings.py")
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={PROCESSES}", str(program), step],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=DEADLINE_S - 20)
    assert run.returncode == 0 and run.stdout.count("done") == PROCESSES, \
        run.stdout[-6000:] + run.stderr[-6000:]
