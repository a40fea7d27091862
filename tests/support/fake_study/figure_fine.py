from __future__ import annotations

from experiments.experiment import Config, Scale
from fake_study.adding import config, experiment


def grid(scale: Scale) -> list[Config]:
    if scale == "smoke":
        return [config(f"Fine {seed}", seed) for seed in range(3)]
    return [config("large", 9, 6), config(f"{scale} only", 1, 5)]


EXPERIMENT = experiment("figure_fine", grid)
