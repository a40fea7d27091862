"""The page of certified accuracy at equal time, from a run's JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean

from benchmarks.certified.competitors import COMPETITORS, NONE
from benchmarks.certified.picture import is_drawable
from benchmarks.certified.recipe import Recipe
from benchmarks.certified.training import LOCAL_IMAGES, RADII
from benchmarks.common.pages import Row, grouped, number, table
from benchmarks.common.training_pages import failed_runs, machines, missing, percent
from experiments.accuracy.grid import UNTRAINED

INTRODUCTION = """\
# Certified accuracy at equal time

Made by `python -m benchmarks.certified`; do not edit. One small network learns CIFAR-10 under a
Lipschitz constant of 1, by every method for the same wall-clock time on one thread. *Certified* is
the share of test images that are classified rightly and provably stay so, whatever is done to them
within a radius in the l2 norm, with pixels from 0 to 1.

- *The network* halves the side of the image three times by pixel unshuffling, which loses nothing.
  After each halving come 3x3 convolutions with zero padding, each followed by {center}`nn.MaxMin`:
  {stages} channels. At the end is one dense layer. There are no
  batch norms and no residuals. A constant is subtracted from the pixels and nothing is divided, so
  that distances are those of images. Weights begin orthogonal (`init_at_bound_`).
- *The recipe* is `margin_cross_entropy` for a radius of {radius:g} at a temperature of
  {temperature:g}, batches of {batch}, {images}, and Adam. The rate rises over a share of
  {warm_up:g} of the steps, and then falls to zero.
- *The time* is turned into steps: what a step takes is measured once for all, in turns and
  undisturbed, and each competitor gets as many steps as fit.
- *The bound* is the upper end of `lipschitz_bounds` for the network as it is at the end, after
  `finalize(certify=True)` where a method was attached, and certificates rest on it. *Local* is
  the largest norm of the Jacobian at {local} test images, which no bound can be below.
- *PGD* is the accuracy under 20 steps of projected gradient descent, within 2/255 in each pixel,
  in strides of a quarter of that from one random start.

| competitor | what it does |
| --- | --- |
{competitors}
SpectralClip and Parametrize hold the network at 1 (`max_lipschitz`), all others each layer
(`max_norm`). SOC, Cayley, LOT and AOC compute with circular padding. Every one goes through the
same function for training; a method is attached beside the optimizer, and AOC's layers stand in
place of torch's.

What to keep in mind:

- The learning rate is tuned for each competitor, and nothing else. All else was chosen by
  SpectralClip alone, in single short runs tested on training images that were held out, and may
  suit others less. Certified at 36/255 after a quarter of the time: 35.0 % where images are
  mirrored only, 26.8 % where they are moved by up to 4 pixels too; from there, 37.3 % with a radius
  of 0.25 in place of 0.15, 30.0 % with half the temperature. `nn.CenterNorm` took 18 points in runs
  of 600 steps.
- Times are those of the implementations here. SOC and LOT are the library's own: SOC takes exact
  exponentials at every frequency, where its authors sum a few convolutions. Code of the authors,
  which was not run here, may be faster.
- Gouk and FastClip do not hold the bound by themselves; `finalize` clips their networks to it at
  the end, which is no part of the published methods. *Before* and *after* show what that costs.
- All runs share one machine, and the networks are small and trained for minutes: published
  certified accuracies come from networks and budgets that are many times larger.
"""


def render(results: Row, picture: str = "../images/certified.png") -> str:
    """The whole page."""
    parts = results["parts"]
    about = "".join(f"| {one.name} | {one.about} |\n" for one in COMPETITORS.values())
    sections = [
        INTRODUCTION.format(local=LOCAL_IMAGES, competitors=about, **_recipe(parts)),
        _status(results),
        _table(parts.get("train")),
        f"![Certified accuracy by radius]({picture})\n" if is_drawable(results) else "",
        _networks(parts.get("train")),
        _steps(parts.get("steps"), parts.get("train")),
        _rates(parts.get("rates")),
        failed_runs(parts),
        machines(parts),
    ]
    return "\n".join(section for section in sections if section)


def _recipe(parts: Row) -> Row:
    """What the text says of the recipe that was timed; before that, of the one that will be."""
    recipe = parts["steps"]["recipe"] if "steps" in parts else asdict(Recipe())
    stages = zip(recipe["depths"], recipe["channels"], strict=True)
    shift = recipe["shift"]
    return {
        **recipe,
        "stages": ", ".join(f"{depth} with {channels}" for depth, channels in stages),
        "center": "`nn.CenterNorm` and " if recipe["center"] else "",
        "images": f"mirrored images{f' moved by up to {shift} pixels' if shift else ''}",
    }


def _status(results: Row) -> str:
    """What was run, and what was not."""
    parts = results["parts"]
    text = "## What was run\n\n"
    if results["quick"]:
        text += "A trial with a tiny network and made-up images, which says nothing of note.\n\n"
    lines = []
    if "steps" in parts:
        lines.append(f"- Steps were timed over {parts['steps']['rounds']} rounds.")
    else:
        lines.append("- Steps have not been timed yet.")
    if "rates" in parts:
        rates = parts["rates"]
        share = f"{100 * rates['share']:g} % of {rates['minutes']:g} minutes"
        lines.append(f"- Learning rates were chosen in runs of {share} each.")
        lines += missing("a rate", [n for n in COMPETITORS if n not in rates["chosen"]])
    else:
        lines.append("- Learning rates have not been chosen yet.")
    if "train" not in parts:
        return text + "\n".join([*lines, "- No network has been trained yet."]) + "\n"
    train = parts["train"]
    seeds = {name: len(rows) for name, rows in _by_competitor(train).items()}
    wanted = len(train["seeds"])
    lines.append(
        f"- Training: {train['minutes']:g} minutes each, {wanted} seeds, {sum(seeds.values())} of "
        f"{wanted * len(COMPETITORS)} runs, {train['processes']} at a time."
    )
    few = [f"{n} ({seeds.get(n, 0)} of {wanted})" for n in COMPETITORS if seeds.get(n, 0) < wanted]
    return text + "\n".join([*lines, *missing("some seeds", few)]) + "\n"


def _by_competitor(part: Row) -> dict[str, list[Row]]:
    """The runs of each competitor, the best certified first."""
    rows = [{**row, "competitor": row["task"]["competitor"]} for row in part["rows"]]
    groups = grouped(rows, "competitor")
    first = str(RADII[0])

    def rank(name: str) -> tuple[float, float]:
        own = groups[name]
        return fmean(r["certified"][first] for r in own), fmean(r["accuracy"] for r in own)

    return {name: groups[name] for name in sorted(groups, key=rank, reverse=True)}


def _table(part: Row | None) -> str:
    if part is None or not part["rows"]:
        return ""
    text = "## Accuracy\n\n"
    text += "In percent, with 95 % intervals over seeds (Student's, for the mean); on 10,000 test "
    text += f"images, PGD on {part['pgd_images']:,}.\n\n"
    if part["images"] != "cifar10":
        text = f"## Accuracy\n\nOn {part['images']} images.\n\n"
    header = ["", "seeds", "steps", *[f"certified, {r}/255" for r in RADII], "accuracy", "PGD"]
    body = [
        [
            name,
            str(len(rows)),
            f"{rows[0]['task']['steps']:,}",
            *[percent(row["certified"][str(radius)] for row in rows) for radius in RADII],
            percent(row["accuracy"] for row in rows),
            percent(row["pgd"] for row in rows),
        ]
        for name, rows in _by_competitor(part).items()
    ]
    return text + table(header, body)


NETWORKS = """\
## The networks

