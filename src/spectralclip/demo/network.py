"""The networks of the demonstration: a small one for digits, and the ways to train it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from spectralclip._models import FoundLayer
from spectralclip._training import Attachment, Method, attach
from spectralclip.methods import SpectralClip

BATCH = 64
MAX_NORM = 1.0


class Recipe(NamedTuple):
    """One way to train the network."""

    key: str  # for the names of files
    label: str  # for the table
    methods: tuple[Method, ...] = ()  # in the order of their work after each step
    rate: float = 0.02  # the highest learning rate
    # What scores are multiplied with before the softmax of the loss. A network whose Lipschitz
    # constant is 1 has scores that are close together: every digit would count as undecided.
    sharpness: float = 10.0


# The first three differ in nothing but the clipping. Their learning rate and sharpness are those
# at which the third learns well. The first learns better with others, which are in the last line:
# without it the table would credit clipping with what is owed to the learning rate.
RECIPES = (
    Recipe("unclipped", "none"),
    Recipe("layers", "layers", (SpectralClip(),)),
    Recipe("composition", "conv+BN", (SpectralClip(), SpectralClip(compose="conv_bn"))),
    Recipe("unclipped-tuned", "none, tuned", rate=0.1, sharpness=1.0),
)


def small_network(seed: int, width: int = 32) -> nn.Sequential:
    """A convolutional network with batch norm for 28x28 digits, with weights made from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 7 * 7, 10),
        )


def train(
    recipe: Recipe, images: Tensor, labels: Tensor, *, epochs: int, seed: int, width: int = 32
) -> nn.Module:
    """Train the network by a recipe; the same weights at first and batches for each recipe."""
    model = small_network(seed, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.rate, momentum=0.9)
    batches = -(-len(images) // BATCH)
    rates = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, total_steps=epochs * batches
    )
    generator = torch.Generator().manual_seed(seed)
    attachments = _attached(recipe, model, optimizer, images[:1], seed)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).split(BATCH):
            scores = recipe.sharpness * model(images[batch])
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, labels[batch]).backward()
            optimizer.step()
            rates.step()
    model.eval()
    for attachment in attachments:
        attachment.finalize()  # a full clip
    return model


def _attached(
    recipe: Recipe,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    example: Tensor,
    seed: int,
) -> list[Attachment]:
    """The methods of the recipe, at work from now on."""
    attachments: list[Attachment] = []
    for method in recipe.methods:
        # What an earlier method holds as it is, such as the dense layer, is not held twice.
        taken = {name for earlier in attachments for name in earlier.layers}

        def bound(name: str, layer: FoundLayer, taken: set[str] = taken) -> float | None:
            return None if name in taken else MAX_NORM

        attachments.append(
            attach(model, optimizer, example, method=method, max_norm=bound, seed=seed)
        )
    return attachments
