"""The runs: both models with each way to treat their batch norms."""

from __future__ import annotations

from experiments.accuracy.claims import Column
from experiments.accuracy.grid import RIVALS, configs
from experiments.experiment import Config, Scale

COLUMNS = (Column("resnet18", "cifar10"), Column("dla", "cifar10"))
CLAMPED_RIVALS = tuple(f"{name}+bn" for name in RIVALS)
CLAMPED = (*CLAMPED_RIVALS, "fast_clip+bn")
CONCAT = "fast_clip_concat"
METHODS = (*CLAMPED, CONCAT, "spectral_clip+bn", "spectral_clip_conv_bn")
SMOKE = ("gouk+bn", CONCAT, "spectral_clip_conv_bn")
# The paper treats compositions every 500 steps, which a short run never reaches.
PERIODS = {"smoke": ":concat_every=1", "laptop": ":concat_every=100", "paper": ""}


def grid(scale: Scale) -> list[Config]:
    """Both models with each way to treat their batch norms."""
    chosen = SMOKE if scale == "smoke" else METHODS
    methods = [name + PERIODS[scale] if name == CONCAT else name for name in chosen]
    return [
        config
        for model in (("resnet18",) if scale == "smoke" else ("resnet18", "dla"))
        for config in configs(
            scale,
            model=model,
            datasets=("cifar10",),
            batch_norm=True,
            methods=methods,
            measure="compositions",
        )
    ]
