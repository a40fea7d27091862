"""One clip of one layer by each method: the true norm that is left, how far it moved, the time."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.clipping.layers import ClipCase, Problem, TrueDistance, movable, true_norm
from benchmarks.common.method_variants import Variant, variants
from benchmarks.common.session import Session
from spectralclip import Method, attach, clip_
from spectralclip.methods import paper_clip_

REPEATS = 3
NORM = 6.0  # sigma_1 of the layers, to be brought down to 1
PADDINGS = ("zeros", "circular", "reflect", "replicate")
Clip = Callable[[nn.Module, Problem], nn.Module]


@dataclass(frozen=True)
class ClipRow:
    """One method on one layer."""

    method: str
    layer: str
    norm: float | None = None  # true norm that is left, over the bound
    distance: float | None = None  # ||M(W') - M(W)||_F over that of the exact projection
    seconds: float | None = None
    reason: str = ""


def cases(quick: bool) -> list[ClipCase]:
    """Layers with a decaying spectrum, as trained ones have it."""
    channels, side = (4, 8) if quick else (32, 16)
    found = []
    for index, (padding, stride) in enumerate((p, s) for p in PADDINGS for s in (1, 2)):

        def make(padding: str = padding, stride: int = stride) -> nn.Module:
            return nn.Conv2d(channels, channels, 3, stride, 1, bias=False, padding_mode=padding)

        name = padding if stride == 1 else f"{padding}, stride {stride}"
        shape = (channels, side, side)
        found.append(ClipCase(name, make, shape, "trained", 1 / NORM, NORM, seed=index))
    features = 16 if quick else 256
    dense = ClipCase(
        "dense",
        lambda: nn.Linear(features, features, bias=False),
        (features,),
        "gaussian",
        1 / NORM,
        NORM,
    )
    return [*found, dense]


def measure(session: Session) -> dict[str, Any]:
    rows = []
    for case in cases(session.quick):
        rows += _case(session, case)
        session.say(f"clips of {case.kind}")
    return {"norm": NORM, "rows": [asdict(row) for row in rows]}


def contestants() -> dict[str, Clip]:
    """Each method as it clips once, and the library's functions that stand alone."""
    found: dict[str, Clip] = {
        "clip_": _by(lambda module, one: clip_(module, one.in_shape, one.limit)),
        "clip_, exact": _by(lambda module, one: clip_(module, one.in_shape, one.limit, exact=True)),
        "paper_clip_": _by(
            lambda module, one: paper_clip_(module, one.in_shape, one.limit, lr=0.1)
        ),
    }
    for name, variant in variants().items():
        if _clips(variant):
            found[name] = _one_step(variant)
    return found


def _clips(variant: Variant) -> bool:
    """Whether one step of it is a clip: not of penalties, nor of what is for compositions."""
    return variant.settings.get("use") != "penalty" and not variant.composes()


def _by(clip: Callable[[nn.Module, Problem], object]) -> Clip:
    def run(module: nn.Module, problem: Problem) -> nn.Module:
        clip(module, problem)
        return module

    return run


def _one_step(variant: Variant) -> Clip:
    """Attached, one forward pass for those that work there, one step, removed."""

    def run(module: nn.Module, problem: Problem) -> nn.Module:
        method: Method = variant.make()
        if getattr(method, "every", 1) > 1:
            method = dataclasses.replace(method, every=1)  # type: ignore[type-var]
        model = nn.Sequential(module).train()
        example = torch.ones(1, *problem.in_shape)
        attachment = attach(model, None, example, method=method, max_norm=problem.limit)
        model(example)
        attachment.step()
        attachment.remove()
        return model[0]

    return run


def _case(session: Session, case: ClipCase) -> list[ClipRow]:
    problem, methods = case.build(), contestants()
    before = movable(problem.module).weight.clone()
    left: dict[str, nn.Module] = {}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    reasons: dict[str, str] = {}
    for repeat in range(1 if session.quick else REPEATS):
        names = list(methods)
        shift = repeat * len(names) // REPEATS
        for name in names[shift:] + names[:shift]:
            if name in reasons:
                continue
            module = copy.deepcopy(problem.module).requires_grad_(True)
            began = time.perf_counter()
            try:
                module = methods[name](module, problem)
            except Exception as error:  # refusals are part of the comparison
                reasons[name] = f"{type(error).__name__}: {error}"
                continue
            seconds[name].append(time.perf_counter() - began)
            left[name] = module.requires_grad_(False).eval()
    return _rows(case, problem, before, left, seconds, reasons)


def _rows(
    case: ClipCase,
    problem: Problem,
    before: Tensor,
    left: dict[str, nn.Module],
    seconds: dict[str, list[float]],
    reasons: dict[str, str],
) -> list[ClipRow]:
    distance = TrueDistance(problem.module, problem.in_shape)
    least = distance(before, movable(left["clip_, exact"]).weight)
    rows = []
    for name, times in seconds.items():
        if name not in left:
            rows.append(ClipRow(name, case.kind, reason=reasons[name]))
            continue
        norm = true_norm(left[name], problem.in_shape) / problem.limit
        if not math.isfinite(norm):
            rows.append(ClipRow(name, case.kind, reason="weights are not finite"))
            continue
        after = movable(left[name])
        # Layers by construction may end with a kernel as large as the image.
        moved = distance(before, after.weight) / least if same_form(problem, after) else None
        rows.append(ClipRow(name, case.kind, norm, moved, median(times)))
    return rows


def same_form(problem: Problem, after: nn.Module) -> bool:
    """Whether only the weight is another."""
    before = movable(problem.module)
    padding = [getattr(one, "padding_mode", "") for one in (before, after)]
    return before.weight.shape == after.weight.shape and padding[0] == padding[1]
