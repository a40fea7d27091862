"""A run in progress: what it is made of, and how it is put aside and taken up again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from experiments import data as datasets
from experiments import methods, models
from experiments.experiment import Context
from experiments.measuring.norms import layers_to_measure
from experiments.training.batches import generator, pixels
from experiments.training.checkpoint import Checkpoint
from experiments.training.config import TrainConfig
from experiments.training.process_group import ProcessGroup
from spectralclip import Attachment, FoundLayer, attach, init_at_bound_
from spectralclip._models import Compose


@dataclass
class Run:
    """A network in training.

    Attributes:
        config: Its configuration.
        context: Where it runs.
        group: The processes that train it.
        data: Images and labels.
        model: The bare network.
        wrapped: What batches go through.
        optimizer: Of its parameters.
        attachments: The methods at work.
        layers: Those whose norms are taken after each epoch.
        at_the_end: Those whose norms are taken at the end.
        parameters: How many the network has.
        epochs: What was measured so far.
        seconds: The time that training took in each of them.
    """

    config: TrainConfig
    context: Context
    group: ProcessGroup
    data: datasets.Dataset
    model: nn.Module
    wrapped: nn.Module
    optimizer: torch.optim.Optimizer
    attachments: list[Attachment]
    layers: Mapping[str, FoundLayer]
    at_the_end: Mapping[str, FoundLayer]
    parameters: int
    epochs: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _before: float = 0.0
    _start: float = field(default_factory=time.perf_counter)

    def elapsed(self) -> float:
        """Seconds of work so far; what was lost when the run was killed does not count."""
        return self._before + time.perf_counter() - self._start

    def say(self, share: float, words: str) -> None:
        """Report progress; one process does for all."""
        if self.group.rank == 0:
            self.context.say(share, words)

    @property
    def checkpoint(self) -> Checkpoint:
        """Where it is put aside."""
        return Checkpoint(self.context.scratch, self.config, self.group, self.context.threads)

    def save(self) -> None:
        """Put the run aside."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "attachments": [attachment.state_dict() for attachment in self.attachments],
            "epochs": self.epochs,
            "seconds": self.seconds,
            "elapsed": self.elapsed(),
        }
        self.checkpoint.save(state)

    def resume(self) -> None:
        """Take the run up again where it was put aside, if it was."""
        state = self.checkpoint.load()
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for attachment, saved in zip(self.attachments, state["attachments"], strict=True):
            attachment.load_state_dict(saved)
        self.epochs, self.seconds = state["epochs"], state["seconds"]
        self._before = state["elapsed"]


def prepared(config: TrainConfig, context: Context, group: ProcessGroup) -> Run:
    """A run at its beginning: data, network, optimizer and methods."""
    loaded = datasets.held_out(datasets.load(config.dataset, context.data), config.held_out)
    data = datasets.subset(loaded, config.train_images, config.test_images, seed=config.seed)
    model = models.build(
        config.model,
        width=config.width,
        batch_norm=config.batch_norm,
        norm=config.norm,
        score_scale=config.score_scale,
        dataset=data,
        seed=config.seed,
        setting=config.setting,
    ).to(group.device)
    model = model.to(memory_format=config.layout)  # type: ignore[call-overload]
    model = group.with_common_statistics(model)
    example = pixels(data.train_images[:2], config, group.device)
    used = methods.get(config.method, batch_norm=config.batch_norm)
    if config.at_bound:
        start = generator(config.seed, "start")
        is_composed = any(method.compose == "conv_bn" for method in used)
        compose: Compose | None = "conv_bn" if is_composed else None
        init_at_bound_(model, example, compose=compose, generator=start, **config.bounds())
    # All of these while the model is plain: methods may rename what it is made of.
    parameters = sum(parameter.numel() for parameter in model.parameters())
    layers = layers_to_measure(model, example, config.measure)
    at_the_end = layers or layers_to_measure(model, example, "layers")
    optimizer = _optimizer(model, config)
    attachments = [
        attach(model, optimizer, example, method=method, seed=config.seed, **config.bounds())
        for method in used
    ]
    return Run(
        config=config,
        context=context,
        group=group,
        data=data,
        model=model,
        wrapped=group.wrapped(model),
        optimizer=optimizer,
        attachments=attachments,
        layers=layers,
        at_the_end=at_the_end,
        parameters=parameters,
    )


def _optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    parameters, decay = model.parameters(), config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, config.lr, eps=config.adam_eps, weight_decay=decay)
    return torch.optim.SGD(
        parameters, config.lr, config.momentum, weight_decay=decay, nesterov=config.nesterov
    )
