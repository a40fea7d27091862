"""The page of the trade-off between accuracy and accuracy under attack, from a run's JSON."""

from __future__ import annotations

from statistics import fmean

from benchmarks.common.pages import Row, table
from benchmarks.common.training_pages import failed_runs, machines, missing, percent
from benchmarks.tradeoff.cells import EPOCHS, core_hours
from benchmarks.tradeoff.curves import NOT_RUN, Point, figures, leads, points
from benchmarks.tradeoff.picture import is_drawable
from benchmarks.tradeoff.recipe import Recipe
from benchmarks.tradeoff.series import LAYER_BOUNDS, PLAIN, SEEDS, SERIES
from benchmarks.tradeoff.training import LOCAL_IMAGES, PGD_IMAGES

INTRODUCTION = """\
# Accuracy against accuracy under attack

Made by `python -m benchmarks.tradeoff`; do not edit. A small ResNet-18 learns CIFAR-10, held by
each method at several of its own bounds. A low bound costs accuracy on the images as they are and
buys accuracy on images that were attacked: each method is a curve, and the better one is above.

- *The network* is the study's ResNet-18 (`experiments.models`) of width {width}, with halved
  residual sums. Pixels are normalized inside of it: constants are for pixels from 0 to 1.
- *The recipe* is cross entropy, batches of {batch}, crops and flips, and one cycle of the learning
  rate; no weight decay. What is held begins at its bound (`init_at_bound_`) and learns by Adam.
- *Scores are multiplied by 100* inside of every network that is held, after its last layer, so
  that `lipschitz_bounds` and `max_lipschitz` count it. With all layers at 1 its constant is 127.
- *SpectralClip* is swept over the constant L of the network (`max_lipschitz`), and moves the bounds
  of layers by itself. The others hold each layer at the same bound (`max_norm`): {layers}.
- *With a norm*, SpectralClip holds `BatchNorm2d` and `ScalarBatchNorm` together with the
  convolution before them (`compose="conv_bn"`); `CenterNorm` has norm 1. The unclipped network
  learns by SGD with Nesterov momentum.
- *PGD* is the accuracy under 20 steps of projected gradient descent, within 2/255 in each pixel, in
  strides of a quarter of that from one random start, on {pgd} test images.
- *Bound* is the upper end of `lipschitz_bounds` at the end, for SpectralClip after
  `finalize(certify=True)`; *local* is the largest norm of the Jacobian at {local} test images,
  which no bound can be below. *Largest norm* is that of a layer, with the batch norm after it.

| series | what it does, and what its bound is of |
| --- | --- |
{series}
What to keep in mind:

- The learning rate is tuned for each series at its middle bound, and nothing else. That scores are
  multiplied by 100 was chosen by SpectralClip with layers at 1. Bounds of layers from 0.7 to 4
  change the scale of the scores by many powers of ten: another constant may suit them better.
- FastClip, Gouk and Parametrize are left as they end. FastClip and Gouk do not hold their bounds
  strictly: the largest norm shows by how much.
- The lowest and the highest bounds of FastClip, Gouk and Parametrize have one seed: they show where
  a curve ends. So have the two batch norms that are held with their convolution, at one bound: the
  search for a rate has them far behind `CenterNorm`.
- One attack from one start shows an upper end of the true accuracy under attack. Networks are
  small and trained for minutes: larger ones reach more of both.
"""


def render(results: Row, picture: str = "../images/tradeoff.png") -> str:
    """The whole page."""
    parts = results["parts"]
    train = parts.get("train")
    recipe = Recipe()
    introduction = INTRODUCTION.format(
        width=recipe.width,
        batch=recipe.batch,
        layers=", ".join(f"{bound:g}" for bound in LAYER_BOUNDS),
        pgd=PGD_IMAGES,
        local=LOCAL_IMAGES,
        series="".join(f"| {one.name} | {one.about} |\n" for one in SERIES.values()),
    )
    sections = [
        introduction,
        _status(results),
        _figures(train),
        f"![Test accuracy and accuracy under attack]({picture})\n" if is_drawable(results) else "",
        _leads(train),
        _table(train),
        _rates(parts.get("rates")),
        _time(parts.get("rates"), train),
        failed_runs(parts),
        machines(parts),
    ]
    return "\n".join(section for section in sections if section)


def _status(results: Row) -> str:
    """What was run, and what was not."""
    parts = results["parts"]
    text = "## What was run\n\n"
    if results["quick"]:
        text += "A trial with a tiny network and made-up images, which says nothing of note.\n\n"
    lines = []
    if "rates" in parts:
        lines.append(f"- Learning rates were chosen in runs of {parts['rates']['steps']} steps.")
        lines += missing("a rate", [n for n in SERIES if n not in parts["rates"]["chosen"]])
    else:
        lines.append("- Learning rates have not been chosen yet.")
    if "train" not in parts:
        return text + "\n".join([*lines, "- No network has been trained yet."]) + "\n"
    train = parts["train"]
    wanted = {name: len(series.cells) for name, series in SERIES.items()}
    there = {name: sum(r["task"]["series"] == name for r in train["rows"]) for name in SERIES}
    lines.append(
        f"- Training: {train['epochs']:g} epochs ({train['steps']:,} steps) each, up to "
        f"{len(SEEDS)} seeds, {sum(there.values())} of {sum(wanted.values())} cells, "
        f"{train['processes']} at a time."
    )
    if train["epochs"] != EPOCHS:
        lines.append(f"- This is a pilot: the runs that count have {EPOCHS:g} epochs.")
    few = [f"{n} ({there[n]} of {wanted[n]})" for n in SERIES if there[n] < wanted[n]]
    return text + "\n".join([*lines, *missing("some cells", few)]) + "\n"


