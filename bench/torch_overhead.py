# SPDX-License-Identifier: Apache-2.0
"""What one call costs beside its work.

Question: what does calling a compiled graph of eight small inputs cost, on one stream and on two,
against torch.compile? The graph adds one to each input: almost no work, so what is left is guards,
the runtime wrapper and the launch. With two streams half of the inputs belong to each; there is no
target for that line, it says what waking a second thread costs.
"""

from __future__ import annotations

import torch
from torch_common import (
    MISSED,
    Rival,
    Row,
    Sample,
    arguments,
    compile_with,
    microseconds,
    print_table,
    race,
    ratio,
    raw,
    save,
)

import anabranch

INPUTS, ELEMENTS = 8, 16


def plain(*tensors):
    return [tensor + 1 for tensor in tensors]


def on_two_streams(*tensors):
    half = len(tensors) // 2
    with anabranch.stream("a"):
        first = [tensor + 1 for tensor in tensors[:half]]
    with anabranch.stream("b"):
        second = [tensor + 1 for tensor in tensors[half:]]
    return first + second


def measure(function, what: str, reach: float | None, backend: str, rounds: int
            ) -> tuple[Row, dict[str, Sample]]:
    tensors = [torch.randn(ELEMENTS) for _ in range(INPUTS)]
    rivals = []
    for name, rival_function, rival_backend in (("compile", plain, "inductor"),
                                                ("ours", function, backend)):
        compiled = compile_with(rival_function, rival_backend)
        torch.testing.assert_close(compiled(*tensors), plain(*tensors))
        rivals.append(Rival(name, lambda compiled=compiled: compiled(*tensors), 2))
    samples = race(rivals, rounds)
    torch.compiler.reset()
    # Here the figure is a cost, ours over theirs, and at most `reach`.
    figure, figure_spread = ratio(samples["compile"], samples["ours"])
    return Row(what, microseconds(samples["ours"]), microseconds(samples["compile"]), figure,
               figure_spread, reach, at_least=False), samples


def main() -> bool:
    chosen = arguments(__doc__.splitlines()[0])
    rows, details = [], {}
    with torch.no_grad():
        for function, what, reach in ((plain, "8 inputs, one stream", 1.0),
                                      (on_two_streams, "8 inputs, two streams", None)):
            row, samples = measure(function, what, reach, chosen.backend, chosen.rounds)
            rows.append(row)
            details[what] = raw(samples)
    print_table("One call of an identity-like graph", rows, chosen.backend)
    save("torch_overhead", __doc__, chosen, rows, rounds_us=details)
    return all(row.reached for row in rows)


if __name__ == "__main__":
    raise SystemExit(0 if main() else MISSED)
