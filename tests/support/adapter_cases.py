"""Files of adapters in the names of those who write them, and models that hold some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def factors(seed: int, out: int, inp: int, rank: int, *kernel: int) -> tuple[Tensor, Tensor]:
    """A and B of an update, dense or of a convolution."""
    A = normal(seed, rank, inp, *kernel) / inp**0.5
    return A, normal(seed + 1000, out, rank, *(1 for _ in kernel)) / 2


def dense(A: Tensor, B: Tensor, scale: float) -> Tensor:
    """The update as a weight, in float64, without the library."""
    return scale * torch.einsum("or,ri...->oi...", B.double().flatten(1), A.double())


def kohya(seed: int = 0, alpha: float = 8.0) -> dict[str, Tensor]:
    """Two layers, one of them a convolution, with an alpha beside each."""
    tensors = {}
    for number, (name, shape) in enumerate(KOHYA_LAYERS.items()):
        A, B = factors(10 * seed + number, *shape)
        tensors[f"{name}.lora_down.weight"], tensors[f"{name}.lora_up.weight"] = A, B
        tensors[f"{name}.alpha"] = torch.tensor(alpha)
    return tensors


KOHYA_LAYERS = {"lora_unet_mid_conv": (6, 5, 3, 3, 3), "lora_unet_mid_to_q": (12, 20, 4)}


def kohya_base(seed: int = 7) -> dict[str, Tensor]:
    """The weights that `kohya` is added to, named as their model names them."""
    return {
        "model.mid.conv.weight": normal(seed, 6, 5, 3, 3),
        "model.mid.to_q.weight": normal(seed, 12, 20) / 3,
        "model.mid.to_q.bias": normal(seed, 12),
    }


def peft_tensors(seed: int = 0, rank: int = 4) -> dict[str, Tensor]:
    tensors = {}
    for number, name in enumerate(("layers.0.q_proj", "layers.1.q_proj")):
        A, B = factors(seed + number, 12, 20, rank)
        tensors[f"base_model.model.{name}.lora_A.weight"] = A
        tensors[f"base_model.model.{name}.lora_B.weight"] = B
    return tensors


def write_peft(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    """A folder as `save_pretrained` of peft leaves it."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    known = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(known))
    return folder


class Adapted(nn.Linear):
    """A layer with an adapter beside it, as many write them by hand."""

    def __init__(self, rank: int = 3, seed: int = 0, **known: float) -> None:
        super().__init__(20, 12)
        A, B = factors(seed, 12, 20, rank)
        self.lora_A, self.lora_B = nn.Parameter(A), nn.Parameter(B)
        for key, value in known.items():
            setattr(self, key, value)
