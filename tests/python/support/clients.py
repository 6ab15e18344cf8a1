# SPDX-License-Identifier: Apache-2.0
"""What other people's libraries make, tiny and of random weights: the same for the tests on the CPU
and for those on a GPU. Each library is imported when something of it is made."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trainers import VOCABULARY, llama

RANK = 4


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(seed: int, *shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape or (2, 8), generator=seeded(seed))


def randn(seed: int, *shape: int) -> Tensor:
    """On the CPU, so that all devices see the same numbers."""
    return torch.randn(shape, generator=seeded(seed))


def lora(rank: int = RANK, alpha: int = 8) -> Any:
    """Of adapters that change what a Llama answers from the beginning."""
    import peft

    return peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=["q_proj", "v_proj"],
                           init_lora_weights=False)


def adapted(*names: str, config: Any = None, seed: int = 1) -> Any:
    """The Llama of ``trainers`` with an adapter of each name; the first is active."""
    import peft

    model = llama(attention_dropout=0.0)
    torch.manual_seed(seed)
    config = config or lora()
    found = peft.get_peft_model(model, config, adapter_name=names[0])
    for name in names[1:]:
        found.add_adapter(name, config)
    return found.eval()


def weights_of_adapter(model: Any) -> dict[str, Tensor]:
    """As ``peft.utils.hotswap`` takes them."""
    return {name: tensor for name, tensor in model.state_dict().items() if "lora_" in name}


def flux() -> Any:
    """A transformer of images with two blocks of each of its two kinds."""
    import diffusers

    torch.manual_seed(0)
    return diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8)).eval()


def flux_inputs(seed: int) -> dict[str, Tensor]:
    """Of a picture of four by four and a text of eight words."""
    places = torch.zeros(16, 3)
    places[:, 1], places[:, 2] = torch.arange(16) // 4, torch.arange(16) % 4
    return {"hidden_states": randn(seed, 1, 16, 4), "encoder_hidden_states": randn(50, 1, 8, 32),
            "pooled_projections": randn(51, 1, 32), "timestep": torch.tensor([1.0 - seed / 10]),
            "img_ids": places, "txt_ids": torch.zeros(8, 3)}


def flux_pipeline(transformer: Any) -> Any:
    """Without encoders of texts and without a decoder of pictures."""
    import diffusers

    pipeline = diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=None, text_encoder=None,
        tokenizer=None, text_encoder_2=None, tokenizer_2=None, transformer=transformer)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn(pipeline: Any, seed: int, device: str = "cpu") -> Tensor:
    """What a pipeline of ``flux_pipeline`` makes of noise in four steps, as latents."""
    texts = {"prompt_embeds": randn(50, 1, 8, 32).to(device),
             "pooled_prompt_embeds": randn(51, 1, 32).to(device)}
    return pipeline(**texts, height=64, width=64, num_inference_steps=4, generator=seeded(seed),
                    guidance_scale=1.0, output_type="latent", return_dict=False)[0]


def unet() -> Any:
    """As pipelines of pictures without texts have it."""
    import diffusers

    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
        block_out_channels=(8, 16), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8).eval()


def unet_pipeline(model: Any) -> Any:
    import diffusers

    pipeline = diffusers.DDIMPipeline(model, diffusers.DDIMScheduler(num_train_timesteps=50))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def pictured(pipeline: Any, seed: int) -> Tensor:
    """What a pipeline of ``unet_pipeline`` makes of noise in four steps."""
    return torch.as_tensor(pipeline(batch_size=1, num_inference_steps=4, generator=seeded(seed),
                                    output_type="np").images)


def classifier(**settings: Any) -> Any:
    """A small vision transformer of timm's, for pictures of 32 by 32."""
    import timm

    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=10, img_size=32, **settings)


def pictures(seed: int) -> tuple[Tensor, Tensor]:
    """Four of them, and what they show."""
    return randn(seed, 4, 3, 32, 32), torch.randint(0, 10, (4,), generator=seeded(seed))


def accelerated(accelerator: Any, model: nn.Module, optimizer: Any) -> Any:
    """A step over what an Accelerator has prepared, with clipping where gradients are complete."""
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Block(nn.Module):
    """Of a decoder: attention to what is before, and two layers behind it."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(self.before(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.down(F.silu(self.up(self.between(x))))


class Decoder(nn.Module):
    """Its blocks have the place and the names that torchtitan's have."""

    def __init__(self, width: int = 32, count: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok_embeddings = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleDict({str(i): Block(width) for i in range(count)})
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tok_embeddings(words)
        for block in self.layers.values():
            x = block(x)
        return self.output(self.norm(x))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def compile_as_torchtitan(model: Decoder, backend: Any) -> Any:
    """Each block whole and in place. Answers the loss, compiled as well."""
    for _, block in model.layers.named_children():
        block.compile(backend=backend, fullgraph=True)
    return torch.compile(cross_entropy, backend=backend)


def torchtitans_settings() -> dict[str, bool]:
    """Those of Dynamo's that it changes, as far as this torch has them."""
    return {name: True for name in ("capture_scalar_outputs",
                                    "skip_fwd_side_effects_in_bwd_under_checkpoint")
            if hasattr(torch._dynamo.config, name)}


def exported(model: nn.Module, x: Tensor) -> Any:
    """The module of its export, for batches of any size."""
    sizes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    return torch.export.export(model, (x,), dynamic_shapes=sizes).module()
