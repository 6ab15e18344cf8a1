# SPDX-License-Identifier: Apache-2.0
"""Notes for tests: of the CPU's work, with a counter in place of a capture, and autotuners as
Inductor makes them."""

from __future__ import annotations

import types

import torch
import triton
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties, HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from anabranch._record.capture.access_notes import AccessNotes


class Marks:
    """Answers 1, 2, ... as a capture would."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return self.count


def notes_of(run, *args):
    notes = AccessNotes(Marks(), "cpu")
    with notes.noted():
        result = run(*args)
    return notes, result


def compiled(function):
    return torch.compile(function, backend="inductor", dynamic=False)


def compiled_notes(function, *args):
    """Warms up, as a step is before it is captured, and notes the second call."""
    function(*args)
    notes = AccessNotes(Marks(), "cpu")
    with notes.known_calls():
        result = function(*args)
    return notes, result


def reads(work):
    return {address for address, is_written in work.accesses if not is_written}


def writes(work):
    return {address for address, is_written in work.accesses if is_written}


def at(*tensors):
    return {tensor.data_ptr() for tensor in tensors}


@torch.library.custom_op("anabranch_test::overwrite", mutates_args=("x",))
def overwrite(x: torch.Tensor) -> None:
    x.fill_(1.0)


def tuner_of(names, mutated=(), kind=HeuristicType.POINTWISE, launcher=None, cls=CachingAutotuner,
             custom=False):
    """An autotuner as Inductor makes it, with a function in place of the compiled kernel."""
    meta = {"device": DeviceProperties.create(torch.device("cpu")), "signature": {}}
    function = types.SimpleNamespace(fn=lambda XBLOCK: None, arg_names=[*names, "xnumel", "XBLOCK"],
                                     __name__="triton_poi_fused_0")
    inductor_meta = {} if mutated is None else {"mutated_arg_names": list(mutated)}
    tuner = triton_heuristics.cached_autotune(
        None, [triton.Config({"XBLOCK": 1})], triton_meta=meta, heuristic_type=kind,
        inductor_meta=inductor_meta, custom_kernel=custom, caching_autotuner_cls=cls)(function)

    def launch(*args, stream):
        return launcher(*args) if launcher else None

    launch.config, launch.store_cubin, launch.cache_hash = triton.Config({"XBLOCK": 1}), False, None
    tuner.launchers = [launch]
    return tuner
