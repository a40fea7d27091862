"""The targets of clipping during training, each with what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from benchmarks.common.pages import Row, at_least, at_most, selected
from benchmarks.training.methods import FASTCLIP, OURS, OURS_COMPOSED, SCALE
from benchmarks.training.overhead import LATER

OVERHEADS = {
    ("ResNet-18, width 64", 128): 2,
    ("ResNet-18, width 64", 32): 6,
    ("small convnet", 64): 12,
    ("three convolutions", 64): 30,
    ("MLP 784-128-128-10", 64): 50,
}
HELD = {"zeros": 1.01, "circular": 1.01, "reflect": 1.02, "replicate": 1.02}


def figures(results: Row) -> list[Row]:
    """One entry for each target that the run has rows for."""
    parts = results["parts"]
    rows = {name: parts[name]["rows"] for name in parts}
    found = [
        *_overhead_figures(rows.get("overhead", [])),
        *_network_figures(rows.get("network", [])),
        *_heads_figures(rows.get("heads", [])),
        *_held_figures(rows.get("held", [])),
        *_tracker_figures(rows.get("tracker", [])),
        *_count_figures(parts.get("counts")),
    ]
    if "held" in parts:
        failures = len(parts["held"]["failed"])
        found.append(at_most("runs that failed", 0, [failures]))
    return [row for row in found if row is not None]


def _overhead_figures(rows: list[Row]) -> list[Row | None]:
    found = []
    for (model, batch), most in OVERHEADS.items():
        later = selected(rows, model=model, batch=batch, stage=LATER)
        here = {row["method"]: row for row in later}
        label = f"{model}, batch {batch}: overhead"
        if OURS in here:
            ours = here[OURS]["overhead"]
            found.append(at_most(f"{label}, %", most, [100 * ours]))
            share = ours / here[FASTCLIP]["overhead"]
            found.append(at_most(f"{label} over that of FastClip", 1, [share]))
            norm = _known([here[OURS]["norm"]])
            found.append(at_most(f"{model}, batch {batch}: true norm / c then", 1.01, norm))
    return found


def _network_figures(rows: list[Row]) -> list[Row | None]:
    """Of the networks that are held as a whole, over their seeds."""
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        here = selected(rows, model=model)
        label = f"{model}, held as a whole:"
        for key, words, most in (
            ("ratio", "a step over one with max_norm, mean over seeds", 1.05),
            ("median_ratio", "the same by medians, mean over seeds", 1.05),
        ):
            found.append(at_most(f"{label} {words}", most, [mean(row[key] for row in here)]))
        bounds, proved = (
            [_or_infinity(row[key]) for row in here] for key in ("bound", "certified")
        )
        found.append(at_most(f"{label} the network's bound / L, largest", 1.02, bounds))
        found.append(at_most(f"{label} what is proved at the end / L, largest", 1.0, proved))
    return found


def _heads_figures(rows: list[Row]) -> list[Row | None]:
    """Of the language model's heads; the loss is compared with that of the free copy."""
    held = [row for row in rows if row["norm"] is not None]
    free = [row["loss"] for row in rows if row["norm"] is None]
    losses = [row["loss"] - loss for row in held for loss in free]
    return [
        at_most("heads: overhead, %, largest", 5, [100 * row["overhead"] for row in held]),
        at_most("heads: true norm / c, largest", 1.02, [row["norm"] for row in held]),
        at_most("heads: loss above that of the free copy, largest", 0.05, losses),
    ]


