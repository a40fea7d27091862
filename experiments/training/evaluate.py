"""How good a model is: its accuracy on test images, as they are and under attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from experiments.attacks import carlini_wagner_l2, pgd_linf, robust_accuracy
from experiments.attacks._inputs import Protocol
from experiments.training.batches import generator, pixels
from experiments.training.config import TrainConfig
from experiments.training.process_group import ProcessGroup

if TYPE_CHECKING:
    from experiments.data import Dataset

TEST_BATCH, ATTACK_BATCH = 500, 100
Judge = Callable[[Tensor, Tensor, int], int]
Attack = Callable[[Tensor, Tensor, int], Tensor]


def test_accuracy(
    model: nn.Module, data: Dataset, config: TrainConfig, group: ProcessGroup
) -> float:
    """The share of test images that a model in evaluation mode gets right."""

    @torch.no_grad()
    def judge(images: Tensor, labels: Tensor, chunk: int) -> int:
        return int((model(images).argmax(1) == labels).sum())

    return _share(judge, data, config, group, len(data.test_images), TEST_BATCH)


def attacked_accuracy(
    name: str,
    protocol: Protocol,
    model: nn.Module,
    data: Dataset,
    config: TrainConfig,
    group: ProcessGroup,
    say: Callable[[float], None],
) -> float | None:
    """The share of some test images that stay right under an attack; None if there is none.

    Which they are is drawn by the seed, so that seeds tell how much that matters too. Where test
    images are a part of all, that part was drawn by the seed, and its first images are taken.

    Args:
        name: Of the attack.
        protocol: Of the attack.
        model: In evaluation mode.
        data: Its test images are attacked.
        config: With the attack's settings.
        group: The processes share the images.
        say: Called with the share that is done.
    """
    settings = dict((config.attacks or {}).get(name) or {})
    if not settings:
        return None
    wanted = settings.pop("images")
    images = len(data.test_images) if wanted is None else min(wanted, len(data.test_images))

    attack = _attack(name, protocol, model, config, settings)

    def judge(batch: Tensor, labels: Tensor, chunk: int) -> int:
        moved = attack(batch, labels, chunk)
        say((chunk + 1) * ATTACK_BATCH / images)
        return round(robust_accuracy(model, batch, moved, labels) * len(batch))

    order = None
    if config.test_images is None and images < len(data.test_images):
        chance = generator(config.seed, "attacked")
        order = torch.randperm(len(data.test_images), generator=chance)
    return _share(judge, data, config, group, images, ATTACK_BATCH, order)


def _attack(
    name: str,
    protocol: Protocol,
    model: nn.Module,
    config: TrainConfig,
    settings: Mapping[str, Any],
) -> Attack:
    def cw(images: Tensor, labels: Tensor, chunk: int) -> Tensor:
        # Accuracies do not depend on how near the broken points are: the first will do.
        return carlini_wagner_l2(
            model, images, labels, protocol=protocol, stop_early=True, **settings
        )

    def pgd(images: Tensor, labels: Tensor, chunk: int) -> Tensor:
        starts = generator(config.seed, "pgd", chunk)
        return pgd_linf(model, images, labels, protocol=protocol, generator=starts, **settings)

    return {"cw": cw, "pgd": pgd}[name]


def _share(
    judge: Judge,
    data: Dataset,
    config: TrainConfig,
    group: ProcessGroup,
    images: int,
    batch: int,
    order: Tensor | None = None,
) -> float:
    """The share of the first images, in their order or this one, that are judged to be right."""
    right = 0
    for chunk in range(group.rank, -(-images // batch), group.size):
        part: slice | Tensor = slice(chunk * batch, min((chunk + 1) * batch, images))
        if order is not None:
            part = order[part]
        inputs = pixels(data.test_images[part], config, group.device)
        right += judge(inputs, data.test_labels[part].to(group.device), chunk)
    return group.total([right])[0] / images
