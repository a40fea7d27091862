from __future__ import annotations

from experiments.experiment import Config, Scale
from fake_study.adding import config, experiment


def grid(scale: Scale) -> list[Config]:
    if scale == "laptop":
        return [config("slow", steps=15, pause=0.1)]
    return [config(f"slow {seed}", seed, pause=0.05) for seed in range(6)]


EXPERIMENT = experiment("figure_slow", grid)
