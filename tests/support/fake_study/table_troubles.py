from __future__ import annotations

from experiments.experiment import Config, Scale
from fake_study.adding import config, experiment


def grid(scale: Scale) -> list[Config]:
    troubles = ("is killed", "always fails", "fails once", "ends")
    return [config(trouble, at, trouble=trouble) for at, trouble in enumerate(troubles)]


EXPERIMENT = experiment("table_troubles", grid)
