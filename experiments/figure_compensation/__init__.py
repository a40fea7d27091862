"""Figure: the batch norm makes up for what was clipped off the convolution before it."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.figure_compensation.claims import CLAIMS
from experiments.figure_compensation.grid import grid
from experiments.figure_compensation.section import section
from experiments.figure_concat.grid import SHARED
from experiments.trained import check, run

EXPERIMENT = Experiment(
    name="figure_compensation",
    title="Batch norm compensates for clipping",
    where="Section 3.1, Figure: compensation of batch norm",
    grid=grid,
    run=run,
    check=check,
    section=section,
    claims=CLAIMS,
    uses=("figure_concat",),
    uses_at=dict.fromkeys(SHARED, ("table_resnet",)),
)