def _held_figures(rows: list[Row]) -> list[Row | None]:
    convnet = [row for row in rows if row["task"]["model"] == "small convnet"]
    ours = of_method(convnet, OURS)
    found = []
    for padding, most in HELD.items():
        for optimizer in ("SGD", "Adam"):
            here = with_task(ours, padding=padding, optimizer=optimizer)
            label = f"small convnet, {padding}, {optimizer}: true norm / c, largest"
            found.append(at_most(label, most, _norms(here)))
            first = _known(row["norm_first"] for row in here)
            found.append(at_most(f"{label}, in the first 5 %", 1.02, first))
    found.append(
        at_most("small convnet: loss over that of scaling, largest", 0.5, _losses(convnet))
    )
    rest = [row for row in rows if row["task"]["model"] != "small convnet"]
    for label, chosen in (
        ("ResNet-18, width 16", of_method(with_task(rest, model="ResNet-18"), OURS)),
        ("ResNet-18, width 16, conv+BN", of_method(rest, OURS_COMPOSED)),
        ("stand-alone layers, 0.2 % a step", of_method(with_task(rest, rate=0.002), OURS)),
        ("stand-alone layers, 1 % a step", of_method(with_task(rest, rate=0.01), OURS)),
    ):
        found.append(at_most(f"{label}: true norm / c, largest", 1.01, _norms(chosen)))
    grown = of_method([row for row in rest if row["task"]["rate"] is not None], OURS)
    least = [_or_infinity(row["norm_least"]) for row in grown]
    label = "stand-alone layers: norm with its padding as a torus / c, smallest"
    found.append(at_least(label, 0.97, least))
    fast = [row for row in rest if row["task"]["learning_rate"] is not None]
    p90 = [_or_infinity(row["norm_p90"]) for row in fast]
    label = "ResNet-18, width 16, rates of 0.05 and 0.1: true norm / c, 90 % of readings"
    found.append(at_most(label, 1.005, p90))
    return found + _final_figures([r for r in rows if r["task"]["method"] in (OURS, OURS_COMPOSED)])


def _final_figures(ours: list[Row]) -> list[Row | None]:
    norms = [_or_infinity(row["finalized_norm"]) for row in ours]
    changes = [
        abs(row["finalized_accuracy"] - row["accuracy"])
        for row in ours
        if row["finalized_accuracy"] is not None
    ]
    errors = _known(row["oracle_error"] for row in ours)
    return [
        at_most("after finalize: true norm / c, largest", 1.001, norms),
        at_most("after finalize: change of accuracy in points, largest", 0.5, changes),
        at_most("the oracle against ARPACK: relative difference, largest", 1e-3, errors),
    ]


def _tracker_figures(rows: list[Row]) -> list[Row | None]:
    ours = selected(rows, method=OURS)
    shares = [row["share"] for row in ours]
    return [at_least("tracked within 1e-3, share of steps, smallest", 0.9, shares)]


def _count_figures(part: Row | None) -> list[Row | None]:
    if part is None:
        return []
    reads = [
        row[key]
        for row in part["rows"]
        if row["method"].startswith(OURS)
        for key in ("reads", "reads_after")
    ]
    found = [at_most("SpectralClip: values that a step reads back, most", 0, reads)]
    plain = selected(part["rows"], method=OURS, optimizer="SGD")
    kernels = {row["model"]: row["kernels"] for row in plain}
    shallow, deep = (kernels.get(f"{name}, width 16") for name in ("ResNet-18", "ResNet-34"))
    if shallow and deep:
        found.append(at_most("ResNet-18, width 16: kernels in a step", 500, [shallow]))
        label = "ResNet-34, width 16: kernels in a step over those of ResNet-18"
        found.append(at_most(label, 1, [deep / shallow]))
    if part["compiled"] is not None:
        called = part["compiled"]["functions"] + part["compiled"]["external"]
        label = f"{part['compiled']['model']}: kernels that compiled code for a CPU calls"
        found.append(at_most(label, 200, [called]))
    return found


def _losses(convnet: list[Row]) -> list[float]:
    """For each padding and optimizer, ours over that of scaling, means over the seeds."""

    def kind(row: Row) -> tuple[str, str]:
        return row["task"]["padding"], row["task"]["optimizer"]

    ratios = []
    for key in dict.fromkeys(kind(row) for row in convnet):
        here = [row for row in convnet if kind(row) == key]
        losses = [_known(row["loss"] for row in of_method(here, m)) for m in (OURS, SCALE)]
        if all(losses):
            ratios.append(mean(losses[0]) / mean(losses[1]))
    return ratios


def of_method(rows: Iterable[Row], method: str) -> list[Row]:
    return with_task(rows, method=method)


def with_task(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows of runs with these settings."""
    return [row for row in rows if all(row["task"][key] == value for key, value in wanted.items())]


def _norms(rows: Iterable[Row]) -> list[float]:
    return [_or_infinity(row["norm"]) for row in rows]


def _or_infinity(value: float | None) -> float:
    return float("inf") if value is None else value


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
