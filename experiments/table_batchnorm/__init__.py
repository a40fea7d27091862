"""Table 3: batch norms clipped on their own, against clipping conv + BN; both on CIFAR-10."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.table_batchnorm.claims import CLAIMS
from experiments.table_batchnorm.grid import grid
from experiments.table_batchnorm.section import findings, section
from experiments.trained import check, run

EXPERIMENT = Experiment(
    name="table_batchnorm",
    title="Clipping batch norm, alone or with its convolution",
    where="Table 3",
    grid=grid,
    run=run,
    check=check,
    section=section,
    claims=CLAIMS,
    findings=findings,
    uses=("table_resnet", "table_dla"),
)
