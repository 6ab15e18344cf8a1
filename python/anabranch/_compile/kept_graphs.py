# SPDX-License-Identifier: Apache-2.0
"""What recordings and reports need to know of a compiled graph, kept beside Inductor's cache.

AOTAutograd keeps what it has made of a model: a process that finds it there traces nothing, cuts
nothing and hands over graphs as Inductor compiled them. Facts that our compiler has read off the
graph itself are looked up then, by Inductor's key of it. Not kept are graphs whose compilation
leaves more behind than these: those with streams, and those that move saved tensors.

Threads and processes: any; a file is replaced as a whole. Failure: keep() leaves nothing where it
cannot write, facts_of_kept() raises KeyError where there is nothing that it can read.
"""

from __future__ import annotations

import dataclasses
import logging
import pickle
from collections.abc import Sequence
from pathlib import Path

from anabranch import _compat, config
from anabranch._compile.cuts import Cuts
from anabranch._fx.source import SourceLine

log = logging.getLogger("anabranch.compile")
_SEVERAL = "several"  # in a file in the facts' place


@dataclasses.dataclass(frozen=True)
class GraphFacts:
    """``operators``: how many. ``asked_lanes``: for how many lanes it asks by name, 1 where it does
    not. ``saved_from`` is the index of the first result that a forward saves, ``tangents`` are the
    inputs of a backward that autograd holds."""

    kind: str  # "forward", "backward" or "inference"
    operators: int
    lines: Sequence[SourceLine]
    is_on_gpu: bool
    is_dynamic: bool
    asked_lanes: int
    cuts: Cuts
    saved_from: int | None
    tangents: Sequence[int]


def keep(key: str, facts: GraphFacts) -> None:
    """Two models may have one graph and, of its results, save others: then neither is known."""
    path = _path_of(key)
    known = _read(path)
    is_other = known == _SEVERAL or (
        isinstance(known, GraphFacts) and dataclasses.replace(facts, lines=known.lines) != known)
    try:
        _compat.write_atomic(str(path), pickle.dumps(_SEVERAL if is_other else facts),
                             make_dirs=True)
    except Exception:
        log.info("facts of a graph cannot be kept", exc_info=True)


def facts_of_kept(key: str) -> GraphFacts:
    facts = _read(_path_of(key))
    if not isinstance(facts, GraphFacts):
        raise KeyError(key)
    return facts


def _read(path: Path) -> object:
    try:
        return pickle.loads(path.read_bytes())
    except Exception:  # there is none, or something else has written it
        return None


def version(chosen: config.Options) -> str:
    """Of all code and all options that have a part in what is kept."""
    package = Path(__file__).parents[1]
    files = sorted(str(file) for room in ("_compile", "_fx", "_offload", "_compat")
                   for file in (package / room).glob("*.py"))
    return str(_compat.get_hash_for_files(tuple(files), repr(
        (chosen.strict, sorted(chosen.allow), chosen.streams, chosen.record,
         chosen.max_parallel_kernels, chosen.bucket_bytes, chosen.activation_memory))))


def _path_of(key: str) -> Path:
    return Path(_compat.inductors_cache()) / "anabranch" / key
