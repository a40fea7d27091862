"""Table 2: DLA on MNIST and CIFAR-10, tested and attacked; and that it needs its batch norms."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.table_dla.claims import CLAIMS
from experiments.table_dla.grid import grid
from experiments.table_dla.section import section
from experiments.trained import check, run

EXPERIMENT = Experiment(
    name="table_dla",
    title="DLA: accuracy and robustness",
    where="Table 2",
    grid=grid,
    run=run,
    check=check,
    section=section,
    claims=CLAIMS,
)
