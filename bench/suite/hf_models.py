# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face models of the suite: configurations with random weights, and random inputs."""

from __future__ import annotations

from typing import Any

import torch

# name -> the class it stands for, and what its published configuration changes of the default one
STANDS_FOR: dict[str, tuple[str, dict[str, Any]]] = {
    "AllenaiLongformerBase": ("LongformerForMaskedLM", {
        "attention_window": [512] * 12, "vocab_size": 50265, "max_position_embeddings": 4098,
        "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "CamemBert": ("CamembertForMaskedLM", {
        "vocab_size": 32005, "max_position_embeddings": 514, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5, "bos_token_id": 5, "eos_token_id": 6}),
    "DistillGPT2": ("GPT2LMHeadModel", {"n_layer": 6}),
    "GoogleFnet": ("FNetForMaskedLM", {"tpu_short_seq_length": 512}),
    "T5Small": ("T5ForConditionalGeneration", {"pad_token_id": 0, "decoder_start_token_id": 0}),
    "YituTechConvBert": ("ConvBertForMaskedLM", {}),
}
LENGTHS = (  # the first beginning of the name that fits
    (("Blenderbot", "MobileBert"), 128),
    (("GPT2", "Bart", "T5", "PLBart", "MBart", "AllenaiLongformerBase"), 1024),
    (("OPT",), 2048),
    (("Albert", "Deberta", "Layout", "Electra", "XLNet", "MegatronBert", "Bert", "Roberta",
      "DistillGPT2", "GoogleFnet", "YituTechConvBert"), 512),
    (("TrOCR",), 256),
    (("",), 128),
)
NO_DROPOUT = 1e-30  # drops nothing, and what dropout costs is still there


def make(name: str) -> torch.nn.Module:
    """On the default device. Raises AttributeError where transformers has no such class."""
    import transformers

    class_name, changes = STANDS_FOR.get(name, (name, {}))
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**changes)
    if name.startswith(("GPT2For", "Roberta")):
        config.pad_token_id = 0
    for attribute, value in list(vars(config).items()):
        if "drop" in attribute and isinstance(value, float) and value > 0:
            setattr(config, attribute, NO_DROPOUT)
    model = model_class(config)
    model.config.use_cache = False
    return model


def length_of(name: str) -> int:
    return next(length for beginnings, length in LENGTHS if name.startswith(beginnings))


def make_inputs(name: str, model: Any, batch: int) -> dict[str, torch.Tensor]:
    """With labels, on the default device; by the generators of torch."""
    length, vocabulary = length_of(name), model.config.vocab_size
    ids = torch.randint(0, 1 if name.startswith("Roberta") else vocabulary, (batch, length))
    if "Bart" in name:
        ids[:, -1] = model.config.eos_token_id
    inputs = {"input_ids": ids}
    if name.startswith(("T5", "MT5", "M2M100")):
        inputs["decoder_input_ids"] = ids
    if name.endswith("QuestionAnswering"):
        inputs["start_positions"] = torch.randint(0, length, (batch,))
        inputs["end_positions"] = torch.randint(0, length, (batch,))
    elif name.endswith("SequenceClassification"):
        inputs["labels"] = torch.randint(0, model.config.num_labels - 1, (batch,))
    else:
        inputs["labels"] = torch.randint(0, vocabulary - 1, (batch, length))
    return inputs
