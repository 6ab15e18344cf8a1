# SPDX-License-Identifier: Apache-2.0
"""How fast bytes move between a device and the host's memory: measured, once a machine.

A measurement lies in a file afterwards, by the name of the GPU, its place on the bus, the machine
and the NUMA node that the process runs on; the doctor shows it. On the CPU both sides are the same
memory, which is measured in each process.

Threads: any; two may measure the same. Failure: none where there is no file: it is measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat, config
from anabranch._core.offload import Link
from anabranch._offload.durations import elapsed_ns
from anabranch._write_file import write_file
from anabranch.errors import AnabranchError

_LARGE, _LARGE_ON_HOST, _SMALL, _RUNS = 64 << 20, 4 << 20, 4 << 10, 5
_VERSION = 1  # of what a file holds


@dataclasses.dataclass(frozen=True)
class MeasuredLink:
    """Rates in bytes a second: pinned memory each way, alone and while both ways copy, pageable
    memory each way, and within the device's own memory. ``latency_ns`` is of a small copy.
    ``gpu_node`` and ``host_node`` are NUMA nodes, -1 where the system tells none."""

    device: str
    out_rate: float
    in_rate: float
    both_out_rate: float
    both_in_rate: float
    pageable_out_rate: float
    pageable_in_rate: float
    own_rate: float
    latency_ns: int
    gpu_node: int
    host_node: int

    def link(self) -> Link:
        share = min(self.both_out_rate / self.out_rate, self.both_in_rate / self.in_rate)
        return Link(self.out_rate, self.in_rate, self.latency_ns, min(1.0, max(share, 0.01)))


_known: dict[str, MeasuredLink] = {}


def link_of(device: torch.device) -> MeasuredLink:
    key = _key_of(device)
    if key not in _known:
        _known[key] = measure(device) if device.type != "cuda" else \
            _read(key) or _measure_and_keep(device, key)
    return _known[key]


def _key_of(device: torch.device) -> str:
    if device.type != "cuda":
        return "cpu"
    about: Any = torch.cuda.get_device_properties(device)
    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # homes may be shared
    return f"{about.name} {_bus_of(about)} of machine {machine} from node {_host_node()}"


def _read(key: str) -> MeasuredLink | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        kept = json.loads(_file().read_text())
        if kept["version"] == _VERSION:
            return MeasuredLink(**kept["links"][key])
    return None


def measure_anew(device: torch.device) -> MeasuredLink:
    """In place of what was kept."""
    return _measure_and_keep(device, _key_of(device))


def _measure_and_keep(device: torch.device, key: str) -> MeasuredLink:
    measured = measure(device)
    links: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        kept = json.loads(_file().read_text())
        links = kept["links"] if kept["version"] == _VERSION else {}
    content = {"version": _VERSION, "links": {**links, key: dataclasses.asdict(measured)}}
    with contextlib.suppress(OSError, AnabranchError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_file("keep the measured link", _file(), json.dumps(content, indent=1).encode())
    return measured


def _file() -> Path:
    return config.cache_folder() / "links.json"


def measure(device: torch.device) -> MeasuredLink:
    """Anew. Takes 128 MiB of pinned memory and as much of the device's for the time."""
    is_gpu = device.type == "cuda"
    size = _LARGE if is_gpu else _LARGE_ON_HOST
    with _compat.real_tensors(), torch.no_grad():
        own, other = (_bytes(size, device) for _ in range(2))
        host, more = (_bytes(size, torch.device("cpu"), is_pinned=is_gpu) for _ in range(2))
        pageable = _bytes(size, torch.device("cpu"))
        out_rate, in_rate = _rate(device, (host, own)), _rate(device, (own, host))
        both = _rate(device, (host, own), (other, more)) if is_gpu else out_rate
        share = min(1.0, both / min(out_rate, in_rate))
        return MeasuredLink(
            str(device), out_rate, in_rate, out_rate * share, in_rate * share,
            _rate(device, (pageable, own)), _rate(device, (own, pageable)),
            _rate(device, (other, own)),
            min(elapsed_ns(device, lambda: _copy(host[:_SMALL], own[:_SMALL]))
                for _ in range(_RUNS)),
            _gpu_node(device), _host_node())


def _bytes(size_bytes: int, device: torch.device, is_pinned: bool = False) -> Tensor:
    return torch.zeros(size_bytes, dtype=torch.uint8, device=device, pin_memory=is_pinned)


def _copy(to: Tensor, source: Tensor) -> None:
    to.copy_(source, non_blocking=True)


def _rate(device: torch.device, *pairs: tuple[Tensor, Tensor]) -> float:
    """Of one of these copies, all of them at once, each on a stream of its own."""
    sides = [torch.cuda.Stream(device) for _ in pairs] if len(pairs) > 1 else []

    def run() -> None:
        if not sides:
            _copy(*pairs[0])
            return
        for side, pair in zip(sides, pairs, strict=True):
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                _copy(*pair)
        for side in sides:
            torch.cuda.current_stream(device).wait_stream(side)

    run()
    return pairs[0][0].numel() / min(elapsed_ns(device, run) for _ in range(_RUNS)) * 1e9


def _bus_of(about: Any) -> str:
    """Of a GPU's place on the bus, as the system's folders are called; empty where torch does not
    tell it."""
    try:
        return f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
    except AttributeError:
        return ""


def _gpu_node(device: torch.device) -> int:
    if device.type != "cuda":
        return _host_node()
    bus = _bus_of(torch.cuda.get_device_properties(device))
    return _number_in(Path("/sys/bus/pci/devices") / bus / "numa_node")


def _host_node() -> int:
    """On which the processors lie that this process may use; -1 where they lie on several."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    nodes = {int(node.name.removeprefix("node")) for cpu in cpus
             for node in Path(f"/sys/devices/system/cpu/cpu{cpu}").glob("node[0-9]*")}
    return nodes.pop() if len(nodes) == 1 else -1


def _number_in(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return -1
