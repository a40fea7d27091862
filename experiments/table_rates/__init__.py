"""The learning rates of the scale `desk`: one short search, the same for all methods."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.table_rates.grid import grid
from experiments.table_rates.section import section
from experiments.trained import check, run

EXPERIMENT = Experiment(
    name="table_rates",
    title="Learning rates",
    where="not in the paper",
    grid=grid,
    run=run,
    check=check,
    section=section,
)