def _figures(part: Row | None) -> str:
    text = "## Figures of interest\n\n"
    text += "Of means over seeds. *At equal test accuracy*: above whatever the others reach at it "
    text += "or at a higher one, with straight lines between neighbouring bounds.\n\n"
    rows = [] if part is None else part["rows"]
    body = []
    for figure in figures(rows):
        so_far = not figure.is_final and figure.answer != NOT_RUN
        body.append([figure.question, f"{figure.answer}{' **(so far)**' if so_far else ''}"])
    return text + table(["figure", "answer"], body)


LEADS = """\
## How far above

By how many points the PGD accuracy of SpectralClip is above that of each other series at equal test
accuracy or a higher one, without a norm: the mean over the seeds that both were run with, with its
95 % interval. A dash stands where the other one is nowhere so accurate.
"""


def _leads(part: Row | None) -> str:
    """Each point of ours against the curve of each other series."""
    rows = [] if part is None else part["rows"]
    plain = [name for name in SERIES if SERIES[name].panel == PLAIN and points(rows, name)]
    others = [name for name in plain if not SERIES[name].is_ours]
    own = [one for name in plain if name not in others for one in points(rows, name)]
    if not own or not others:
        return ""
    body = [
        [f"{point.bound:g}", f"{point.test:.1f}", *[_lead(leads(point, rows, n)) for n in others]]
        for point in own
    ]
    return LEADS + "\n" + table(["held at", "test", *others], body)


def _lead(found: list[float]) -> str:
    return f"{'' if fmean(found) < 0 else '+'}{percent(found)}" if found else "-"


def _table(part: Row | None) -> str:
    if part is None or not part["rows"]:
        return ""
    text = "## All points\n\n"
    if part["images"] != "cifar10":
        text += f"On {part['images']} images. "
    text += (
        "Accuracies in percent, with 95 % intervals over seeds (Student's, for the mean); means "
    )
    text += "of the others. *Loss* is the mean over the last 5 % of the steps.\n\n"
    header = ["", "held at", "seeds", "test", "PGD", "bound", "local", "largest norm", "loss"]
    body = [
        _line(point)
        for panel in dict.fromkeys(series.panel for series in SERIES.values())
        for name in SERIES
        if SERIES[name].panel == panel
        for point in points(part["rows"], name)
    ]
    return text + table(header, body)


def _line(point: Point) -> list[str]:
    rows = point.rows
    return [
        point.series,
        "-" if point.bound is None else f"{point.bound:g}",
        str(len(rows)),
        percent(row["accuracy"] for row in rows),
        percent(row["pgd"] for row in rows),
        "infinite" if point.constant == float("inf") else f"{point.constant:.4g}",
        *[f"{fmean(row[key] for row in rows):.3g}" for key in ("lower", "largest_norm", "loss")],
    ]


RATES = """\
## Learning rates

One rule for all: each rate is tried in one run of one epoch ({steps} steps) at the middle bound,
with the whole schedule, on the training images without the last {held_out:,}. The rate with the
highest accuracy on these is taken. In the table: that accuracy in percent, at each rate; what was
taken is bold.
"""


def _rates(part: Row | None) -> str:
    if part is None:
        return ""
    body, at_ends = [], []
    for name, series in SERIES.items():
        own = {r["task"]["rate"]: r for r in part["rows"] if r["task"]["series"] == name}
        taken = part["chosen"].get(name)
        cells = [_tried(rate, own.get(rate), bold=rate == taken) for rate in series.rates]
        middle = "-" if series.middle is None else f"{series.middle:g}"
        body.append([name, series.optimizer, middle, *cells])
        if taken in (min(series.rates), max(series.rates)):
            at_ends.append(name)
    text = RATES.format(steps=part["steps"], held_out=part["held_out"])
    header = ["", "optimizer", "held at", "lowest rate", "low", "high", "highest"]
    text += "\n" + table(header, body)
    if at_ends:
        text += f"\nAt an end of what was tried: {', '.join(at_ends)}.\n"
    return text


def _tried(rate: float, row: Row | None, *, bold: bool) -> str:
    text = f"{rate:g}: " + ("-" if row is None else f"{100 * row['accuracy']:.1f}")
    return f"**{text}**" if bold else text


def _time(rates: Row | None, train: Row | None) -> str:
    """What all cells take."""
    epochs = EPOCHS if train is None else train["epochs"]
    hours = core_hours(epochs, rates)
    basis = "a dozen steps of each" if rates is None else "the runs that chose the rates"
    text = f"## Time\n\nAll cells of {epochs:g} epochs, as {basis} would have it: "
    text += f"**{sum(hours.values()):.1f} hours** of one core.\n\n"
    body = [[name, str(len(SERIES[name].cells)), f"{found:.1f}"] for name, found in hours.items()]
    return text + table(["", "cells", "hours of one core"], body)
