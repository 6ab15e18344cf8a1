# SPDX-License-Identifier: Apache-2.0
"""The rules of the Python package: who may import whom. See docs/layout.md.

A room is a folder of python/anabranch or a module that lies there by itself. Inside the two large
rooms the same holds of their folders and modules. Imports are written whole, with the room's name:
`from anabranch._record.state.walk import Walk`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

# Data flows from left to right: a room imports itself and what its set names, nothing else.
_FRONT = {"errors", "_arguments", "_write_file", "config"}
_BELOW = _FRONT | {"_compat", "streams", "_core", "_fx"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "_compat": set(),
    "_requirements": {"errors"},
    "_arguments": {"errors"},
    "_write_file": {"errors"},
    "config": {"errors", "_arguments"},
    "streams": {"errors", "config"},
    "_core": _FRONT,
    "_fx": {"_compat", "streams", "errors"},
    "_record": _BELOW,
    "_offload": _BELOW | {"_record"},
    "_compile": _BELOW | {"_record", "_offload"},
    "_explain": _BELOW | {"_record", "_offload", "_compile"},
    "_bisect": _BELOW | {"_record", "_offload", "_compile"},
    "integrations": _BELOW | {"_record"},
    "_redact": set(),
    "doctor": _FRONT | {"_requirements", "_redact", "_core"},
    "_self_test": {"doctor", "_offload"},
    "__main__": {"errors", "_redact", "doctor"},
    "__init__": _BELOW | {"_requirements", "_record", "_offload", "_compile", "_explain", "_bisect",
                          "doctor"},
}

_RECORD_BELOW = {"refusals", "tensors", "picker", "quick", "checks"}
_RECORD_STAGES = _RECORD_BELOW | {"memory", "state", "effects", "numbers", "capture", "launch",
                                  "trial"}
_COMPILE_GRAPHS = {"groups", "asked", "graph", "layouts", "program", "threads", "progress", "regions",
                   "views"}
# The same inside of a room.
INSIDE: dict[str, dict[str, set[str]]] = {
    "_record": {
        "refusals": set(),
        "tensors": set(),
        "picker": set(),
        "quick": set(),
        "checks": {"quick"},
        "warn": {"refusals"},
        "memory": {"refusals"},
        "state": _RECORD_BELOW,
        "observe": _RECORD_BELOW | {"state"},
        "effects": _RECORD_BELOW | {"state"},
        "faults": set(),
        "draws": _RECORD_BELOW | {"state", "observe", "effects", "faults"},
        "numbers": {"refusals", "picker"},
        "capture": _RECORD_BELOW | {"memory", "numbers"},
        "launch": _RECORD_BELOW | {"memory", "numbers", "capture"},
        "trial": _RECORD_STAGES,
        "report": _RECORD_STAGES,
        "rendezvous": _RECORD_STAGES,
        "reducers": {"refusals"},
        "signatures": _RECORD_STAGES | {"draws", "report", "warn"},
        "attempt": _RECORD_STAGES | {"report", "rendezvous", "reducers", "signatures", "observe"},
        "launches": _RECORD_STAGES | {"faults", "signatures"},
        "graph_plans": _RECORD_STAGES | {"faults", "signatures"},
        "kept_calls": _RECORD_STAGES | {"signatures", "observe"},
        "recorder": _RECORD_STAGES | {"faults", "signatures", "attempt", "launches", "graph_plans",
                                      "kept_calls", "warn", "observe"},
        "recorded_graph": _RECORD_STAGES | {"faults", "report", "signatures", "recorder"},
        "recorded_callable": _RECORD_STAGES | {"faults", "report", "signatures", "recorder",
                                               "observe", "draws"},
        "recorded_module": {"recorded_callable"},
        "record": {"recorded_callable", "recorded_module"},
    },
    "_compile": {
        "groups": set(),
        "asked": set(),
        "graph": {"groups", "asked"},
        "layouts": {"graph"},
        "program": {"graph", "layouts"},
        "views": {"graph"},
        "threads": set(),
        "progress": set(),
        "regions": {"graph", "threads", "progress"},
        "user_streams": set(),
        "broken_libraries": set(),
        "streamed_graph": _COMPILE_GRAPHS,
        "host": _COMPILE_GRAPHS | {"streamed_graph"},
        "cuda_streams": _COMPILE_GRAPHS | {"streamed_graph"},
        "cuts": {"asked"},
        "kept_graphs": {"cuts"},
        "contents": {"streamed_graph"},
        "report": {"contents", "cuts", "kept_graphs", "streamed_graph"},
        "lost_streams": {"report"},
        "backend": _COMPILE_GRAPHS | {
            "user_streams", "broken_libraries", "streamed_graph", "host", "cuda_streams", "cuts",
            "kept_graphs", "report", "lost_streams"},
    },
    "_explain": {
        "reasons": set(),
        "timelines": set(),
        "trace_ids": set(),
        "stalls": {"timelines"},
        "profiles": {"timelines"},
        "contents": {"reasons", "timelines", "stalls"},
        "text": set(),
        "page": set(),
        "explanation": {"contents", "text", "timelines", "trace_ids", "page"},
    },
}

# `import anabranch` works without torch, and so does what tells that it is missing.
WITHOUT_TORCH = ("errors", "_requirements", "_arguments", "_write_file", "config", "_core", "_redact",
                 "doctor", "_self_test", "__main__", "__init__")
PACKAGE = "anabranch"


def find_breaches(root: Path) -> list[str]:
    """One line a broken rule, in the order of the files; none where there is no such package."""
    package = root / "python" / PACKAGE
    paths = sorted(package.rglob("*.py"))
    return [*(breach for path in paths for breach in _check_module(root, package, path)),
            *_check_names(root, paths)]


def _check_names(root: Path, paths: Sequence[Path]) -> Iterator[str]:
    """A class that other modules may use has a name of its own."""
    known: dict[str, Path] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") \
                    and known.setdefault(node.name, path) != path:
                yield (f"{path.relative_to(root)}:{node.lineno}: class {node.name} is another one in "
                       f"{known[node.name].relative_to(root)}")


def _check_module(root: Path, package: Path, path: Path) -> Iterator[str]:
    parts = path.relative_to(package).with_suffix("").parts
    where = path.relative_to(root)
    if parts[0] not in ROOMS:
        yield f"{where}: is in no room; rooms of {PACKAGE} are {', '.join(ROOMS)}"
        return
    inside = INSIDE.get(parts[0], {})
    if inside and parts[1] not in inside and parts[1] != "__init__":
        yield f"{where}: is in no room of {parts[0]}; those are {', '.join(inside)}"
        return
    for line, target, is_lazy in _imports(path):
        if target.startswith("."):
            yield f"{where}:{line}: {target} is written without its room"
        elif target.split(".")[0] == PACKAGE:
            yield from _check_own(f"{where}:{line}", parts, _parts_of(package, target))
        elif target.split(".")[0] == "torch" and parts[0] in WITHOUT_TORCH and not is_lazy:
            yield f"{where}:{line}: room {parts[0]} imports torch, and has to work without it"


def _check_own(where: str, parts: tuple[str, ...], target: tuple[str, ...]) -> Iterator[str]:
    """An import of the package, by what stands behind its name."""
    if not target:
        return
    if target[0] != parts[0]:
        if target[0] not in ROOMS[parts[0]]:
            yield f"{where}: room {parts[0]} imports {'.'.join(target)}, which is not upstream"
        return
    inside = INSIDE.get(parts[0])
    if not inside or len(target) < 2 or parts[1] in (target[1], "__init__"):
        return
    if target[1] not in inside.get(parts[1], ()):
        yield (f"{where}: room {parts[0]}.{parts[1]} imports {'.'.join(target)}, "
               "which is not upstream")


def _parts_of(package: Path, target: str) -> tuple[str, ...]:
    """The path below the package that a name leads to, without the names in a module."""
    parts = target.split(".")[1:]
    for end in range(len(parts), 0, -1):
        path = package.joinpath(*parts[:end])
        if path.is_dir() or path.with_suffix(".py").is_file():
            return tuple(parts[:end])
    return ()


def _imports(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, name, and whether it is imported only when a function runs or by type checkers."""
    tree = ast.parse(path.read_text())
    lazy = {id(inner) for node in ast.walk(tree) if _is_lazy(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, id(node) in lazy
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{'.' * node.level}{node.module or ''}.{alias.name}"
                yield node.lineno, name, id(node) in lazy


def _is_lazy(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
        isinstance(node, ast.If) and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING")
