# SPDX-License-Identifier: Apache-2.0
"""torch's own DDP and FSDP2 over models whose code is compiled, in two processes on the CPU: losses
and weights are those of eager under the same. Nothing is recorded here."""

from __future__ import annotations

from processes import run_processes


def test_models_that_are_compiled_train_under_ddp_and_fsdp2_as_eager_does(tmp_path):
    run_processes("parallel_steps.py", 2, tmp_path / "store")
