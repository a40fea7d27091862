"""What a training run depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from experiments.experiment import Config
from experiments.norms import Measure

Optimizer = Literal["sgd", "adam"]
Protocol = Literal["pixels", "paper", "both"]
Attacks = Mapping[str, Mapping[str, Any]]

# Of each attack, what has to be given; "images" is how many test images, None for all.
ATTACKS = {
    "pgd": ("eps", "steps", "images"),
    "cw": ("confidence", "iterations", "initial_const", "images", "lr"),
}


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
        setting: Of the small network, 1 to 4; None for the others.
        max_norm: The bound of all layers; or of some by name, the others being left free.
        train_images: How many are trained on; None for all.
        test_images: How many are tested on; None for all.
        batch: Images in a batch, over all processes.
        optimizer: "sgd" or "adam".
        lr: Its learning rate.
        momentum: Of SGD.
        weight_decay: Of both.
        adam_eps: Of Adam.
        lr_step: After so many epochs the learning rate is multiplied; None for never.
        lr_gamma: With this.
        augment: Crop and flip the training images.
        seed: Of all that is random.
        attacks: By name ("pgd", "cw"), their settings; None for no attack.
        protocol: Of the attacks; "both" reports the paper's beside that on pixels.
        measure: Whose true norms are taken after each epoch.
        channels_last: The layout of images and weights in memory; often faster on GPUs.
        amp: Compute forward passes in bfloat16 where that is safe. Results differ by more than
            rounding then, so that no grid of the study does.
    """

    dataset: str
    model: str
    epochs: int
    method: str = "none"
    width: int = 64
    batch_norm: bool = True
    setting: int | None = None
    max_norm: float | Mapping[str, float] = 1.0
    train_images: int | None = None
    test_images: int | None = None
    batch: int = 128
    optimizer: Optimizer = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    adam_eps: float = 1e-7
    lr_step: int | None = None
    lr_gamma: float = 0.1
    augment: bool = False
    seed: int = 0
    attacks: Attacks | None = None
    protocol: Protocol = "pixels"
    measure: Measure = "layers"
    channels_last: bool = False
    amp: bool = False

    def __post_init__(self) -> None:
        """Refuse what could only fail later."""
        for name, kind in (("optimizer", Optimizer), ("protocol", Protocol), ("measure", Measure)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name} must be one of {get_args(kind)}, got {getattr(self, name)!r}."
                )
        for name in ("epochs", "batch", "width", "train_images", "test_images", "lr_step"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be a whole number from 1 on, got {value!r}.")
        for name, settings in (self.attacks or {}).items():
            if name not in ATTACKS or sorted(settings) != sorted(ATTACKS[name]):
                raise ValueError(
                    f"attacks must be among {ATTACKS}, each with these settings, got "
                    f"{name!r} with {sorted(settings)}."
                )

    @classmethod
    def of(cls, config: Config) -> TrainConfig:
        """From a cell's configuration, whose "label" is for readers alone."""
        given = {name: value for name, value in config.items() if name != "label"}
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

    def rate(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from 0."""
        return self.lr * self.lr_gamma ** (epoch // self.lr_step if self.lr_step else 0)


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
