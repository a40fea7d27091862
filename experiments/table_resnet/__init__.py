"""Table 1: ResNet-18 on MNIST and CIFAR-10, with and without batch norm, tested and attacked."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.table_resnet.claims import CLAIMS
from experiments.table_resnet.grid import grid
from experiments.table_resnet.section import findings, section
from experiments.trained import check, run

EXPERIMENT = Experiment(
    name="table_resnet",
    title="ResNet-18: accuracy and robustness",
    where="Table 1",
    grid=grid,
    run=run,
    check=check,
    section=section,
    claims=CLAIMS,
    findings=findings,
)
