# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a capture are told to be, and from which line: of the CPU's work, with a counter
in place of a capture."""

from __future__ import annotations

import inspect

import pytest
import torch
from noting import Marks, compiled, overwrite, tuner_of
from torch import nn

from anabranch import _compat
from anabranch._record.capture.access_notes import AccessNotes
from anabranch._record.capture.labels import Labels

pytestmark = [pytest.mark.oldest, pytest.mark.own]


def labelled(run, around=lambda notes: notes.noted()):
    """(mark, operator, text of the line) of what is run, and how many marks there were."""
    marks, labels = Marks(), Labels()
    notes = AccessNotes(marks, "cpu", labels=labels)
    with around(notes):
        run()
    found = [(mark, labels.of(mark)) for mark in range(marks.count + 2)]
    return [(mark, label.operator, label.line.text if label.line else None)
            for mark, label in found if label is not None], marks.count


def test_a_piece_has_its_operator_and_the_line_that_called_it():
    x = torch.ones(2, 2)

    def run():
        torch.mm(x, x)
        x.add_(1)

    assert labelled(run)[0] == [(2, "aten::mm", "torch.mm(x, x)"), (4, "aten::add_", "x.add_(1)")]


def test_what_is_unknown_has_its_name_and_what_comes_behind_all_has_none():
    x = torch.ones(2)
    found, count = labelled(lambda: overwrite(x))
    assert found[0] == (2, "anabranch_test::overwrite", "found, count = labelled(lambda: "
                                                        "overwrite(x))")
    assert all(mark <= count for mark, *_ in found)  # nodes that come later have another mark


def test_a_generated_kernel_has_the_name_that_the_gpu_knows():
    tuner, x = tuner_of(["in_ptr0", "out_ptr0"]), torch.ones(2)
    tuner.inductor_meta["kernel_name"] = "triton_poi_fused_add_0"
    [(_, name, line)], _ = labelled(lambda: tuner.run(x, x, 2, stream=0))
    assert name == "triton_poi_fused_add_0" and "tuner.run" in line
    of_user = tuner_of(["in_ptr0"], custom=True)
    [(_, name, _)], _ = labelled(lambda: of_user.run(x, 2, stream=0))
    assert name == "triton_poi_fused_0"


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        x = self.first(x).sin()
        return self.second(x)


def test_operators_of_compiled_graphs_have_lines_of_the_model_forward_and_backward():
    model, x = Two(), torch.randn(2, 4, requires_grad=True)
    call = compiled(model)

    def run():
        call(x).sum().backward()

    run()
    found, _ = labelled(run, lambda notes: notes.known_calls())
    products = [line for _, name, line in found if name == "aten::mm"]
    assert set(products[:2]) == {"x = self.first(x).sin()", "return self.second(x)"}
    assert products[2:] and set(products[2:]) == set(products[:2])


def test_steps_of_optimizers_have_the_line_that_steps():
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=True)

    def run():
        optimizer.step()

    found, _ = labelled(run, lambda notes: notes.known_calls())
    assert {line for *_, line in found} == {"optimizer.step()"}


def test_files_that_inductor_has_not_generated_have_no_lines_behind_them():
    path = inspect.getsourcefile(labelled)
    assert _compat.lines_behind_generated_code(path, 1) is None
