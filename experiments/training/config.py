"""What a training run depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch

from experiments import data as datasets
from experiments import methods, models
from experiments.attacks._numbers import not_negative, positive, whole
from experiments.experiment import Config
from experiments.measuring.norms import Measure
from experiments.models import Norm
from experiments.models.small import SETTINGS

Optimizer = Literal["sgd", "adam"]
Schedule = Literal["steps", "one_cycle"]
Protocol = Literal["pixels", "paper", "both"]
Attacks = Mapping[str, Mapping[str, Any]]
Check = Callable[[str, object], None]  # of a name and its value; raises ValueError


def _whole_or_none(name: str, value: object) -> None:
    if value is not None:
        whole(name, value)


_FOR_TABLES = ("label", "row", "recipe", "search")
# Of each attack, what has to be given; "images" is how many test images, None for all.
ATTACKS: dict[str, dict[str, Check]] = {
    "pgd": {"eps": not_negative, "steps": whole, "images": _whole_or_none},
    "cw": {
        "confidence": not_negative,
        "iterations": whole,
        "initial_const": positive,
        "images": _whole_or_none,
        "lr": positive,
    },
}
_NUMBERS: dict[str, Check] = {
    **dict.fromkeys(("epochs", "batch", "width"), whole),
    **dict.fromkeys(("train_images", "test_images", "lr_step"), _whole_or_none),
    **dict.fromkeys(("lr", "lr_gamma", "score_scale"), positive),
    **dict.fromkeys(("momentum", "weight_decay", "adam_eps"), not_negative),
    **dict.fromkeys(("seed", "held_out"), partial(whole, least=0)),
}
_FLAGS = (
    *("batch_norm", "augment", "channels_last", "amp", "nesterov", "at_bound"),
    "test_epochs",
)
WARM_UP = 0.2  # the share of a cycle in which the learning rate rises


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The configuration of a run.

    Attributes:
        dataset: Name of the data set.
        model: Name of the network.
        epochs: How many.
        method: As `experiments.methods.get` has it.
        width: Channels of the network's first stage.
        batch_norm: Whether the network has batch norms.
        norm: Of which kind: "batch", or one that fits a bound, "center" or "scalar".
        score_scale: What the scores are multiplied with, as a part of the network.
        at_bound: Whether weights begin orthogonal, at the bound.
        setting: Of the small network, 1 to 4; None for the others.
        max_norm: The bound of all layers; or of some by name, the others being left free.
        max_lipschitz: The bound of the whole network, in place of it.
        train_images: How many are trained on; None for all.
        test_images: How many are tested on; None for all.
        held_out: How many of the training images are tested with in place of the test images.
        batch: Images in a batch, over all processes.
        optimizer: "sgd" or "adam".
        lr: Its learning rate.
        momentum: Of SGD.
        nesterov: Whether it is Nesterov's.
        weight_decay: Of both.
        adam_eps: Of Adam.
        schedule: "steps", or "one_cycle": the rate rises from zero, and falls to zero at the end.
        lr_step: After so many epochs the learning rate is multiplied; None for never.
        lr_gamma: With this.
        augment: Crop and flip the training images.
        seed: Of all that is random.
        attacks: By name ("pgd", "cw"), their settings; None for no attack.
        protocol: Of the attacks; "both" reports the paper's beside that on pixels.
        measure: Whose true norms are taken after each epoch.
        test_epochs: Whether the test set is gone through after each epoch, and not at the end only.
        channels_last: The layout of images and weights in memory; often faster.
        amp: Compute forward passes in bfloat16 where that is safe. Results differ by more than
            rounding then, so that no grid of the study does.
    """

    dataset: str
    model: str
    epochs: int
    method: str = "none"
    width: int = 64
    batch_norm: bool = True
    norm: Norm = "batch"
    score_scale: float = 1.0
    at_bound: bool = False
    setting: int | None = None
    max_norm: float | Mapping[str, float] = 1.0
    max_lipschitz: float | None = None
    train_images: int | None = None
    test_images: int | None = None
    held_out: int = 0
    batch: int = 128
    optimizer: Optimizer = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    adam_eps: float = 1e-7
    schedule: Schedule = "steps"
    lr_step: int | None = None
    lr_gamma: float = 0.1
    augment: bool = False
    seed: int = 0
    attacks: Attacks | None = None
    protocol: Protocol = "pixels"
    measure: Measure = "layers"
    test_epochs: bool = True
    channels_last: bool = False
    amp: bool = False

    def __post_init__(self) -> None:
        """Refuse what could only fail later, or make no sense."""
        for name, known in _choices().items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}.")
        for name, check in _NUMBERS.items():
            check(name, getattr(self, name))
        for name in _FLAGS:
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.setting is not None:
            self._check_setting()
        self._check_max_norm()
        methods.get(self.method, batch_norm=self.batch_norm)
        if self.attacks is not None:
            _check_attacks(self.attacks)

    def _check_setting(self) -> None:
        if self.model != "small" or type(self.setting) is not int or self.setting not in SETTINGS:
            raise ValueError(
                f"setting must be one of {tuple(SETTINGS)} for the small network and None for "
                f"others, got {self.setting!r} for {self.model!r}."
            )

    def _check_max_norm(self) -> None:
        if self.max_lipschitz is not None:
            positive("max_lipschitz", self.max_lipschitz)
        if not isinstance(self.max_norm, Mapping):
            positive("max_norm", self.max_norm)
            return
        if not self.max_norm:
            raise ValueError("max_norm must name at least one layer, or be a number for all.")
        for layer, bound in self.max_norm.items():
            positive(f"max_norm of layer {layer!r}", bound)

    @classmethod
    def of(cls, config: Config) -> TrainConfig:
        """From a cell's configuration, some of whose entries are for readers and tables alone."""
        given = {name: value for name, value in config.items() if name not in _FOR_TABLES}
        known = [each.name for each in dataclasses.fields(cls)]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"unknown settings {unknown} of a training run: known are {known}.")
        missing = [name for name in ("dataset", "model", "epochs") if name not in given]
        if missing:
            raise ValueError(f"a training run needs {missing} too: add them to its configuration.")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values; `TrainConfig.of` reads them back."""
        return dataclasses.asdict(self)

    def bounds(self) -> dict[str, Any]:
        """The bound by the name of its argument, as `attach` takes it."""
        if self.max_lipschitz is None:
            return {"max_norm": self.max_norm}
        return {"max_lipschitz": self.max_lipschitz}

    @property
    def layout(self) -> torch.memory_format:
        """Of images and weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def rate(self, at: float) -> float:
        """The learning rate after so many epochs."""
        if self.schedule == "one_cycle":
            share = at / self.epochs
            return self.lr * min(share / WARM_UP, (1 - share) / (1 - WARM_UP))
        return self.lr * self.lr_gamma ** (int(at) // self.lr_step if self.lr_step else 0)


def _choices() -> dict[str, tuple[str, ...]]:
    """The settings that are names, and those that are known now."""
    return {
        "dataset": datasets.NAMES,
        "model": models.NAMES,
        "norm": get_args(Norm),
        "optimizer": get_args(Optimizer),
        "schedule": get_args(Schedule),
        "protocol": get_args(Protocol),
        "measure": get_args(Measure),
    }


def _check_attacks(attacks: Attacks) -> None:
    if not isinstance(attacks, Mapping):
        raise ValueError(f"attacks must be settings by the name of the attack, got {attacks!r}.")
    for attack, settings in attacks.items():
        checks = ATTACKS.get(attack)
        if checks is None or not isinstance(settings, Mapping) or set(settings) != set(checks):
            known = {name: tuple(each) for name, each in ATTACKS.items()}
            raise ValueError(
                f"attacks must be among {known}, each with these settings, got {attack!r} with "
                f"{settings!r}."
            )
        for name, check in checks.items():
            check(f"{name} of attack {attack!r}", settings[name])


def recipe(dataset: str) -> dict[str, Any]:
    """The paper's optimizer, schedule and augmentation for a data set.

    Args:
        dataset: "cifar10" or "mnist"; "synthetic" is treated as the first, "digits" as the second.

    Example:
        >>> from experiments.training import TrainConfig, recipe
        >>> TrainConfig(dataset="mnist", model="resnet18", **recipe("mnist")).optimizer
        'adam'
    """
    if dataset in ("cifar10", "synthetic"):
        return {
            **{"epochs": 200, "batch": 128, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
            **{"weight_decay": 5e-4, "lr_step": 40, "lr_gamma": 0.1, "augment": True},
        }
    if dataset in ("mnist", "digits"):
        return {
            **{"epochs": 120, "batch": 128, "optimizer": "adam", "lr": 1e-3, "adam_eps": 1e-7},
            **{"weight_decay": 1e-4, "lr_step": None, "augment": False},
        }
    known = ["cifar10", "mnist", "synthetic", "digits"]
    raise ValueError(f"there is no recipe for data set {dataset!r}: known are {known}.")
