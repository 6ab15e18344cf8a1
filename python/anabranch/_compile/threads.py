# SPDX-License-Identifier: Apache-2.0
"""How many threads: lanes of a launch, and threads inside one operator."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

import torch

from anabranch import _compat, config
from anabranch._core.device import Device


def lanes_of(chosen: config.Options, streams: int) -> int:
    """Threads that a launch over so many streams uses."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(streams, chosen.max_threads or cores))


def region_threads(lanes: int, alone: bool) -> int:
    """For one operator of a region: all, where the region runs alone and outside the team of
    threads (ThreadControl in device.h), else what is left beside the other lanes."""
    threads = torch.get_num_threads()
    if alone and threads < 2 * lanes and _compat.openmp_function("GOMP_parallel"):
        return threads
    return max(1, threads // lanes)


class HostOptions(NamedTuple):
    """The options that a launch on the host obeys."""

    native_regions: bool
    max_threads: int | None
    spin_us: int
    delay_seed: int | None

    @classmethod
    def of(cls, chosen: config.Options) -> HostOptions:
        return cls(chosen.native_regions, chosen.max_threads, chosen.spin_us, chosen.delay_seed)

    def device(self) -> Device:
        """The same options share one, and so its workers."""
        return _host_device(self.max_threads or 0, self.spin_us * 1000, self.delay_seed)


@functools.cache
def _host_device(max_lanes: int, spin_ns: int, delays_seed: int | None) -> Device:
    return Device.host(
        max_lanes=max_lanes,
        spin_ns=spin_ns,
        delays_seed=delays_seed,
        prepare_threads=_compat.library_function("prepare_threads"),
        get_openmp=_compat.openmp_function("omp_get_max_threads"),
        set_openmp=_compat.openmp_function("omp_set_num_threads"),
        set_mkl_local=_compat.library_function("set_mkl_threads"),
        team_run=_compat.openmp_function("GOMP_parallel"),
        team_index=_compat.openmp_function("omp_get_thread_num"),
        team_size=_compat.openmp_function("omp_get_num_threads"),
    )
