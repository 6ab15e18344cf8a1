# SPDX-License-Identifier: Apache-2.0
"""Clients that serve: words, pictures, adapters and exported modules."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import anabranch
from cases.clients import (
    BACKEND,
    COMPILE,
    DEVICE,
    EAGER,
    LAYERS,
    RECORD,
    WIDTH,
    Client,
    Made,
    begin,
    calls,
    compiled_in_place,
    how_compiled,
    llama,
    llama_of_transformers,
    recorded,
    steps,
    words,
)

PROMPT, ANSWERED = 16, 64  # words
PICTURE, DENOISING = 256, 8  # pixels a side, and steps


def generate(way: str) -> Made:
    """Eager with a cache that grows, as by default; the others with a static one."""
    import transformers

    model = llama_of_transformers().to(torch.bfloat16).eval()
    how: dict[str, Any] = {"max_new_tokens": ANSWERED, "min_new_tokens": ANSWERED,
                           "do_sample": False, "pad_token_id": 0}
    if way != EAGER:
        how["cache_implementation"] = "static"
    if way in (COMPILE, BACKEND):
        how["compile_config"] = transformers.CompileConfig(
            mode=None, **({"backend": anabranch.backend} if way == BACKEND else {}))
    model.forward, made = recorded(model.forward, way)
    if way == RECORD:
        how["disable_compile"] = True
    prompt = words(1, PROMPT)
    return calls(lambda: model.generate(prompt, **how), ANSWERED, made)


def adapters(way: str) -> Made:
    """Two adapters in turn."""
    import peft

    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"],
                             init_lora_weights=False)
    model = peft.get_peft_model(llama_of_transformers().to(torch.bfloat16), config,
                                adapter_name="first")
    model.add_adapter("second", config)
    model.eval()
    if way != RECORD:
        compiled_in_place(model, way)
    call, made = recorded(model, way)
    prompt = words(1, 32)

    @torch.no_grad()
    def both() -> Tensor:
        answers = []
        for name in ("first", "second"):
            begin(way)
            model.set_adapter(name)
            answers.append(call(input_ids=prompt).logits.clone())
        return torch.stack(answers)

    return calls(both, 2, made)


def pictures(way: str) -> Made:
    """Latents of a Flux pipeline. Its blocks are compiled, or its transformer's forward recorded."""
    import diffusers

    torch.manual_seed(0)
    head = 64
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=LAYERS // 2, num_single_layers=LAYERS,
        attention_head_dim=head, num_attention_heads=WIDTH // head, joint_attention_dim=WIDTH,
        pooled_projection_dim=256, axes_dims_rope=(16, 24, 24)).to(DEVICE, torch.bfloat16).eval()
    if way in (COMPILE, BACKEND):
        transformer.compile_repeated_blocks(fullgraph=True, **how_compiled(way))
    transformer.forward, made = recorded(transformer.forward, way)
    pipeline = diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=None, text_encoder=None,
        tokenizer=None, text_encoder_2=None, tokenizer_2=None, transformer=transformer)
    pipeline.set_progress_bar_config(disable=True)
    noise = functools.partial(torch.randn, device=DEVICE, dtype=torch.bfloat16)
    texts = {"prompt_embeds": noise(1, 64, WIDTH), "pooled_prompt_embeds": noise(1, 256)}

    def draw() -> Tensor:
        return pipeline(**texts, height=PICTURE, width=PICTURE, num_inference_steps=DENOISING,
                        generator=torch.Generator(DEVICE).manual_seed(0), guidance_scale=1.0,
                        output_type="latent", return_dict=False)[0]

    return calls(draw, DENOISING, made)


def exported(way: str) -> Made:
    model, tables = llama(torch.bfloat16)
    given = words(2, 64), *tables
    sizes = ({0: torch.export.Dim("batch", min=2, max=64)}, None, None)
    module = torch.export.export(model.eval(), given, dynamic_shapes=sizes).module()
    compiled = module if way in (EAGER, RECORD) else torch.compile(module, **how_compiled(way))

    def answered(*given: Tensor) -> Tensor:
        with torch.no_grad():
            return compiled(*given)

    return steps(answered, way, *given)


CLIENTS = {
    "generate": Client("transformers", "a word", generate),
    "peft": Client("peft", "a call", adapters),
    "diffusers": Client("diffusers", "a denoising step", pictures,
                        (EAGER, COMPILE, BACKEND, RECORD)),
    "torch.export": Client("torch", "a call", exported),
}
