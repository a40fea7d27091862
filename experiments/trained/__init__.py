"""Trainings of figures and tables: one that diverges is a result too, and no number comes of it."""

from __future__ import annotations

from collections.abc import Sequence

from experiments import training
from experiments.experiment import Config, Context, Record, Result

check = training.TrainConfig.of


def run(config: Config, context: Context) -> Result:
    """Train; a training that diverges is stored as one that did."""
    try:
        return training.train(config, context)
    except training.TrainingDiverged as error:
        return {"diverged": str(error)}


def trained(records: Sequence[Record]) -> list[Record]:
    """Those that came to their end."""
    return [record for record in records if not record.result.get("diverged")]


def left_out(records: Sequence[Record]) -> list[str]:
    """A paragraph on the runs that diverged, if there are any."""
    names = [str(r.config.get("label", r.id)) for r in records if r.result.get("diverged")]
    return [f"Diverged, and left out of all that follows: {'; '.join(names)}."] if names else []
