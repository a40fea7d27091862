"""Figure 3: the norms of all layers, and the time that training takes, by method.

Norms are those of the networks in the tables. Times are of runs of its own, which are alone on the
machine: those of the tables share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.experiment import Experiment, Record, Section
from experiments.figure_layer_norms import section as layers
from experiments.figure_layer_norms.claims import CLAIMS
from experiments.figure_layer_norms.step_times import COLUMNS, grid, run

INTRODUCTION = (
    "Norms are measured by dense SVD or ARPACK in float64, on the networks of the tables with "
    "batch norm; batch norms themselves are not clipped. Times are those of a training step. The "
    "paper's figure comes without numbers that could be put beside ours: its text says that "
    "FastClip holds all layers close to 1, is faster than the relatively accurate alternatives, "
    "and slows down less from ResNet-18 to DLA."
)


def section(records: Sequence[Record]) -> Section:
    """Norms by layer, how precise and how fast each method is, and how its time grows."""
    return Section(
        (
            INTRODUCTION,
            layers.norm_chart(records, COLUMNS),
            *(layers.precision_table(records, column) for column in COLUMNS),
            layers.time_table(records),
        )
    )


EXPERIMENT = Experiment(
    name="figure_layer_norms",
    title="Norms of all layers, and the time of a step",
    where="Figure 3",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
    uses=("table_resnet", "table_dla"),
)
