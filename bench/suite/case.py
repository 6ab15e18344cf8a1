# SPDX-License-Identifier: Apache-2.0
"""A model of the suite, ready to be called: its weights, inputs and loss in some precision."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import hf_models
import torch
from lists import SCALED_LOSS, Entry

SEED = 1337


@dataclasses.dataclass
class Case:
    """``autocast`` is the type to which it casts, if any."""

    model: torch.nn.Module
    positional: tuple[torch.Tensor, ...]
    named: dict[str, torch.Tensor]
    loss_of: Callable[[Any], torch.Tensor]
    device: str
    autocast: torch.dtype | None = None

    def forward(self, model: Callable[..., Any], *positional: torch.Tensor,
                **named: torch.Tensor) -> Any:
        with self._casting():
            return model(*positional, **named)

    def loss(self, model: Callable[..., Any], *positional: torch.Tensor,
             **named: torch.Tensor) -> torch.Tensor:
        with self._casting():
            return self.loss_of(model(*positional, **named))

    def _casting(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, self.autocast)

    def copied(self, dtype: torch.dtype | None = None) -> Case:
        """With weights of its own, all in that type and without autocast if one is given."""
        other = dataclasses.replace(self, model=copy.deepcopy(self.model))
        return other.to(dtype) if dtype is not None else other

    def to(self, dtype: torch.dtype) -> Case:
        """The same model, cast in place."""
        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        return dataclasses.replace(
            self, model=self.model.to(dtype), autocast=None,
            positional=tuple(map(cast, self.positional)),
            named={name: cast(tensor) for name, tensor in self.named.items()})

    def in_precision(self, precision: str) -> Case:
        if precision == "bfloat16":
            return self.to(torch.bfloat16)
        return dataclasses.replace(self, autocast=torch.bfloat16 if precision == "amp" else None)


def make_model(entry: Entry) -> torch.nn.Module:
    """With random weights, on the default device."""
    if entry.list == "hf":
        return hf_models.make(entry.name)
    if entry.list == "timm":
        import timm

        return timm.create_model(entry.name, pretrained=False, drop_rate=0.0)
    import torchvision

    return torchvision.models.get_model(entry.name, weights=None)


def image_size(entry: Entry, model: torch.nn.Module, is_training: bool) -> tuple[int, ...]:
    if entry.list == "torchbench":
        return (3, 224, 224)
    from timm.data import resolve_data_config

    return resolve_data_config({}, model=model, use_test_size=not is_training)["input_size"]


def _first_result(output: Any) -> torch.Tensor:
    return output[0]


def mean_loss(scale: float) -> Callable[[Any], torch.Tensor]:
    """Of the first result: small losses, since large ones make gradients hard to compare."""
    def loss_of(output: Any) -> torch.Tensor:
        return (output[0] if isinstance(output, (tuple, list)) else output).mean() * scale

    return loss_of


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) and module.p > 0:
            module.p = hf_models.NO_DROPOUT
    return model


def make_case(entry: Entry, batch: int, kind: str, device: str) -> Case:
    """In single precision; alike in every process of a machine, since the seed is."""
    torch.manual_seed(SEED)
    with torch.device(device):
        model = without_dropout(make_model(entry)).train(kind == "training")
        if entry.list == "hf":
            return Case(model, (), hf_models.make_inputs(entry.name, model, batch),
                        _first_result, device)
        images = torch.randn(batch, *image_size(entry, model, kind == "training"))
    return Case(model, (images,), {}, mean_loss(1e-3 if entry.name in SCALED_LOSS else 1.0), device)
