"""Who competes: methods that are attached, and layers that are orthogonal by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from benchmarks.certified.recipe import LIPSCHITZ, LayerType, Recipe, network
from benchmarks.training.models import seeded
from experiments.data import Dataset
from spectralclip import Attachment, Method, attach, init_at_bound_
from spectralclip.methods import AOL, LOT, SOC, Cayley, FastClip, Gouk, Parametrize, SpectralClip

OURS = "SpectralClip"
NONE = "none"


@dataclass(frozen=True)
class Competitor:
    """One way to train the network.

    Attributes:
        name: On the page.
        about: What it does, in a few words.
        method: What is attached; None for nothing.
        bounds: What the attachment is to hold: the network, or each layer.
        layers: The types of its convolutions and its dense layer, where they are not torch's.
    """

    name: str
    about: str
    method: Callable[[], Method] | None = None
    bounds: tuple[str, ...] = ("max_norm",)
    layers: Callable[[], tuple[LayerType, LayerType]] | None = None

    def model(self, recipe: Recipe, dataset: Dataset, seed: int) -> nn.Module:
        """The network at its start: every layer orthogonal, with norm 1."""
        if self.layers is not None:  # these begin at orthogonal weights of their own
            conv, dense = self.layers()
            return seeded(lambda: network(recipe, dataset, conv, dense), seed)
        model = seeded(lambda: network(recipe, dataset), seed)
        generator = torch.Generator().manual_seed(seed)
        example = torch.zeros(1, *dataset.in_shape)
        init_at_bound_(model, example, max_lipschitz=LIPSCHITZ, generator=generator)
        return model

    def attach(
        self, model: nn.Module, optimizer: Optimizer, example: torch.Tensor, seed: int
    ) -> Attachment | None:
        """The method at work, if there is one."""
        if self.method is None:
            return None
        bounds: dict[str, Any] = dict.fromkeys(self.bounds, LIPSCHITZ)
        return attach(model, optimizer, example, method=self.method(), seed=seed, **bounds)


def aoc_layers() -> tuple[LayerType, LayerType]:
    """Convolutions and dense layers of orthogonium, with its defaults: circular padding."""
    try:
        convolutions = import_module("orthogonium.layers.conv.AOC")
        dense = import_module("orthogonium.layers.linear.ortho_linear")
    except ImportError as error:
        raise ImportError(
            f"The AOC layers need the package 'orthogonium': {error}. "
            'pip install "spectralclip[orthogonal]"',
            name=error.name,
        ) from error
    return convolutions.AdaptiveOrthoConv2d, dense.OrthoLinear


def finish(model: nn.Module, attachment: Attachment | None) -> None:
    """End the training: clip and certify what was held, and leave plain layers of torch."""
    if attachment is not None:
        attachment.finalize(certify=True)
    for name, module in model.named_children():
        if parametrize.is_parametrized(module, "weight"):
            setattr(model, name, _plain(module))


@torch.no_grad()
def _plain(module: Any) -> nn.Module:
    """Torch's own layer with the weight that a parametrization computes in evaluation."""
    module.eval()
    plain: nn.Module
    if isinstance(module, nn.Conv2d):
        plain = nn.Conv2d(
            module.in_channels,
            module.out_channels,
            module.kernel_size,
            padding=module.padding,
            padding_mode=module.padding_mode,
            bias=module.bias is not None,
        )
    else:
        plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
    plain.weight.copy_(module.weight)
    if module.bias is not None:
        plain.bias.copy_(module.bias)
    return plain


_ALL = (
    Competitor(NONE, "nothing is held"),
    Competitor(OURS, "clips after each step; the network at 1", SpectralClip, ("max_lipschitz",)),
    Competitor(
        "Parametrize", "divides by the true norm; the network at 1", Parametrize, ("max_lipschitz",)
    ),
    Competitor("AOL", "one factor for each input channel", AOL),
    Competitor("SOC", "exponentials, exact", SOC),
    Competitor("Cayley", "Cayley transforms, by orthogonium", Cayley),
    Competitor("LOT", "inverse square roots by Newton's iteration", LOT),
    Competitor("AOC", "layers of orthogonium, swapped in", layers=aoc_layers),
    Competitor("Gouk", "divides by an estimate after each step", Gouk),
    Competitor("FastClip", "one power iteration a step, a clip every 100", FastClip),
)
COMPETITORS = {competitor.name: competitor for competitor in _ALL}
