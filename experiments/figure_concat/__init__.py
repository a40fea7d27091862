"""Figure: clipping convolutions together with their batch norms, and how training goes on."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.figure_concat.claims import CLAIMS
from experiments.figure_concat.grid import SHARED, grid
from experiments.figure_concat.section import section
from experiments.trained import check, run

EXPERIMENT = Experiment(
    name="figure_concat",
    title="Clipping convolution and batch norm together",
    where="Section 3.3, Figure: FastClip-concat",
    grid=grid,
    run=run,
    check=check,
    section=section,
    claims=CLAIMS,
    uses_at=dict.fromkeys(SHARED, ("table_resnet", "table_batchnorm")),
)
