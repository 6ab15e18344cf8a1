# SPDX-License-Identifier: Apache-2.0
"""What is there, what is off and why, as lines that fit into a bug report.

    python -m anabranch.doctor          # or anabranch.doctor.report()
    python -m anabranch.doctor --json   # or anabranch.doctor.as_json()
    python -m anabranch.doctor --test   # or anabranch.doctor.report(test=True)

Torch is neither needed nor imported: its version is read from its metadata. On a machine with a
GPU a context is made on the first, as recording would. With ``--test`` another process imports
torch, compiles a small model and, on a GPU, records a training step: some ten seconds, and at most
SELF_TEST_LIMIT_S. Nothing private is told: see ``anabranch._redact``. Failure: none; what cannot be
found out is said in its line.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from anabranch import config
from anabranch._redact import redact
from anabranch._requirements import OLDEST_TORCH, torch_version
from anabranch.errors import AnabranchError

# In their order, and what does not work where one has failed.
_IS_OFF = {"torch": "torch.compile and every Python feature", "compiler": "compiling on a CPU",
           "streams": "torch.compile with several streams", "recording": "recording on a GPU",
           "link": "plans of what goes to the host's memory"}
SELF_TESTS = tuple(_IS_OFF)
SELF_TEST_LIMIT_S = 60.0  # of all together


class Tested(NamedTuple):
    """What became of one self-test: "OK", "FAILED" or "not run"."""

    name: str
    became: str
    seconds: float
    found: str


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
        return Finding("C++ compiler", f"{Path(path).name}: {told.stdout.splitlines()[0]}")
    except (OSError, IndexError, subprocess.SubprocessError) as error:
        return Finding("C++ compiler", f"{Path(path).name}: does not run ({error})",
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


def _find_links() -> list[Finding]:
    """What has been measured of the GPUs' links to the host, here or by another process."""
    try:
        kept = json.loads((config.cache_folder() / "links.json").read_text())["links"]
        return [Finding(f"link of {name}", _told_link(kept[name])) for name in sorted(kept)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _told_link(link: dict[str, Any]) -> str:
    rates = {name: f"{rate / 1e9:.1f}" for name, rate in link.items() if name.endswith("_rate")}
    return (f"{rates['out_rate']} GB/s out, {rates['in_rate']} in; {rates['both_out_rate']} and "
            f"{rates['both_in_rate']} at once; {rates['pageable_out_rate']} and "
            f"{rates['pageable_in_rate']} with pageable memory; {link['latency_ns'] / 1e3:.1f} us "
            f"a copy; NUMA node {link['gpu_node']}, the process on {link['host_node']}")


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


def run_self_tests(limit_s: float = SELF_TEST_LIMIT_S) -> list[Tested]:
    """Each of SELF_TESTS, run by another process with this one's search path. One that crashes that
    process, or lasts until the limit, has failed; those behind it are not run."""
    program = (f"import runpy, sys; sys.path[:] = {sys.path!r}; "
               "runpy.run_module('anabranch._self_test', run_name='__main__')")
    begin = time.perf_counter()
    try:
        done = subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=limit_s, check=False)
        output, end = done.stdout, _how_it_ended(done)
    except subprocess.TimeoutExpired as late:
        output, end = late.stdout or b"", f"stopped at the limit of {limit_s:g} s"
    except OSError as error:
        output, end = b"", f"no other Python can be started: {error}"
    tested = list(_read_tested(output))
    left = SELF_TESTS[len(tested):]
    if left:
        spent = time.perf_counter() - begin - sum(row.seconds for row in tested)
        tested.append(Tested(left[0], "FAILED", spent, end))
    return tested + [Tested(name, "not run", 0.0, f"see {left[0]}") for name in left[1:]]


def _how_it_ended(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode < 0:
        return f"the process was ended by {signal.Signals(-done.returncode).name}"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return f"the process answered {done.returncode}: {said[-1] if said else 'it says nothing'}"


def _read_tested(output: bytes) -> Iterator[Tested]:
    for name, line in zip(SELF_TESTS, output.decode(errors="replace").splitlines(), strict=False):
        try:
            row = Tested(*json.loads(line))
        except (TypeError, ValueError):  # cut off in the middle
            return
        if row.name != name:
            return
        yield row


def _told(row: Tested) -> Finding:
    text = row.became if row.became == "not run" else f"{row.became}, {row.seconds:.1f} s"
    return Finding(f"test of {row.name}", f"{text}: {row.found}",
                   _IS_OFF[row.name] if row.became == "FAILED" else "")


def findings(test: bool = False) -> list[Finding]:
    """Everything looked at, in the order in which the report shows it; with ``test``, the
    self-tests behind it. Without private data."""
    rows = [*_find_all(), *(map(_told, run_self_tests()) if test else ())]
    return [Finding(row.name, redact(row.text), redact(row.off)) for row in rows]


def _find_all() -> list[Finding]:
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
        *_find_links(),
        *_find_options(),
    ]


def _own_version() -> str:
    try:
        return importlib.metadata.version("anabranch")
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package (running from its source)"


def report(test: bool = False) -> str:
    """All findings, a line each; what is off follows after an arrow."""
    return lines_of(findings(test))


def lines_of(rows: list[Finding]) -> str:
    """As ``report`` shows them."""
    width = max(len(row.name) for row in rows)
    return "\n".join(
        f"{row.name:<{width}}  {row.text}" + (f"\n{'':<{width}}  -> off: {row.off}"
                                              if row.off else "")
        for row in rows)


def as_json(test: bool = False) -> dict[str, dict[str, Any]]:
    """All findings by name, as JSON takes them and as the C++ command words its own: whether it is
    on, what was found, and what is off because of it."""
    return json_of(findings(test))


def json_of(rows: list[Finding]) -> dict[str, dict[str, Any]]:
    """As ``as_json`` answers them."""
    return {row.name: {"on": not row.off, "detail": row.text,
                       **({"off": row.off} if row.off else {})}
            for row in rows}


def exit_status(rows: list[Finding]) -> int:
    """1 where a self-test has failed. What is off otherwise is a state like others."""
    return int(any(row.name.startswith("test of ") and row.off for row in rows))


def main(arguments: list[str] | None = None) -> int:
    """Answers the exit status: 1 where a self-test failed, 2 for a wrong command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if {"--help", "-h"} & {*given}:
        print(__doc__.strip())
        return 0
    if unknown := set(given) - {"--json", "--test"}:
        print(f"not known: {' '.join(sorted(unknown))}\n"
              "usage: python -m anabranch.doctor [--json] [--test]", file=sys.stderr)
        return 2
    rows = findings("--test" in given)
    print(json.dumps(json_of(rows), indent=2) if "--json" in given else lines_of(rows))
    return exit_status(rows)


if __name__ == "__main__":
    sys.exit(main())
