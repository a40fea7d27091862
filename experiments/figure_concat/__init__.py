"""Figure: clipping convolutions together with their batch norms, and how training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.accuracy.grid import method_name, scaled_recipe
from experiments.experiment import (
    Chart,
    Config,
    Experiment,
    Record,
    Scale,
    Section,
    Table,
)
from experiments.figure_concat.claims import CLAIMS
from experiments.report import conditions
from experiments.report import line_charts as _charts
from experiments.trained import left_out, run, trained
from experiments.trained.resnet import (
    CONCAT,
    METHODS,
    PARTS,
    accuracy,
    compositions,
    largest,
    of,
    parts,
)
from experiments.trained.small_network import norms, plus_minus

# The paper's 500 steps between two rounds on a composition are more than a short run has. Its
# experiments went down to 100.
SHORT = "fast_clip_concat:concat_every=100"


def grid(scale: Scale) -> list[Config]:
    """ResNet-18 on CIFAR-10, with each way to deal with batch norms."""
    sizes: dict[Scale, dict[str, Any]] = {
        "smoke": {"dataset": "synthetic", "width": 2, "epochs": 2, "train_images": 16, "batch": 8},
        "laptop": {
            "dataset": "cifar10",
            "width": 8,
            "epochs": 5,
            "train_images": 97 * 32,  # see the tables: no round falls on the end of an epoch
            "batch": 32,
        },
        "paper": {"dataset": "cifar10", "width": 64, "epochs": 200, "batch": 128},
    }
    seeds = {"smoke": 1, "laptop": 3, "paper": 5}[scale]
    return [
        _config(method if scale == "paper" or method != CONCAT else SHORT, seed, sizes[scale])
        for method in METHODS
        for seed in range(seeds)
    ]


def _config(method: str, seed: int, size: dict[str, Any]) -> Config:
    images = size.get("train_images")
    return {
        "label": f"{method.partition(':')[0]} seed {seed}",
        "model": "resnet18",
        "batch_norm": True,
        "setting": None,
        "method": method,
        "max_norm": 1.0,
        "train_images": None,
        "test_images": None if images is None else min(images, 1000),
        **scaled_recipe(size["dataset"], epochs=size["epochs"], batch=size["batch"]),
        "seed": seed,
        "attacks": None,
        "measure": "compositions",
        **size,
    }


# --- The report ---------------------------------------------------------------------------


def section(records: Sequence[Record]) -> Section:
    """Three layers under FastClip-concat, training accuracies, and the norms at the end."""
    lost, records = left_out(records), trained(records)
    if not records:
        return Section(["No runs yet.", *lost])
    text = (
        "FastClip-concat clips each convolution, and beside that the convolution together with the "
        "batch norm behind it. The paper says that convolutions are then at 1, that both together "
        "approach 1 while the batch norms alone may be far above, that training follows the same "
        "path as with FastClip, and that clipping the batch norms directly hinders it."
    )
    charts = [_layers(of(records, CONCAT)), _accuracies(records)]
    return Section([text, *lost, *filter(None, charts), _table(records)])


def _layers(found: Sequence[Record]) -> Chart | None:
    names = compositions(found[0]) if found else []
    if not names:
        return None
    chosen = [names[len(names) * place // 6] for place in (1, 3, 5)]
    rows = [
        {"epoch": epoch, "norm": norm, "layer": name.split("+")[0], "part": title}
        for record in found
        for name in chosen
        for title, part in zip(PARTS, parts(name), strict=True)
        for epoch, norm in enumerate(norms(record, part), start=1)
    ]
    spec = _charts.lines(
        rows,
        _charts.number("epoch", "epoch", whole=True),
        _charts.number("norm", "spectral norm", log=True),
        _charts.name("part", None, PARTS),
        panels=_charts.name("layer", None, [name.split("+")[0] for name in chosen]),
        columns=3,
        level=1.0,
    )
    return Chart(
        "concat-layers",
        spec,
        f"True norms of three layers of ResNet-18 under FastClip-concat. {conditions(found)} Lines "
        "are means, bands what the seeds span.",
        "Spectral norms of a convolution, its batch norm and both together over epochs, in panels "
        "for three layers, and a dashed line at the target, 1.",
    )


def _accuracies(records: Sequence[Record]) -> Chart:
    rows = [
        {
            "epoch": epoch["epoch"],
            "accuracy": 100 * epoch["train_accuracy"],
            "method": method_name(method),
        }
        for method in METHODS
        for record in of(records, method)
        for epoch in record.result["epochs"]
    ]
    spec = _charts.lines(
        rows,
        _charts.number("epoch", "epoch", whole=True),
        _charts.number("accuracy", "training accuracy in percent"),
        _charts.name("method", None, [method_name(method) for method in METHODS]),
    )
    return Chart(
        "concat-accuracy",
        spec,
        f"Training accuracy of ResNet-18. {conditions(records)} Lines are means, bands what the "
        "seeds span.",
        "Training accuracy over epochs, a line for each way to deal with batch norms.",
    )


def _table(records: Sequence[Record]) -> Table:
    rows = []
    for method in METHODS:
        found = of(records, method)
        norms_at_end = [
            plus_minus([largest(record, place) for record in found], 2)
            for place in range(len(PARTS))
        ]
        trained = plus_minus([100 * accuracy(record) for record in found], 1)
        rows.append([method_name(method), *norms_at_end, trained])
    header = ["method", *(f"largest: {part}" for part in PARTS), "training accuracy, %"]
    return Table(header, rows, f"After the last epoch; norms are true. {conditions(records)}")


EXPERIMENT = Experiment(
    name="figure_concat",
    title="Clipping convolution and batch norm together",
    where="Section 3.3, Figure: FastClip-concat",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
)
