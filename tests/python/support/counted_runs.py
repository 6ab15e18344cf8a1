# SPDX-License-Identifier: Apache-2.0
"""How often the Python of steps has run, inside of recorded callables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch._record import recorded_callable

_runs: list[None] = []
_note_run = _runs.append  # of C, behind which nothing looks for what a step changes


def runs_so_far() -> int:
    return len(_runs)


def count_runs(monkeypatch: Any) -> Callable[[], int]:
    """A function that tells how often since now."""
    run_users, begin = recorded_callable.run_users, len(_runs)

    def counted(call: Any, *args: Any, **kwargs: Any) -> Any:
        _note_run(None)
        return run_users(call, *args, **kwargs)

    monkeypatch.setattr(recorded_callable, "run_users", counted)
    return lambda: len(_runs) - begin
