"""The page of clipping during training from a run's JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from benchmarks.common.pages import Row, number, table, targets
from benchmarks.training.figures import with_task
from benchmarks.training.methods import counts_matvecs
from benchmarks.training.picture import is_drawable

INTRODUCTION = """\
# Clipping while training, side by side

Made by `python -m benchmarks.training`; do not edit. Threads: {threads}, set explicitly.
Machine: {cpu}, {cores} cores. Versions: torch {torch}, NumPy {numpy}, SciPy {scipy}, Python
{python}, spectralclip {spectralclip}. Every layer is to stay within c = 1.

- *SpectralClip* is ours, with its defaults. *FastClip* is the paper's Algorithm 3 as printed: one
  iteration of PowerQR a step and layer, and one round of clipping every 100 steps; also every 10.
  It runs on the library's own operators. *By backward* is the same as the published code applies
  layers: by `.backward()`, with f(0) and the gradients of the weights computed each time. *Scale*
  does one warm power iteration a step and layer, and divides weights by what it finds above c.
- A *matvec* is one vector through a layer, its transpose or its gradient in the weights.
- *True norms* are Rayleigh quotients in float64 of vectors that Lanczos finds, by code and from
  vectors of its own, after the method has done its work on the step. Dense layers and 1x1
  convolutions are decomposed. ARPACK checks the same layers twice in each run of ours.
- SGD has a learning rate of 0.01 and momentum 0.9, Adam a learning rate of 1e-3. Images are
  standardized; the small convnet has three 3x3 convolutions with strides 1, 2, 2 and
  {channels} channels, and a dense layer, and learns digits in batches of 64. Accuracy is that on
  4,000 test digits, or on 2,000 images of CIFAR-10 that were held out.
"""


def render(results: Row, picture: str = "../images/training.png") -> str:
    parts = results["parts"]
    newest = list(parts.values())[-1]
    sections = [
        INTRODUCTION.format(**newest["versions"], **newest["machine"], **results["settings"]),
        "## Targets\n\n" + targets(results["figures"]),
        _image(results, picture),
        _overhead(parts.get("overhead")),
        _network(parts.get("network")),
        _heads(parts.get("heads")),
        _held(parts.get("held")),
        _growth(parts.get("growth")),
        _tracker(parts.get("tracker")),
        _counts(parts.get("counts")),
        _failed(parts.get("held")),
        _runs(parts),
    ]
    return "\n".join(section for section in sections if section)


def _image(results: Row, picture: str) -> str:
    if not is_drawable(results):
        return ""
    return f"![True norms while training, and the overhead, by method]({picture})\n"


OVERHEAD = """\
## Overhead

Each method trains its own copy of the model, and all take their steps in turns on the same
batches. *Step* is the median time of forward, backward and the optimizer's step alone; *after it*
the mean time of the method's work, over all steps with this model, since it does not depend on
the batch (in brackets: over those of this batch size). FastClip's clips are counted at their rate
of one in 100 steps, also where they were made to come sooner to be measured. *First* steps are the
54 after the start, in which ours checks layers often and steps those again whose norms jump.
*Later* ones of ResNet-18 come after these and 300 more; of small networks, all count as later.
"""


def _overhead(part: Row | None) -> str:
    if part is None:
        return ""
    header = [
        "model",
        "batch",
        "steps",
        "method",
        "step",
        "after it",
        "overhead",
        "matvecs / step / layer",
        "true norm / c, largest",
    ]
    body = [
        [
            row["model"],
            str(row["batch"]),
            row["stage"],
            row["method"],
            f"{1e3 * row['plain_seconds']:.1f} ms",
            f"{1e3 * row['after_seconds']:.2f} ({1e3 * row['after_here_seconds']:.2f}) ms",
            f"{100 * row['overhead']:.1f} %",
            _matvecs(row["method"], row["num_matvecs"]),
            number(row["norm"], 3),
        ]
        for row in part["rows"]
    ]
    return OVERHEAD + "\n" + table(header, body)


NETWORK = """\
## One number for the whole network

