# SPDX-License-Identifier: Apache-2.0
"""The threads on which torch's engine runs a backward of a GPU's."""

from __future__ import annotations

from pathlib import Path


def is_autograds_thread(native_id: int) -> bool:
    """Of a thread of this process: by the name that torch gives it."""
    try:
        return Path(f"/proc/self/task/{native_id}/comm").read_text().startswith("pt_autograd")
    except OSError:  # it has ended, or this is no Linux
        return False
