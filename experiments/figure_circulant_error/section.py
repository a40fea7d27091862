"""What the report says of the circulant-error figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.experiment import Chart, Record, Section, Table
from experiments.figure_circulant_error.errors import CIRCULANT, GRAM, PADDINGS, Error, errors
from experiments.judging.statistics import summary
from experiments.report import line_charts as charts


def section(records: Sequence[Record]) -> Section:
    """Charts by kernel and by padding, and the errors at the most channels."""
    found = list(errors(records))
    if not found:
        return Section(["No runs yet."])
    filters = len({error.index for error in found})
    side = records[0].config["side"]
    taken = f"{filters} filters with taps from N(0, 1), each a seed of its own, images of {side} x "
    taken += f"{side}, as many channels in as out; scale: {records[0].scale}."
    said = f"{taken} Lines are means, bands what the filters span."
    residual = max(record.result["largest_residual"] for record in records)
    truth = (
        "The paper says that the norm of the circulant matrix is exact for circular padding "
        "alone, that for other paddings its error grows dramatically with the number of channels, "
        "and with the kernel, and that the method of Delattre et al., which knows no stride, is "
        "off by even more at stride 2. It names neither the channels nor the size of the image. "
        "The true norms are computed by ARPACK on the layer's own forward and backward, and their "
        f"Rayleigh quotients in float64; the largest relative residual is {residual:.1e}."
    )
    return Section([truth, _by_kernel(found, said), _by_stride(found, said), _table(found, taken)])


def _means(found: Sequence[Error], name: str, title: Callable[[Error], str]) -> list[charts.Row]:
    return [
        {
            "channels": e.channels,
            "error": max(e.error, 1e-9),  # what a logarithmic axis can show
            name: title(e),
            "padding": e.padding,
            "estimate": e.estimate.split(" (")[0],
        }
        for e in found
    ]


def _by_kernel(found: Sequence[Error], said: str) -> Chart:
    shown = [e for e in found if e.stride == 1 and e.estimate == CIRCULANT]
    kernels = sorted({e.kernel for e in shown})
    spec = charts.lines(
        _means(shown, "panel", lambda e: f"{e.kernel} x {e.kernel}"),
        charts.number("channels", "channels", log=True),
        charts.number("error", "absolute error of the norm", log=True),
        charts.name("padding", "padding", PADDINGS),
        panels=charts.name("panel", None, [f"{kernel} x {kernel}" for kernel in kernels]),
        columns=3,
    )
    return Chart(
        "circulant-error",
        spec,
        f"The norm of the circulant matrix against the layer's, at stride 1. {said}",
        "Absolute errors of the circulant norm over the number of channels, a panel for each "
        "kernel size and a line for each padding.",
    )


def _by_stride(found: Sequence[Error], said: str) -> Chart:
    kernel = min(e.kernel for e in found)
    shown = [e for e in found if e.kernel == kernel]
    spec = charts.lines(
        [
            {**row, "line": f"{row['estimate']}, {row['panel']}"}
            for row in _means(shown, "panel", lambda e: f"stride {e.stride}")
        ],
        charts.number("channels", "channels", log=True),
        charts.number("error", "absolute error of the norm", log=True),
        charts.name(
            "line",
            None,
            [
                f"{estimate.split(' (')[0]}, stride {stride}"
                for estimate in (CIRCULANT, GRAM)
                for stride in (1, 2)
            ],
        ),
        panels=charts.name("padding", None, PADDINGS),
    )
    return Chart(
        "circulant-error-stride",
        spec,
        f"Both estimates of {kernel}x{kernel} kernels at strides 1 and 2. {said}",
        "Absolute errors of two estimates over the number of channels at both strides, a panel for "
        "each padding.",
    )


def _table(found: Sequence[Error], taken: str) -> Table:
    most = max(e.channels for e in found)
    columns = [(estimate, stride) for stride in (1, 2) for estimate in (CIRCULANT, GRAM)]
    rows = []
    for kernel in sorted({e.kernel for e in found}):
        for padding in PADDINGS:
            cells = [
                _mean([e for e in found if _at(e, kernel, most, padding, stride, estimate)])
                for estimate, stride in columns
            ]
            rows.append([f"{kernel} x {kernel}", padding, *cells])
    header = ["kernel", "padding", *(f"{e.split(' (')[0]}, stride {s}" for e, s in columns)]
    caption = (
        f"Absolute error at {most} channels, mean and standard deviation over filters, and in "
        f"brackets its mean share of the norm. {taken}"
    )
    return Table(header, rows, caption)


def _at(e: Error, kernel: int, channels: int, padding: str, stride: int, estimate: str) -> bool:
    return (e.kernel, e.channels, e.padding, e.stride, e.estimate) == (
        kernel,
        channels,
        padding,
        stride,
        estimate,
    )


def _mean(found: Sequence[Error]) -> str:
    if not found:
        return "–"
    absolute = summary([e.error for e in found])
    spread = "" if absolute.std is None else f" ± {absolute.std:.1g}"
    relative = summary([e.error / e.true for e in found]).mean
    return f"{absolute.mean:.2g}{spread} ({100 * relative:.2g} %)"
