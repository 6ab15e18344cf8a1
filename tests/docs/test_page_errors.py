# SPDX-License-Identifier: Apache-2.0
"""The sample messages of docs/errors.md, as the Python package words them."""

from __future__ import annotations

import re

import pytest
import torch
from pages import ROOT

import anabranch
from anabranch import config


def step(x):
    yield x


PROVOKED = {
    "E0601": lambda: anabranch.stream(3),
    "E0608": lambda: anabranch.stream("side", priority="high"),
    "E0611": lambda: anabranch.record(step, state=torch.nn.Linear(2, 2)),
    "E0612": lambda: anabranch.record(step),
    "E0701": lambda: config.resolve({"strem": True}),
    "E0702": lambda: config.resolve({"max_threads": "two"}),
    "E0703": lambda: config.resolve({"max_threads": 0}),
    "E0704": lambda: anabranch.backend(None, [], mode="max-autotune"),
}


@pytest.mark.parametrize("code", PROVOKED)
def test_the_sample_is_what_is_raised(code):
    page = (ROOT / "docs/errors.md").read_text()
    sample = re.search(rf"^## {code} .*?^```text\n(.*?)\n^```", page, re.MULTILINE | re.DOTALL)
    with pytest.raises(anabranch.AnabranchError) as caught:
        PROVOKED[code]()
    assert str(caught.value) == sample[1]
