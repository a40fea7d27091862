"""Figure: how far the norms of circulant matrices are from those of convolutions."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.figure_circulant_error.claims import CLAIMS
from experiments.figure_circulant_error.grid import grid
from experiments.figure_circulant_error.run import run
from experiments.figure_circulant_error.section import section

EXPERIMENT = Experiment(
    name="figure_circulant_error",
    title="The error of taking a convolution for circulant",
    where="Appendix C.1, Figure (a): error of the circulant approximation",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
    cpu_only=True,
)