Means over seeds. *Product* is the bound with each layer bounded apart; *before* and *after* are
the accuracies in percent before and after `finalize`; *loss* is the mean over the last 5 % of the
steps; *training* the minutes that the steps of a run took, beside other runs.
"""


def _networks(part: Row | None) -> str:
    if part is None or not part["rows"]:
        return ""
    text = NETWORKS + "\n"
    header = ["", "bound", "local", "product", "before", "after", "loss", "training"]
    body = []
    for name, rows in _by_competitor(part).items():
        mean = _mean_of(rows)
        body.append(
            [
                name,
                mean("bound", 4),
                mean("lower", 4),
                mean("product", 4),
                "-" if name == NONE else number(100 * fmean(r["accuracy_before"] for r in rows), 1),
                number(100 * fmean(r["accuracy"] for r in rows), 1),
                mean("loss", 3),
                number(fmean(r["seconds"] for r in rows) / 60, 1),
            ]
        )
    return text + table(header, body)


def _mean_of(rows: list[Row]) -> Callable[[str, int], str]:
    """Means of an entry; infinite where one run has none."""

    def mean(key: str, digits: int) -> str:
        values = [row[key] for row in rows]
        return "infinite" if None in values else f"{fmean(values):.{digits}g}"

    return mean


STEPS = """\
## Steps

All competitors take their steps in turns in one process. *Step* is the median wall time, multiplied
by what the mean of the processor times is above their median: that counts what a method does
now and then, and not what other programs did meanwhile.
"""


def _steps(part: Row | None, train: Row | None) -> str:
    if part is None:
        return ""
    minutes = 20.0 if train is None else train["minutes"]
    plain = next(row["step_seconds"] for row in part["rows"] if row["competitor"] == NONE)
    body = [
        [
            row["competitor"],
            f"{1e3 * row['step_seconds']:.1f} ms",
            f"{1e3 * row['median_seconds']:.1f} ms",
            f"{row['step_seconds'] / plain:.2f}",
            f"{int(60 * minutes / row['step_seconds']):,}",
        ]
        for row in part["rows"]
    ]
    header = ["", "step", "median", "over that of none", f"steps in {minutes:g} minutes"]
    return STEPS + "\n" + table(header, body)


RATES = """\
## Learning rates

One rule for all: each rate is tried in one run of {share:g} % of the steps, with the whole
schedule, on the training images without the last {held_out:,}. The rate with the highest certified
accuracy at 36/255 on these is taken, and between equals the one with the highest accuracy; a
network at {untrained:.0f} % or below has not learned, and is taken only where none has. In the
table: certified accuracy in percent, with the accuracy in brackets; the rate taken is bold.
"""


def _rates(part: Row | None) -> str:
    if part is None:
        return ""
    body = []
    for name, rows in grouped(part["rows"], "competitor").items():
        found = {row["rate"]: row for row in rows}
        taken = part["chosen"].get(name)
        cells = [_tried(found.get(rate), bold=rate == taken) for rate in part["tried"]]
        body.append([name, str(rows[0]["steps"]), *cells])
    header = ["", "steps", *[f"{rate:g}" for rate in part["tried"]]]
    text = RATES.format(
        share=100 * part["share"], held_out=part["held_out"], untrained=100 * UNTRAINED
    )
    text += "\n" + table(header, body)
    ends = (min(part["tried"]), max(part["tried"]))
    at_ends = [name for name, rate in part["chosen"].items() if rate in ends]
    if at_ends:
        text += f"\nAt an end of what was tried: {', '.join(at_ends)}.\n"
    return text


def _tried(row: Row | None, *, bold: bool) -> str:
    if row is None:
        return "-"
    text = f"{100 * row['certified'][str(RADII[0])]:.1f} ({100 * row['accuracy']:.1f})"
    return f"**{text}**" if bold else text