Two copies of a network take their steps in turns on the same batches, with Adam: one with
`max_norm={max_norm:g}` for each layer, one with `max_lipschitz={max_lipschitz:g}`, which is L
here, for all of it. Both start at their bounds. *Step* is the median time of a step without the
method's work, *after it* the mean time of that work, for each of the two. *Ratio* is that of
whole steps made of these two numbers; *by medians* that of the medians of whole steps, which does
not see what comes once in 100 steps. *Bound / L* is what the rules of `lipschitz_bounds` make of
the layers' norms in float64, read right after every {every}th step: the smallest and the largest
reading. *Proved* is after `.finalize(certify=True)`. ResNet-18 has no batch norm and halves the
sums of its blocks.
"""


def _network(part: Row | None) -> str:
    if part is None:
        return ""
    header = ["model", "seed", "step", "after it, max_norm", "after it, max_lipschitz", "ratio"]
    header += ["by medians", "readings", "bound / L", "proved / L", "loss"]
    body = [
        [
            row["model"],
            str(row["seed"]),
            f"{1e3 * row['step_seconds']:.1f} ms",
            f"{1e3 * row['max_norm_after']:.2f} ms",
            f"{1e3 * row['max_lipschitz_after']:.2f} ms",
            number(row["ratio"], 3),
            number(row["median_ratio"], 3),
            str(row["readings"]),
            f"{number(row['bound_least'], 4)} to {number(row['bound'], 4)}",
            number(row["certified"], 4),
            number(row["loss"], 3),
        ]
        for row in part["rows"]
    ]
    return NETWORK.format(**part) + "\n" + table(header, body)


HEADS = """\
## Attention heads

Copies of a GPT of {depth} layers, width {width} and {heads} heads a layer learn the pages of this
documentation, {batch} pieces of {context} letters a step, with AdamW at a rate of 1e-3, in turns on
the same batches. One is free; of the others the products of all heads are held at {share:g} of the
smallest norm that one of them has at the start. *True norms* are dense decompositions in float64,
read after every {every}th of {steps} steps; the loss is the mean over the last tenth of them.
"""


def _heads(part: Row | None) -> str:
    if part is None:
        return ""
    header = ["held", "products", "step", "after it", "overhead", "true norm / c, largest", "loss"]
    body = [
        [
            row["held"],
            str(row["products"]),
            f"{1e3 * row['step_seconds']:.1f} ms",
            f"{1e3 * row['after_seconds']:.2f} ms",
            f"{100 * row['overhead']:.1f} %",
            number(row["norm"], 4),
            number(row["loss"], 3),
        ]
        for row in part["rows"]
    ]
    return HEADS.format(**part["setting"], share=part["share"]) + "\n" + table(header, body)


HELD = """\
## Norms held

The largest true norm over all layers and readings after the first 5 % of the steps, read at every
step for SpectralClip and at every 20th for the others; the loss is the mean over the last 50
steps. Over seeds: the largest norm, and mean loss and accuracy. *Final* is after `.finalize()`.
"""


def _held(part: Row | None) -> str:
    if part is None:
        return ""
    rows = part["rows"]
    convnet = with_task(rows, model="small convnet")
    resnet = with_task(rows, model="ResNet-18")
    alone = [row for row in rows if row["task"]["rate"] is not None]
    text = HELD
    if convnet:
        text += f"\nSmall convnet on {part['images']['small convnet']}, "
        text += f"{convnet[0]['task']['steps']} steps:\n\n"
        text += _held_table(convnet, ("padding", "optimizer"))
    if resnet:
        task = resnet[0]["task"]
        text += f"\nResNet-18 of width {task['width']} on CIFAR-10, {task['steps']} steps of batch "
        text += f"32, true norms every {task['every']}. With *compose* it is the norms of "
        text += "convolutions with the following batch norm:\n\n"
        slow = [row for row in resnet if row["task"]["learning_rate"] is None]
        text += _held_table(slow, ("compose",))
        fast = [row for row in resnet if row["task"]["learning_rate"] is not None]
        if fast:
            task = fast[0]["task"]
            text += f"\nThe same with larger learning rates, {task['steps']} steps, true norms "
            text += f"every {task['every']}:\n\n"
            text += _held_table(fast, ("learning_rate",))
    if alone:
        text += "\nStand-alone layers with zero padding and the norm c at the beginning. Each step "
        text += "has the norm *rate* c, half of it in the direction of the first weights and half "
        text += "in a random one, always the same or (*fresh*) a new one:\n\n"
        text += _held_table(alone, ("model", "rate", "fresh"))
    return text


def _held_table(rows: list[Row], keys: Sequence[str]) -> str:
    header = [
        *keys,
        "method",
        "seeds",
        "true norm / c",
        "loss",
        "matvecs / step / layer",
        "accuracy",
        "final norm / c",
        "final accuracy",
    ]
    body = []
    for group in _grouped(rows, lambda row: tuple(row["task"][key] for key in (*keys, "method"))):
        first = group[0]["task"]
        body.append(
            [
                *[_plain(first[key]) for key in keys],
                first["method"],
                str(len(group)),
                _summary([row["norm"] for row in group], max, 4),
                _summary([row["loss"] for row in group], mean, 4),
                _matvecs(first["method"], mean(row["num_matvecs"] for row in group)),
                _summary([row["accuracy"] for row in group], mean, 2),
                _summary([row["finalized_norm"] for row in group], max, 5),
                _summary([row["finalized_accuracy"] for row in group], mean, 2),
            ]
        )
    return table(header, body)


def _growth(part: Row | None) -> str:
    if part is None:
        return ""
    text = "## Growth with layers and images\n\n"
    text += "Time of the work after a step on equal layers, 32->32 3x3 with zero padding, whose "
    text += f"weights move by {100 * part['rate']:g} % a step, as those of the stand-alone ones.\n"
    for varied, other, label in (
        ("layers", "side", "layers, on images of side {}"),
        ("side", "layers", "side of the image, {} layers"),
    ):
        rows = [row for row in part["rows"] if row["varied"] == varied]
        methods = list(dict.fromkeys(row["method"] for row in rows))
        counting = [method for method in methods if counts_matvecs(method)]
        body = [
            [
                str(group[0][varied]),
                *[f"{1e3 * row['seconds']:.2f} ms" for row in group],
                *[f"{row['num_matvecs']:.2f}" for row in group if row["method"] in counting],
            ]
            for group in _grouped(rows, lambda row: row[varied])  # noqa: B023
        ]
        header = [label.format(rows[0][other]), *methods]
        text += "\n" + table([*header, *[f"{m}, matvecs" for m in counting]], body)
    return text


def _tracker(part: Row | None) -> str:
    if part is None:
        return ""
    text = "## Tracking\n\n"
    text += (
        "The small convnet learns with SGD and nothing is clipped. Share of tracked norms within "
    )
    text += "1e-3 of the truth, over convolutions and steps, after a few steps to begin with.\n\n"
    header = ["padding", "method", "share", "error, median", "error, largest", "pairs a step"]
    body = [
        [
            row["padding"],
            row["method"],
            f"{row['share']:.3f}",
            f"{row['median_error']:.1e}",
            f"{row['largest_error']:.1e}",
            _matvecs(row["method"], row["pairs"]),
        ]
        for row in part["rows"]
    ]
    return text + table(header, body)


COUNTS = """\
## What a step launches

