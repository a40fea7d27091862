"""Methods as they are tried beside a training, and how near to their bounds they have to keep."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_cases import EXAMPLE, sgd, true_norms

from oracle import dense_norm
from spectralclip import Attachment, Method, attach
from spectralclip.methods import ClipBatchNorm, FastClip, SpectralClip


@dataclass(frozen=True)
class Tried:
    """A method, and how it keeps layers that training hardly moves.

    Attributes:
        make: Makes it.
        margin: How many times the bound the norm may be.
        lag: By which part of the norm the tracked one may be too small.
        steps: How many steps it takes to get there.
        parts: How many modules of a layer are held by that time.
    """

    make: Callable[[], Method]
    margin: float
    lag: float
    steps: int
    parts: int = 2


TRIED = {
    "FastClip": Tried(lambda: FastClip(lr=0.1, inner_steps=3, every=2), 1.25, 0.3, 44),
    # Compositions take hundreds of rounds.
    "FastClip-concat": Tried(
        lambda: FastClip(lr=0.1, every=2, concat=True, concat_lr=1e-3, concat_every=3),
        1.25,
        0.5,
        44,
        1,
    ),
    "ClipBatchNorm": Tried(ClipBatchNorm, 1 + 1e-6, 1e-6, 4),
    "SpectralClip": Tried(SpectralClip, 1.01, 0.05, 12),
    "SpectralClip-composed": Tried(lambda: SpectralClip(compose="conv_bn"), 1.03, 0.05, 12),
}


# Its rounds on compositions are unstable now and then, and say so.
undone = pytest.mark.filterwarnings("ignore:FastClip on layer .* was undone")


MARKS = {"FastClip-concat": [undone]}


over_methods = pytest.mark.parametrize(
    "tried",
    [pytest.param(each, id=name, marks=MARKS.get(name, ())) for name, each in TRIED.items()],
)


def attached(
    tried: Tried, model: nn.Module, optimizer: Any, max_norm: Any = 0.6, **settings: Any
) -> Attachment:
    return attach(model, optimizer, EXAMPLE, method=tried.make(), max_norm=max_norm, **settings)


def through_a_file(content: Any) -> Any:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "SGD": sgd,
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01),
}


over_optimizers = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def weights_of(attachment: Attachment) -> list[Tensor]:
    """The weights that the attached method may move."""
    return [
        parameter
        for layer in attachment.layers.values()
        for module in layer.modules
        for name, parameter in module.named_parameters()
        if not name.endswith("bias")
    ]


def assert_held(tried: Tried, attachment: Attachment) -> None:
    for name, layer in attachment.layers.items():
        norm = dense_norm(layer.modules[: tried.parts], layer.in_shapes[0])
        assert norm <= tried.margin * attachment.max_norms[name], name


def assert_known(tried: Tried, attachment: Attachment) -> None:
    """Tracked norms are not far off, and hardly ever too large."""
    for name, norm in true_norms(attachment).items():
        assert (1 - tried.lag) * norm <= attachment.norms()[name] <= 1.05 * norm, name
