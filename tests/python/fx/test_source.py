# SPDX-License-Identifier: Apache-2.0
"""The lines of the user's code behind the nodes of a graph."""

import pytest
import torch
from torch.fx import Graph

from anabranch._fx.source import inherit_lines, source_of

pytestmark = pytest.mark.oldest
TRACE = '  File "/m/model.py", line 7, in forward\n    return self.left(x)'


def test_a_sum_that_autograd_makes_has_the_line_of_what_it_adds():
    graph = Graph()
    x = graph.placeholder("x")
    product = graph.call_function(torch.ops.aten.mm.default, (x, x))
    product.meta["stack_trace"] = TRACE
    other = graph.call_function(torch.ops.aten.mm.default, (x, x))
    total = graph.call_function(torch.ops.aten.add.Tensor, (other, product))
    total.meta["stack_trace"] = "Gradient addition node due to multiple use of tensor around:"
    inherit_lines(graph)
    assert source_of([total]) == "model.py:7" and source_of([other]) == ""
