# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer over tiny models of random weights, with our line and without it, and what
a training leaves. transformers is imported when something is made."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from compare import tensors_of

# Of a log, what depends on the clock.
CLOCK = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "eval_runtime",
         "eval_samples_per_second", "eval_steps_per_second")
VOCABULARY, LENGTH = 100, 16


def texts(count: int, length: int = LENGTH) -> list[dict[str, torch.Tensor]]:
    """Texts and their labels, of which some are to be passed over."""
    found = []
    for i in range(count):
        tokens = torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(i))
        labels = tokens.clone()
        labels[:i % 5] = -100
        found.append({"input_ids": tokens, "labels": labels})
    return found


def llama(**settings: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
        "max_position_embeddings": 32, **settings}))


def make_trainer(folder: Any, *, kind: Any = None, model: Any = None, count: int = 22,
                 keywords: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
    """``arguments`` are those of TrainingArguments, ``keywords`` the Trainer's; 22 texts in batches
    of four leave a smaller last one."""
    import transformers

    given = transformers.TrainingArguments(str(folder), **{
        "num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "report_to": [], "logging_steps": 1, "learning_rate": 1e-3, "save_strategy": "no",
        "disable_tqdm": True, "seed": 1, "use_cpu": not torch.cuda.is_available(), **arguments})
    if given.n_gpu > 1:
        given._n_gpu = 1  # it would copy the model to all of them
    return (kind or transformers.Trainer)(
        model=llama() if model is None else model, args=given, train_dataset=texts(count),
        eval_dataset=texts(6), **(keywords or {}))


def left_by(trainer: Any) -> dict[str, Any]:
    """All that a training leaves: logs, weights, and the states of optimizer and scheduler."""
    optimizer = trainer.optimizer.state_dict()
    return {"logs": [{name: value for name, value in log.items() if name not in CLOCK}
                     for log in trainer.state.log_history],
            "steps": trainer.state.global_step,
            "rates": trainer.lr_scheduler.state_dict().get("_last_lr"),
            "tensors": {name: tensor.detach().cpu().clone() for path, thing in (
                ("weights", dict(trainer.model.named_parameters())),
                ("buffers", dict(trainer.model.named_buffers())),
                ("optimizer", optimizer["state"])) for name, tensor in tensors_of(thing, path)}}


def assert_left_the_same(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Bit for bit."""
    other = [(one, its) for one, its in zip(mine["logs"], theirs["logs"], strict=True)
             if repr(one) != repr(its)]  # a norm may be no number
    assert not other, f"from {other[0]} on, {len(other)} of {len(mine['logs'])} logs"
    assert (mine["steps"], mine["rates"]) == (theirs["steps"], theirs["rates"])
    assert mine["tensors"].keys() == theirs["tensors"].keys()
    for name, tensor in mine["tensors"].items():
        assert torch.equal(tensor, theirs["tensors"][name]), name


def train_both(make: Callable[[str], Any], recorded: Callable[[Any], Any],
               train: Callable[[Any], Any] = lambda trainer: trainer.train()) -> Any:
    """Trains without our line and with it, from the same seeds; all that is left is the same.
    ``make`` is given a name for the trainer's folder. Answers the trainer with our line."""
    found = []
    for name in ("plain", "recorded"):
        random.seed(0)
        torch.manual_seed(0)
        trainer = make(name)
        if name == "recorded":
            assert recorded(trainer) is trainer
        torch.manual_seed(2)
        train(trainer)
        found.append(left_by(trainer))
    assert_left_the_same(found[1], found[0])
    return trainer
