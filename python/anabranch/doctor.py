# SPDX-License-Identifier: Apache-2.0
"""What is there, what is off and why, as lines that fit into a bug report.

    python -m anabranch.doctor          # or anabranch.doctor.report()
    python -m anabranch.doctor --json   # or anabranch.doctor.as_json()

Torch is neither needed nor imported: its version is read from its metadata. On a machine with a
GPU a context is made on the first, as recording would. Failure: none; what cannot be found out is
said in its line.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from anabranch import config
from anabranch._requirements import OLDEST_TORCH, torch_version
from anabranch.errors import AnabranchError


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and what is off because of it."""

    name: str
    text: str
    off: str = ""  # empty: all is well


def installed_torch() -> str | None:
    """The installed torch's version, without importing it; None where there is none."""
    try:
        if importlib.util.find_spec("torch") is None:
            return None
        return importlib.metadata.version("torch")
    except (ImportError, ValueError, importlib.metadata.PackageNotFoundError):
        return None


def torch_has_cuda() -> bool:
    """Whether the installed torch is built for CUDA; False where there is none."""
    spec = importlib.util.find_spec("torch") if installed_torch() else None
    return bool(spec and spec.origin
                and (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").exists())


def core_count() -> int:
    """Cores that this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiler() -> str | None:
    """The C++ compiler that torch's Inductor would take: $CXX, else the platform's usual one."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(config.compiler_variable() or usual)


def _find_torch() -> Finding:
    oldest = ".".join(map(str, OLDEST_TORCH))
    version = installed_torch()
    if version is None:
        return Finding("torch", f"not installed (supported: {oldest} and newer)",
                       "torch.compile and every Python feature [E0604]; the C++ library works")
    if torch_version(version) < OLDEST_TORCH:
        return Finding("torch", f"{version} (supported: {oldest} and newer)",
                       "the torch backend [E0603]: pip install --upgrade torch")
    return Finding("torch", f"{version} (supported: {oldest} and newer)")


def _find_compiler() -> Finding:
    path = compiler()
    if path is None:
        return Finding("C++ compiler", "none found ($CXX, else g++)",
                       "compiling on a CPU [E0605]: install g++, or set CXX")
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20,
                              check=False)
        return Finding("C++ compiler", f"{path}: {told.stdout.splitlines()[0]}")
    except (OSError, IndexError, subprocess.SubprocessError) as error:
        return Finding("C++ compiler", f"{path}: does not run ({error})",
                       "compiling on a CPU [E0605]")


def _find_library() -> Finding:
    try:
        from anabranch._core.library import version
    except AnabranchError as error:
        return Finding("native library", str(error), "the C++ runtime")
    return Finding("native library", f"version {version}")


def _find_cuda() -> list[Finding]:
    """The driver, its GPUs and what recording needs of them; nothing where there is no library,
    which has a line of its own."""
    try:
        from anabranch._core.device import CudaFacts
    except AnabranchError:
        return []
    try:
        facts = CudaFacts()
    except AnabranchError as error:
        return [Finding("CUDA driver", str(error), "recording on a GPU")]
    major, minor = facts.driver_version // 1000, facts.driver_version % 1000 // 10
    found = [Finding("CUDA driver", f"for CUDA {major}.{minor}")]
    found += [Finding(f"CUDA {name}", why, "what needs it") for name, why in facts.features.items()
              if why]
    found += [Finding(f"GPU {ordinal}", name) for ordinal, name in enumerate(facts.gpus)]
    if not facts.gpus:
        return [*found, Finding("GPU", facts.why_no_gpus, "recording on a GPU")]
    return [*found, *_find_capture()]


def _find_capture() -> list[Finding]:
    """Our kernels and the memory of captures, on the first GPU."""
    from anabranch._core.capture import CaptureDevice, CaptureMemory

    try:
        device = CaptureDevice(0)
    except AnabranchError as error:
        return [Finding("capture device", str(error), "recording on a GPU")]
    why = device.why_no_device_code
    found = [Finding("device code", why, "setting addresses from the GPU: the host sets them")
             if why else Finding("device code", "loaded")]
    why = device.why_tensor_maps_are_opaque
    found.append(Finding("tensor maps", why, "recording of kernels that take them by value") if why
                 else Finding("tensor maps", "their addresses are plain words"))
    try:
        memory = CaptureMemory(device)
        memory.allocate(1)
        memory.close()
    except AnabranchError as error:
        return [*found, Finding("capture memory", str(error), "recording on a GPU")]
    return [*found, Finding("capture memory", "fresh addresses over one page")]


def _find_recording(cuda: list[Finding]) -> Finding:
    """Whether steps of torch are recorded, or the first reason why not."""
    missing = [row.name for row in cuda if row.off == "recording on a GPU"]
    if not _wants_recording():
        why = "switched off by an option"
    elif not torch_has_cuda():
        why = "the installed torch is built without CUDA" if installed_torch() \
            else "torch is not installed"
    elif missing or not cuda:
        why = f"see {missing[0] if missing else 'native library'}"
    else:
        return Finding("recording", "on")
    return Finding("recording", "off", f"steps of torch run as they are: {why}")


def _wants_recording() -> bool:
    try:
        return config.resolve().record
    except AnabranchError:
        return True


def _find_options() -> list[Finding]:
    try:
        values = config.resolve()
    except AnabranchError as error:
        return [Finding("options", str(error), "every compile, until this is mended")]
    changed = [f"{name}={getattr(values, name)!r}" for name, _, default, _ in config.describe()
               if getattr(values, name) != default]
    findings = [Finding("options", ", ".join(changed) or "all at their defaults")]
    switched = [name for name in ("streams", "native_regions") if not getattr(values, name)]
    findings += [Finding(name, "off", "switched off by an option") for name in switched]
    findings += [Finding(name, "unknown variable", "it has no effect: misspelt?")
                 for name in config.unknown_variables()]
    return findings


def findings() -> list[Finding]:
    """Everything looked at, in the order in which the report shows it."""
    cores = core_count()
    lanes = Finding("cores", str(cores),
                    "" if cores > 1 else "streams at the same time: one core runs them in turn")
    return [
        Finding("anabranch", _own_version()),
        Finding("python", f"{platform.python_version()} on {platform.platform()}"),
        _find_torch(),
        _find_compiler(),
        _find_library(),
        lanes,
        *(cuda := _find_cuda()),
        _find_recording(cuda),
        *_find_options(),
    ]


def _own_version() -> str:
    try:
        return importlib.metadata.version("anabranch")
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package (running from its source)"


def report() -> str:
    """All findings, a line each; what is off follows after an arrow."""
    rows = findings()
    width = max(len(row.name) for row in rows)
    return "\n".join(
        f"{row.name:<{width}}  {row.text}" + (f"\n{'':<{width}}  -> off: {row.off}"
                                              if row.off else "")
        for row in rows)


def as_json() -> dict[str, dict[str, Any]]:
    """All findings by name, as JSON takes them and as the C++ command words its own: whether it is
    on, what was found, and what is off because of it."""
    return {row.name: {"on": not row.off, "detail": row.text,
                       **({"off": row.off} if row.off else {})}
            for row in findings()}


def main(arguments: list[str] | None = None) -> int:
    """Answers the exit status: 2 for a wrong command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if given not in ([], ["--json"]):
        print("usage: python -m anabranch.doctor [--json]", file=sys.stderr)
        return 2
    print(json.dumps(as_json(), indent=2) if given else report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
