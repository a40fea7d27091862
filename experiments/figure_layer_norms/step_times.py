"""The seconds of a training step, by method: runs that have the machine to themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments import training
from experiments.accuracy.claims import Column, select_column
from experiments.accuracy.grid import METHODS, SIZES, configs
from experiments.experiment import Config, Context, Record, Result, Scale
from experiments.judging.statistics import Summary, summary
from experiments.judging.verdicts import by_seed
from experiments.measuring.stopwatch import Stopwatch, in_peace

RESNET_CIFAR, RESNET_MNIST = Column("resnet18", "cifar10"), Column("resnet18", "mnist")
DLA_CIFAR = Column("dla", "cifar10")
COLUMNS = (RESNET_CIFAR, RESNET_MNIST, DLA_CIFAR)
TIMED = "steps"


@dataclass(frozen=True)
class Size:
    """How many steps are timed, after how many that do not count, and how often."""

    warm_up: int
    steps: int
    batch: int
    seeds: int


# In a hundred steps a method that acts every hundred acts once, wherever they begin.
TIMINGS: dict[Scale, Size] = {
    "smoke": Size(1, 2, 8, 1),
    "laptop": Size(3, 100, 32, 2),
    "paper": Size(10, 100, 128, 3),
}


def grid(scale: Scale) -> list[Config]:
    """The networks of the tables with batch norm, with every method; a smoke run takes a few."""
    methods = ("none", "fast_clip") if scale == "smoke" else METHODS
    found = [
        config
        for column in COLUMNS
        for config in configs(
            scale,
            model=column.model,
            datasets=[column.dataset],
            batch_norm=True,
            methods=methods,
            measure="none",
            attacked=False,
            seeds=TIMINGS[scale].seeds,
        )
    ]
    return [_timed(config, TIMINGS[scale], SIZES[scale].train_images) for config in found]


def _timed(config: Mapping[str, Any], size: Size, images: int | None) -> Config:
    """The training is a part of the configuration, since it is not done to its end."""
    wanted = size.batch * (size.warm_up + size.steps)
    return {
        "label": f"{config['label']} step",
        "alone": True,
        "seed": config["seed"],
        "warm_up": size.warm_up,
        "steps": size.steps,
        "training": {
            **{key: value for key, value in config.items() if key != "label"},
            "epochs": 1,
            "batch": size.batch,
            "train_images": None if images is None else wanted,
        },
    }


class _Enough(Exception):
    """All steps have been timed."""


def run(config: Config, context: Context) -> Result:
    """Train for some steps, and take the time of all but the first few.

    Raises:
        RuntimeError: The training has come to its end before.
    """
    watch, done = Stopwatch(), 0
    first = config["warm_up"]
    last = first + config["steps"]

    def say(share: float, words: str) -> None:
        nonlocal done
        done += words == "training"
        if done == last:
            watch.stop(TIMED)
            raise _Enough
        context.say(done / last, words)
        if done == first:
            watch.start(TIMED)

    try:
        training.train(config["training"], replace(context, say=say))
    except training.TrainingDiverged as error:
        return {"diverged": str(error)}
    except _Enough:
        result = {"steps": config["steps"]}
        return {"result": result, "timing": watch.summary(context.threads)}
    raise RuntimeError(f"expected {last} steps to time, got {done}: give it more train_images.")


def timed(records: Sequence[Record]) -> list[Record]:
    """The runs of this grid that have a time, as if their configurations were of trainings."""
    return [
        replace(record, config={**record.config["training"], "steps": record.config["steps"]})
        for record in records
        if "training" in record.config and record.run.get("timing")
    ]


def undisturbed(found: Sequence[Record]) -> list[Record]:
    """Those of `timed` that had a core to themselves."""
    return [record for record in found if in_peace(record.run["timing"])]


def seconds(found: Sequence[Record], column: Column, method: str) -> dict[int, float]:
    """Seconds a step by seed, of those that `timed` gives."""

    def of(record: Record) -> float:
        return float(record.run["timing"]["seconds"][TIMED]) / int(record.config["steps"])

    return by_seed(select_column(found, column, method), of)


def mean(found: Sequence[Record], column: Column, method: str) -> Summary:
    """The same over seeds."""
    return summary([*seconds(found, column, method).values()])
