"""The page of the methods side by side, from its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from benchmarks.common.pages import Row, one_line, selected, table

INTRODUCTION = """\
# The methods side by side

Made by `python -m benchmarks.methods`; do not edit. One thread. Machine: {cpu}, {cores} cores.
Versions: torch {torch}, NumPy {numpy}, SciPy {scipy}, Python {python}, spectralclip
{spectralclip}. Within a part all methods take turns; times are medians. True norms are those of
dense matrices in float64 or, for larger layers, Rayleigh quotients in float64 of vectors that
ARPACK finds. [Which method holds which layer](methods.md) says what each is for.
"""
ESTIMATES = """\
## Estimates of the norm

Square convolutions on {side}x{side} images with filters from a normal distribution: kernels of 3,
5 and 7, channels from 1 to 64, each padding, strides 1 and 2, three filters each (one with 64
channels). *Error* is the largest `|estimate / truth - 1|` over kernels, channels and filters, with
the mean ratio behind it; `-` stands where a method is not defined. Farnia's estimate is Gouk's.
"""
BY_CHANNELS = """\
The error by the number of channels, the mean of `|estimate / truth - 1|` over kernels, paddings
other than circular, and filters, at stride 1:
"""
TIMES = """\
Milliseconds of one estimate, median over paddings, at stride 1, by kernel and channels:
"""
CLIPS = """\
## One clip

3x3 convolutions of 32 channels on 16x16 images with a spectrum as after training, and a dense layer
of 256, are to be brought from a norm of {norm:g} down to 1 in one go: one step of the method. The
true norm that is left over the bound; behind it `||M(W') - M(W)||_F`, over that of the exact
projection. A small distance with a norm far above the bound means that little was done. *Another
layer*: layers by construction end as circular convolutions with a kernel as large as the image, or
spread out over it (ECO).
"""
CLIP_TIMES = "Milliseconds of it, the making of the method and one forward pass included:\n"
STEPS = """\
## A step of training

ResNet-18 of width {width}, batch {batch}, SGD, random images. *Step* is the whole step, forward and
backward pass and the work of the method. *Over the plain step*: each step is compared with a plain
one just before it, and the median of these ratios is shown; that of `none` itself tells how far to
trust them. *Clip* is a step at which the method clips, where it does not each time; *all in all*
has those in their share.

These are the first steps of a new network, all of whose layers are above their bound. A method that
works where need be, as SpectralClip, works hardest there; in the course of a training it takes the
share of a step that [its own page](training.md) has.
"""


def page(results: Row) -> str:
    parts = results["parts"]
    newest = list(parts.values())[-1]
    sections = [INTRODUCTION.format(**newest["versions"], **newest["machine"])]
    if "estimates" in parts:
        sections.append(_estimates(parts["estimates"]))
    if "clips" in parts:
        sections.append(_clips(parts["clips"]))
    if "steps" in parts:
        sections.append(_steps(parts["steps"]))
    sections.append(_loads(parts))
    return "\n".join(sections)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))


def _estimates(part: Row) -> str:
    rows, names = part["rows"], _names(part["rows"])
    columns = [(p, s) for p in ("zeros", "circular", "reflect", "replicate") for s in (1, 2)]
    header = ["method", *(f"{p} /{s}" if s > 1 else p for p, s in columns)]
    body = [
        [name, *(_error(selected(rows, method=name, padding=p, stride=s)) for p, s in columns)]
        for name in names
    ]
    channels = sorted({row["channels"] for row in rows})
    kernels = sorted({row["kernel"] for row in rows})
    return "\n".join(
        [
            ESTIMATES.format(**part),
            table(header, body),
            BY_CHANNELS,
            table(["method", *map(str, channels)], _by_channels(rows, names, channels)),
            TIMES,
            table(
                ["method", *(f"{k}x{k}, {c}" for k in _ends(kernels) for c in channels)],
                _times(rows, names, _ends(kernels), channels),
            ),
        ]
    )


def _ends(values: Sequence[int]) -> list[int]:
    """The smallest and the largest."""
    return sorted({values[0], values[-1]})


def _error(rows: Sequence[Row]) -> str:
    known = [row for row in rows if row["error"] is not None]
    if not known:
        return "-"
    return f"{max(row['error'] for row in known):.1e} ({mean(row['ratio'] for row in known):.3f})"


def _by_channels(
    rows: Sequence[Row], names: Sequence[str], channels: Sequence[int]
) -> list[list[str]]:
    body = []
    for name in names:
        own = [row for row in selected(rows, method=name, stride=1) if row["error"] is not None]
        off = [row for row in own if row["padding"] != "circular"]
        cells = [selected(off, channels=count) for count in channels]
        body.append([name, *(_mean_error(cell) for cell in cells)])
    return body


def _mean_error(rows: Sequence[Row]) -> str:
    return f"{mean(abs(row['ratio'] - 1) for row in rows):.1e}" if rows else "-"


def _times(
    rows: Sequence[Row], names: Sequence[str], kernels: Sequence[int], channels: Sequence[int]
) -> list[list[str]]:
    body = []
    for name in names:
        line = [name]
        for kernel in kernels:
            for count in channels:
                cell = selected(rows, method=name, kernel=kernel, channels=count, stride=1)
                times = [row["seconds"] for row in cell if row["seconds"] is not None]
                line.append(f"{1e3 * median(times):.3g}" if times else "-")
        body.append(line)
    return body


def _clips(part: Row) -> str:
    rows, names = part["rows"], _names(part["rows"])
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    by_place = {(row["method"], row["layer"]): row for row in rows}
    norms = [[name, *(_clip_cell(by_place[name, layer]) for layer in layers)] for name in names]
    times = [[name, *(_ms(by_place[name, layer]["seconds"]) for layer in layers)] for name in names]
    header = ["method", *layers]
    return "\n".join([CLIPS.format(**part), table(header, norms), CLIP_TIMES, table(header, times)])


def _clip_cell(row: Row) -> str:
    if row["norm"] is None:
        return "-"
    distance = "another layer" if row["distance"] is None else f"{row['distance']:.2f}"
    return f"{row['norm']:.3f} ({distance})"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3g}"


def _steps(part: Row) -> str:
    header = [
        "method",
        "layers",
        "step, s",
        "over the plain step",
        "clip, s",
        "every",
        "all in all",
    ]
    body = []
    for row in part["rows"]:
        if row["seconds"] is None:
            body.append([row["method"], "-", "-", "-", "-", "-", one_line(row["reason"], 100)])
            continue
        body.append(
            [
                row["method"],
                str(row["layers"]),
                f"{row['seconds']:.3g}",
                f"{row['ratio']:.2f}",
                "" if row["due_seconds"] is None else f"{row['due_seconds']:.3g}",
                "" if row["every"] == 1 else str(row["every"]),
                f"{row['over_plain']:.2f}",
            ]
        )
    return STEPS.format(**part) + "\n" + table(header, body)


def _loads(parts: Row) -> str:
    """Whether the machine had other work; times are to be read with that in mind."""
    body = [
        [name, f"{part['seconds']:.0f}", f"{part['wall_over_cpu']:.2f}"]
        for name, part in parts.items()
    ]
    return "## The run\n\n" + table(["part", "seconds", "wall time over processor time"], body)
