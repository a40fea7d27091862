"""Figure: which methods clip one convolution to 1, in four settings."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.figure_simple_clip.claims import CLAIMS
from experiments.figure_simple_clip.grid import grid
from experiments.figure_simple_clip.section import section
from experiments.trained import check, run

EXPERIMENT = Experiment(
    name="figure_simple_clip",
    title="Clipping one convolution, by every method",
    where="Section 2.3, Figure: comparison of the clipping methods in a simple network",
    grid=grid,
    run=run,
    check=check,
    section=section,
    claims=CLAIMS,
)
