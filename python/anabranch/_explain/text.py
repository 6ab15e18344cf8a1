# SPDX-License-Identifier: Apache-2.0
"""The report as text, as wide as the terminal.

Threads: any. Failure: none.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from anabranch import config
from anabranch._compile.report import GraphReport
from anabranch._offload.planned import mib
from anabranch._record.report import RecordingReport
from anabranch.errors import code_text

_LEAST_COLUMNS = 40
_MOST_LINES = 3  # of a region's source lines
_MOST_TENSORS = 16  # lines about what a forward saves
_BOLD, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[33m", "\x1b[0m"
_REASON = re.compile(r"fell back:|unrecorded:|not recorded as one:|under Python's lock \(|"
                     r"for want of memory:|in captured order:|streams without effect|no effect")


def describe_graph(name: str, report: GraphReport, contents: dict[str, Any]) -> str:
    """``contents`` are those of ``report``."""
    took = ", ".join(f"{phase} {seconds:.1f} s"
                     for phase, seconds in report.phase_seconds.items())
    made = f"compiled in {report.seconds:.1f} s ({took})" if took else "from torch's cache"
    head = f"{name}, {report.nodes} operators, {made}"
    if report.streamed is None:
        why = f"fell back: {report.reason}" if report.reason else "one stream"
        if report.unrecorded:
            why += f"; not recorded as one: {report.unrecorded}"
            why += f" [{code_text(report.code)}]" if report.code else ""
        lines = [f"  {contents['summary']} ({why})", *_sources(contents["lines"])]
    else:
        lines = [f"  {contents['summary']}", *_memory(contents["memory"])]
        if contents["plan"] is not None:
            lines += ["  regions:", *map(_region, contents["regions"]), *_waits(contents)]
    if report.activations is not None:
        told = list(report.activations.lines())
        left = len(told) - _MOST_TENSORS
        lines += [f"  {line}" for line in told[:_MOST_TENSORS]]
        lines += [f"    and {left} more"] if left > 0 else []
    return with_recordings("\n".join([head, *lines]), report.recordings)


def with_recordings(head: str, reports: Sequence[RecordingReport]) -> str:
    lines = [head, *(textwrap.indent(str(report), "  ") for report in reports)]
    made = sum(report.nodes > 0 for report in reports)
    if made:
        dropped = sum(report.nodes > 0 and report.dropped for report in reports)
        peak = max(report.launch_peak_bytes for report in reports)
        answered = max(report.answered_bytes for report in reports)
        lines.append(f"  recordings: {made} made, launched "
                     f"{sum(report.launched for report in reports)} times, {dropped} dropped; a "
                     f"launch takes {mib(peak)} at its peak, and answers "
                     f"{mib(answered)}")
    return "\n".join(lines)


def describe_stalls(stalls: Sequence[dict[str, Any]]) -> str:
    """What held timed steps up, the longest first."""
    return "\n".join(["what held the timed steps up:", *(
        f"  {row['what']}: {row['why']} ({row['where']})\n    {row['remedy']}" for row in stalls)])


def fit(text: str, columns: int | None = None) -> str:
    """Long lines wrapped, their rest indented. By default as wide as the terminal; where there is
    none, lines stay whole, so that they can be searched."""
    return "\n".join(piece for pieces in _wrapped(text, columns) for piece in pieces)


def write(text: str, to: IO[str]) -> None:
    """With colours where that is a terminal and nobody has set NO_COLOR."""
    if not to.isatty() or config.wants_no_colour():
        to.write(fit(text) + "\n")
        return
    for pieces in _wrapped(text, None):
        colour = (_BOLD if not pieces[0].startswith(" ") else
                  _YELLOW if _REASON.search(" ".join(pieces)) else "")
        for piece in pieces:
            to.write(f"{colour}{piece}{_PLAIN if colour else ''}\n")


def _wrapped(text: str, columns: int | None) -> Iterator[list[str]]:
    """By line the pieces that it is wrapped into."""
    if columns is None:
        columns = _columns_of_terminal()
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        width = max(columns, _LEAST_COLUMNS)
        yield [line] if not columns or len(line) <= width else textwrap.wrap(
            line, width, subsequent_indent=indent, break_on_hyphens=False)


def _columns_of_terminal() -> int:
    """0 where the program does not write to one, whatever $COLUMNS says."""
    with contextlib.suppress(Exception):  # there may be no standard output, or a closed one
        if sys.stdout.isatty():
            return shutil.get_terminal_size(fallback=(0, 0)).columns
    return 0


def _sources(lines: list[dict[str, Any]]) -> Iterator[str]:
    if lines:
        yield f"  lines: {_places(lines)}"


def _places(lines: Iterable[dict[str, Any]]) -> str:
    """"model.py:9, 10, 12": the file again where it is another."""
    texts: list[str] = []
    last = None
    for line in lines:
        if len(texts) == _MOST_LINES:
            return ", ".join([*texts, "..."])
        file = line["file"]
        name = f"{file.rsplit('/', 1)[-1]}:" if file != last else ""
        texts.append(f"{name}{line['line']}")
        last = file
    return ", ".join(texts)


def _memory(memory: dict[str, int] | None) -> Iterator[str]:
    if memory is not None:
        yield (f"  beside the arena: outputs {memory['outputs_bytes']} bytes, inputs that are "
               f"written {memory['inputs_bytes']}, constants and other inputs "
               f"{memory['constants_bytes']}")


def _region(region: dict[str, Any]) -> str:
    how = region["runs_as"]
    if region["reason"] is not None:
        how += f" ({region['reason']})"
    elif region["calls"] is not None:
        how += f", {region['calls']} calls"
    else:
        how += f" on stream {region['stream']}"
    places = _places(region["lines"])
    return (f"    {region['name']:<14} {region['operators']:>4} operators   {how}"
            f"{f'   {places}' if places else ''}")


def _waits(contents: dict[str, Any]) -> list[str]:
    if not contents["waits"]:
        return ["  waits: none"]
    return ["  waits:", *(f"    {step} waits for {on}" for step, on in contents["waits"])]
