"""The runs: both models with each way to treat their batch norms.

A network whose batch norms are clipped to 1, alone or with their convolutions, is one under a
bound: by the paper's recipe a short training stays at chance. At the scale `desk` it has the recipe
for bounds, which claims rest on; ResNet-18 has the paper's beside it, with as many seeds as a
figure needs. A network that nothing holds tells what the recipe for bounds does by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import BOUNDED, CLAMPED, CONCAT, PAPER, configs
from experiments.experiment import Config, Scale

COLUMNS = (Column("resnet18", "cifar10"), Column("dla", "cifar10"))
OURS = ("spectral_clip+bn", "spectral_clip_conv_bn")
METHODS = (*CLAMPED, CONCAT, *OURS)
FITTING = ("spectral_clip_center", "spectral_clip_scalar")  # norms that fit a bound, of ResNet-18
SMOKE = ("gouk+bn", CONCAT, "spectral_clip_conv_bn")
# The paper treats compositions every 500 steps, which a short run never reaches.
PERIODS: dict[Scale, str] = {
    "smoke": ":concat_every=1",
    "laptop": ":concat_every=100",
    "desk": ":concat_every=100",
    "paper": "",
}


def grid(scale: Scale) -> list[Config]:
    """Both models with each way to treat their batch norms."""
    if scale == "desk":
        return _desk()
    chosen = SMOKE if scale == "smoke" else METHODS
    methods = [name + PERIODS[scale] if name == CONCAT else name for name in chosen]
    return [
        config
        for model in (("resnet18",) if scale == "smoke" else ("resnet18", "dla"))
        for config in _configs(scale, model, methods, "compositions")
    ]


def _desk() -> list[Config]:
    """Three seeds of what claims speak of, and one of the rest."""
    concat, clamped_rivals = CONCAT + PERIODS["desk"], CLAMPED[:-1]
    return [
        *_configs("desk", "resnet18", [concat, "fast_clip+bn"], "compositions"),
        *_configs("desk", "resnet18", CLAMPED, "layers", recipe=BOUNDED),
        *_configs("desk", "dla", [concat], "compositions"),
        *_configs("desk", "dla", CLAMPED, "layers", recipe=BOUNDED),
        *_configs("desk", "resnet18", ["none", *OURS, *FITTING], "layers", 1, BOUNDED),
        *_configs("desk", "dla", OURS, "layers", 1, BOUNDED),
        *_configs("desk", "resnet18", [OURS[1]], "compositions", 1),
        *_configs("desk", "resnet18", clamped_rivals, "layers", 1),
    ]


def _configs(
    scale: Scale,
    model: str,
    methods: Sequence[str],
    measure: str,
    seeds: int | None = None,
    recipe: str = PAPER,
) -> list[Config]:
    return [
        *configs(
            scale,
            model=model,
            datasets=("cifar10",),
            batch_norm=True,
            methods=methods,
            measure=measure,
            seeds=seeds,
            recipe=recipe,
        )
    ]
