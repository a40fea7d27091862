"""Figure: the time for k singular values, by PowerQR, by k power methods, and by ours."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.figure_powerqr_time.claims import CLAIMS
from experiments.figure_powerqr_time.grid import grid
from experiments.figure_powerqr_time.run import run
from experiments.figure_powerqr_time.section import findings, section

EXPERIMENT = Experiment(
    name="figure_powerqr_time",
    title="Several singular values: PowerQR against the power method",
    where="Appendix C.2, Figure (b): run-time of PowerQR",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
    findings=findings,
    cpu_only=True,
)
