# SPDX-License-Identifier: Apache-2.0
"""The host's memory, for what is too much for the GPU: how much there is, in large pages where the
system has them, and bytes moved by several threads.

A system hands fresh pages out, one thread moves bytes, and pages are taken back at a tenth of the
rate at which a GPU's bytes come over. torch's own threads are no help: launchers such as torchrun
leave it one.

Threads: any. Failure: MemoryError or OSError where a limit of the process leaves no room.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from anabranch import _compat

_MOST_THREADS = 16


def fresh_bytes(size_bytes: int) -> Tensor:
    """Flat bytes of pageable memory; no page has been touched yet."""
    pages = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # systems without large pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8, count=max(size_bytes, 1))[:size_bytes]


def free_aside(memory: list[Tensor]) -> None:
    """Empties the list, which alone holds what is in it, while the caller goes on."""
    with contextlib.suppress(RuntimeError):  # the system starts no more threads
        threading.Thread(target=memory.clear, name="anabranch-free").start()


def mover_threads() -> ThreadPoolExecutor | None:
    """For the work of move_bytes, all of them started; the caller shuts them down. None where the
    system starts no more threads."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = max(1, min(_MOST_THREADS, cpus // _compat.processes_here()))
    threads, are_started = ThreadPoolExecutor(count, "anabranch-move"), threading.Event()
    try:
        for _ in range(count):
            threads.submit(are_started.wait)  # one that waits takes no other work
    except RuntimeError:
        are_started.set()
        threads.shutdown()
        return None
    are_started.set()
    return threads


def move_bytes(to: Tensor, source: Tensor) -> None:
    """All bytes of ``source`` into ``to``, both flat bytes of the host; other threads of Python run
    on."""
    ctypes.memmove(to.data_ptr(), source.data_ptr(), source.numel())


def host_free_bytes() -> int:
    """What this process may take of the host's memory without others having to give any up: what
    the system calls available, within the limit of its control group, and its share where several
    processes of one program run here."""
    available = _available_of_system()
    limit = _free_of_group()
    available = available if limit is None else min(available, limit)
    return available // _compat.processes_here()


def _available_of_system() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_of_group() -> int | None:
    """None where there is no control group that limits memory (of version 2, or 1)."""
    for limit, used, stat in (
            ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
             "/sys/fs/cgroup/memory.stat"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes",
             "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat")):
        try:
            most, now = Path(limit).read_text().strip(), int(Path(used).read_text())
            if most == "max":
                return None
            files = sum(int(line.split()[1]) for line in Path(stat).read_text().splitlines()
                        if line.startswith(("inactive_file ", "total_inactive_file ")))
            return max(0, int(most) - now + files)
        except (OSError, ValueError):
            continue
    return None