Counted, not timed, of the work after one step of a training with a batch of {batch}. *Kernels* are
operations on tensors other than views, one each, although some take more than one launch on a GPU;
a call on lists of tensors is one if they are contiguous and of equal shapes, and otherwise one
for each tensor. *Reads* are the values that the host waits for. *MB* are those of the inputs and
outputs of all kernels. *Shapes* are different ones of weights. All is counted on the CPU, where
SpectralClip is told to work as on an accelerator: with {vectors} vectors at each frequency where
it is not said otherwise, and without asking after each step which layers are not finite. Its
checks, which come now and then, are left out; FastClip is counted at a step without a clip. Two
numbers are those of two steps, where they differ. [What that means for a GPU](../hardware.md).
"""
COMPILED = """\
With `SpectralClip(compile=True)` the code for a step of {model}, on a CPU, calls {functions}
generated functions and {external} operations that are not generated, most of them products. The
functions hold {loops} loops, each of which would be a kernel of its own on a GPU. Beside the
compiled code {around} kernels write the weights and project the momentum.
"""


def _counts(part: Row | None) -> str:
    if part is None:
        return ""
    header = ["model", "optimizer", "method", "layers", "shapes", "kernels", "reads", "MB moved"]
    body = [
        [
            row["model"],
            row["optimizer"],
            row["method"],
            str(row["layers"]),
            str(row["shapes"]),
            _both(row["kernels"], row["kernels_after"], "d"),
            _both(row["reads"], row["reads_after"], "d"),
            _both(row["bytes"] / 1e6, row["bytes_after"] / 1e6, ".1f"),
        ]
        for row in part["rows"]
    ]
    text = COUNTS.format(**part) + "\n" + table(header, body)
    compiled = part["compiled"]
    return text if compiled is None else text + "\n" + COMPILED.format(**compiled)


def _both(first: float, second: float, form: str) -> str:
    """A number, or two where the second differs."""
    written = [f"{value:{form}}" for value in (first, second)]
    return ", ".join(dict.fromkeys(written))


def _failed(part: Row | None) -> str:
    if part is None or not part["failed"]:
        return ""
    body = [[row["run"], row["error"]] for row in part["failed"]]
    return "## Failed\n\n" + table(["run", "error"], body)


def _runs(parts: Row) -> str:
    body = [
        [name, f"{part['seconds']:.0f}", number(part["wall_over_cpu"], 2)]
        for name, part in parts.items()
    ]
    return "## Runs\n\n" + table(["part", "seconds", "wall time / CPU time"], body)


def _grouped(rows: Iterable[Row], key: Callable[[Row], object]) -> list[list[Row]]:
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _summary(
    values: Iterable[float | None], summary: Callable[[list[float]], float], digits: int
) -> str:
    """A dash where something is not there, or went out of bounds."""
    every = list(values)
    known = [value for value in every if value is not None]
    return number(summary(known), digits) if len(known) == len(every) else "-"


def _matvecs(method: str, value: float) -> str:
    """A dash for a method that does not count them."""
    return number(value if counts_matvecs(method) else None, 2)


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"
