"""The runs: each method with three rates, for one epoch, tested with images that are held out.

ResNet-18 alone is searched with: DLA takes the same rates. By the paper's recipe a method takes its
rate with batch norms clipped as well; by the one for bounds it is searched with them clipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from experiments.accuracy.grid import BOUNDED, CLAMPED, METHODS, PAPER, SIZES, training
from experiments.accuracy.rates import rate_key
from experiments.experiment import Config, Scale

HELD_OUT = 5000
SEED = 100  # none of those that are trained with
# By recipe and optimizer, around what the paper, or the recipe for bounds, has.
SGD_RATES, ADAM_RATES = (0.05, 0.1, 0.2), (3e-4, 1e-3, 3e-3)
UNNORMED_SGD_RATES, BOUNDED_RATES = (0.01, 0.03, 0.1), (8e-4, 2e-3, 5e-3)
COMPOSED = "spectral_clip_conv_bn"
# Of the table on batch norms, by the recipe for bounds.
OF_BATCH_NORMS = (
    "none",
    *CLAMPED,
    "spectral_clip+bn",
    COMPOSED,
    "spectral_clip_center",
    "spectral_clip_scalar",
)


@dataclass(frozen=True)
class Search:
    """What a rate is chosen for."""

    dataset: str
    batch_norm: bool
    recipe: str
    method: str

    @property
    def key(self) -> str:
        """As `rates.json` has it."""
        return rate_key(self.dataset, self.batch_norm, self.recipe, self.method)

    def rates(self, optimizer: str) -> tuple[float, ...]:
        """Those that are tried."""
        if self.recipe == BOUNDED:
            return BOUNDED_RATES
        if optimizer == "adam":
            return ADAM_RATES
        return SGD_RATES if self.batch_norm else UNNORMED_SGD_RATES


def searches() -> list[Search]:
    """All of them."""
    every = [
        Search(dataset, batch_norm, recipe, method)
        for dataset in ("cifar10", "mnist")
        for batch_norm, recipe in ((True, PAPER), (False, BOUNDED), (False, PAPER))
        for method in METHODS
    ]
    composed = Search("cifar10", True, PAPER, COMPOSED)
    batch_norms = [Search("cifar10", True, BOUNDED, method) for method in OF_BATCH_NORMS]
    network = Search("cifar10", False, BOUNDED, "spectral_clip_network")
    return [*every, composed, *batch_norms, network]


def grid(scale: Scale) -> list[Config]:
    """Of the scale `desk`, for which rates are searched; a smoke run does two of them."""
    if scale == "smoke":
        return [next(_configs("smoke", one)) for one in searches()[:2]]
    if scale != "desk":
        return []
    by_search = [list(_configs("desk", one)) for one in searches()]
    # The rates in turns: a search that is stopped half way has the middle one of each.
    return [configs[place] for place in (1, 0, 2) for configs in by_search]


def _configs(scale: Scale, one: Search) -> Iterator[Config]:
    made = training(scale, "resnet18", one.dataset, one.batch_norm, one.method, one.recipe)
    shared: dict[str, Any] = {
        "epochs": 1,
        "held_out": HELD_OUT if SIZES[scale].searched else 0,
        "seed": SEED,
        "attacks": None,
        "measure": "none",
    }
    for rate in one.rates(made["optimizer"]):
        label = f"{one.key} at {rate:g}"
        yield made | shared | {"label": label, "search": one.key, "lr": rate}
