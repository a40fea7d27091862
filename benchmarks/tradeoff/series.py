"""What is swept: networks that are not held, and methods that hold them at several bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from spectralclip import Method
from spectralclip.methods import FastClip, Gouk, Parametrize, SpectralClip
from spectralclip.nn import CenterNorm, ScalarBatchNorm

PLAIN, NORMED = "without a norm", "with a norm"
Sweep = Literal["max_lipschitz", "max_norm"]

# Of the network with its scores times 100. Layers at 1 make it 127.
NETWORK_BOUNDS = (100.0, 300.0, 1000.0, 3000.0, 10_000.0)
NORMED_NETWORK_BOUNDS = (1e2, 1e3, 1e4, 1e5, 1e6)
MIDDLE_NORMED_BOUND = (1e4,)
LAYER_BOUNDS = (0.7, 1.0, 1.5, 2.5, 4.0)
ADAM_RATES = (0.0005, 0.001, 0.002, 0.004)
SGD_RATES = (0.025, 0.05, 0.1, 0.2)
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Series:
    """One curve, or one point where nothing is held.

    Attributes:
        name: On the page; without commas.
        about: What it does, in a few words.
        panel: In which part of the picture it is.
        seconds: What a step takes, roughly, of one core; from a dozen steps.
        norm: After each convolution: None for nothing, or the type of batch norm.
        method: What is attached; None for nothing.
        sweep: What its bounds are of.
        bounds: From the lowest up; a single None where nothing is held.
        at_bound: Whether weights begin orthogonal, at the bound (at 1 where there is none).
        scale: What the scores are multiplied by, as part of the network.
        optimizer: Adam, or SGD with Nesterov momentum.
        rates: Learning rates that are tried.
        once: Whether one seed is enough, since the search for a rate has shown it far behind.
    """

    name: str
    about: str
    panel: str
    seconds: float
    norm: type[nn.Module] | None = None
    method: Callable[[], Method] | None = None
    sweep: Sweep | None = None
    bounds: tuple[float | None, ...] = (None,)
    at_bound: bool = True
    scale: float = 100.0
    optimizer: Literal["adam", "sgd"] = "adam"
    rates: tuple[float, ...] = ADAM_RATES
    once: bool = False

    @property
    def is_held(self) -> bool:
        return self.method is not None

    @property
    def is_ours(self) -> bool:
        """Whether it is the method that the page is about."""
        return self.sweep == "max_lipschitz"

    @property
    def middle(self) -> float | None:
        """The bound that the learning rate is chosen at."""
        return self.bounds[len(self.bounds) // 2]

    @property
    def inner(self) -> tuple[float | None, ...]:
        """All bounds but the lowest and the highest, or the only one."""
        return self.bounds[1:-1] or self.bounds

    @property
    def cells(self) -> list[tuple[float | None, int]]:
        """Bound and seed of each of its runs."""
        return [(bound, seed) for bound in self.bounds for seed in self.seeds(bound)]

    def seeds(self, bound: float | None) -> tuple[int, ...]:
        """Of the curves that ours is compared with, one seed shows where the ends are."""
        is_end = not self.is_ours and bound not in self.inner
        return SEEDS[:1] if self.once or is_end else SEEDS


def _composed() -> SpectralClip:
    return SpectralClip(compose="conv_bn")


def _at_one_bound(name: str, about: str, seconds: float, norm: type[nn.Module]) -> Series:
    """A kind of batch norm that is held with its convolution."""
    bounds = MIDDLE_NORMED_BOUND
    return Series(name, about, NORMED, seconds, norm, _composed, "max_lipschitz", bounds, once=True)


# In the order in which they are run: what decides the figures first.
_ALL = (
    Series("unclipped", "nothing is held; torch's start", PLAIN, 0.085, at_bound=False, scale=1.0),
    Series(
        "unclipped + orthogonal start",
        "nothing is held; orthogonal weights of norm 1, scores times 10",
        PLAIN,
        0.085,
        scale=10.0,
    ),
    Series(
        "SpectralClip",
        "clips after each step; the network's constant",
        PLAIN,
        0.13,
        method=SpectralClip,
        sweep="max_lipschitz",
        bounds=NETWORK_BOUNDS,
    ),
    Series(
        "unclipped + BatchNorm",
        "nothing is held; torch's start, SGD",
        NORMED,
        0.10,
        nn.BatchNorm2d,
        at_bound=False,
        scale=1.0,
        optimizer="sgd",
        rates=SGD_RATES,
    ),
    Series(
        "SpectralClip + CenterNorm",
        "norms that centre only; the network's constant",
        NORMED,
        0.12,
        CenterNorm,
        SpectralClip,
        "max_lipschitz",
        NORMED_NETWORK_BOUNDS,
    ),
    Series(
        "FastClip",
        "one power iteration a step, a clip every 100; layers",
        PLAIN,
        0.10,
        method=FastClip,
        sweep="max_norm",
        bounds=LAYER_BOUNDS,
    ),
    Series(
        "Parametrize",
        "divides by the true norm; layers",
        PLAIN,
        0.25,
        method=Parametrize,
        sweep="max_norm",
        bounds=LAYER_BOUNDS,
    ),
    Series(
        "Gouk",
        "divides by an estimate after each step; layers",
        PLAIN,
        0.14,
        method=Gouk,
        sweep="max_norm",
        bounds=LAYER_BOUNDS,
    ),
    _at_one_bound(
        "SpectralClip + ScalarBatchNorm",
        "one deviation for all channels, held with the convolution; the network's constant",
        0.16,
        ScalarBatchNorm,
    ),
    _at_one_bound(
        "SpectralClip + BatchNorm",
        "batch norms held with the convolution; the network's constant",
        0.13,
        nn.BatchNorm2d,
    ),
)
SERIES = {series.name: series for series in _ALL}
