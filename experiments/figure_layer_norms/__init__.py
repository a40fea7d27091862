"""Figure 3: the norms of all layers, and the time that training takes, by method.

Norms are those of the networks in the tables. Times are of runs of its own, which are alone on the
machine: those of the tables share it.
"""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.figure_layer_norms.claims import CLAIMS
from experiments.figure_layer_norms.grid import grid
from experiments.figure_layer_norms.run import run
from experiments.figure_layer_norms.section import findings, section
from experiments.trained import check

EXPERIMENT = Experiment(
    name="figure_layer_norms",
    title="Norms of all layers, and the time of a step",
    where="Figure 3",
    grid=grid,
    run=run,
    check=lambda config: [check(one) for one in config["trainings"]],
    section=section,
    claims=CLAIMS,
    findings=findings,
    uses=("table_resnet", "table_dla"),
)
