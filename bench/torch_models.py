# SPDX-License-Identifier: Apache-2.0
"""Small models without streams, against torch.compile.

Question: does a model that uses no stream lose anything? Each of the small modules that the tests
use, without annotations, with all cores for both: inference, and forward with backward.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch_common import (
    MISSED,
    ROOT,
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

sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))
from compare import weighted_sum
from zoo import ZOO, Case

REACH = 0.98
QUICK = ("mlp", "encoder")
# One changes its state at every call and one draws random numbers: no two calls are alike there,
# so the tests, not this, compare them with eager.
UNREPEATABLE = ("counter", "dropout", "writer")


def make_call(case: Case, model: torch.nn.Module, backend: str, train: bool):
    call = compile_with(lambda module, *inputs: module(*inputs), backend)
    inputs = case.inputs(0)

    def infer():
        with torch.no_grad():
            return call(model, *inputs)

    def step():
        for parameter in model.parameters():
            parameter.grad = None
        output = call(model, *inputs)
        weighted_sum(output).backward()
        return output

    return step if train else infer


def first_tensor(output) -> torch.Tensor:
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output.detach()


def measure(name: str, train: bool, backend: str, rounds: int) -> tuple[Row, dict[str, Sample]]:
    case, threads = ZOO[name], torch.get_num_threads()
    torch.manual_seed(1)
    model = case.make(False).train(train)
    rivals = []
    for rival, rival_backend in (("compile", "inductor"), ("ours", backend)):
        own, reference = copy.deepcopy(model), copy.deepcopy(model)
        call = make_call(case, own, rival_backend, train)
        found = first_tensor(call())
        if name not in UNREPEATABLE:
            wanted = first_tensor(reference(*case.inputs(0)))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        rivals.append(Rival(rival, call, threads))
    samples = race(rivals, rounds)
    torch.compiler.reset()
    figure, figure_spread = ratio(samples["ours"], samples["compile"])
    what = f"{name}, {'training' if train else 'inference'}"
    return Row(what, microseconds(samples["ours"]), microseconds(samples["compile"]), figure,
               figure_spread, REACH), samples


def main() -> bool:
    chosen = arguments(__doc__.splitlines()[0])
    rows, details = [], {}
    for name in QUICK if chosen.quick else ZOO:
        for train in (False, True):
            row, samples = measure(name, train, chosen.backend, chosen.rounds)
            rows.append(row)
            details[row.what] = raw(samples)
    print_table("Small models without streams", rows, chosen.backend)
    save("torch_models", __doc__, chosen, rows, rounds_us=details)
    return all(row.reached for row in rows)


if __name__ == "__main__":
    raise SystemExit(0 if main() else MISSED)
