"""The runs: both models with each way to treat their batch norms."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import RIVALS, configs
from experiments.experiment import Config, Scale

COLUMNS = (Column("resnet18", "cifar10"), Column("dla", "cifar10"))
CLAMPED_RIVALS = tuple(f"{name}+bn" for name in RIVALS)
CLAMPED = (*CLAMPED_RIVALS, "fast_clip+bn")
CONCAT = "fast_clip_concat"
METHODS = (*CLAMPED, CONCAT, "spectral_clip+bn", "spectral_clip_conv_bn")
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
    chosen = SMOKE if scale == "smoke" else METHODS
    methods = [name + PERIODS[scale] if name == CONCAT else name for name in chosen]
    found = [
        config
        for model in (("resnet18",) if scale == "smoke" else ("resnet18", "dla"))
        for config in _configs(scale, model, methods, "compositions")
    ]
    # Not the paper's, so that one seed shows what they are about.
    return found + (_configs(scale, "resnet18", FITTING, "layers", 1) if scale == "desk" else [])


def _configs(
    scale: Scale, model: str, methods: Sequence[str], measure: str, seeds: int | None = None
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
        )
    ]
