"""What the work after a step asks of a device: counted, since there is no GPU here to time it on.

A few steps of a real training go before, so that what is counted is a step like all later ones.
FastClip is counted at a step without a clip, which comes every 100 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.common.session import Session
from benchmarks.training.compiled import compiled_kernels
from benchmarks.training.counter import Count, counting
from benchmarks.training.methods import (
    FASTCLIP,
    FASTCLIP_BACKWARD,
    OURS,
    OURS_COMPOSED,
    SCALE,
    FastClipByBackward,
    ScaleEveryStep,
    weight_of,
)
from benchmarks.training.models import (
    PADDINGS,
    Padding,
    resnet18,
    resnet34,
    resnet50,
    seeded,
    small_convnet,
)
from spectralclip import attach
from spectralclip._training import Attachment, Method, momentum
from spectralclip.methods import FastClip, SpectralClip

COMPARED = (FASTCLIP, FASTCLIP_BACKWARD, SCALE, OURS)
VECTORS = 4  # the default on an accelerator
OTHER_VECTORS = (2, 8)
BATCH, STEPS = 4, 3  # before those that are counted
WIDTH, FULL_WIDTH = 16, 64

# No checks by the host, which come now and then and are no part of the step.
_ours = partial(SpectralClip, check_every=0, vectors=VECTORS)
COUNTED: dict[str, Callable[[], Method]] = {
    FASTCLIP: FastClip,
    FASTCLIP_BACKWARD: FastClipByBackward,
    SCALE: ScaleEveryStep,
    OURS: _ours,
    OURS_COMPOSED: partial(_ours, compose="conv_bn"),
    **{f"{OURS}, vectors={n}": partial(_ours, vectors=n) for n in OTHER_VECTORS},
}


@dataclass(frozen=True)
class Setting:
    """A model in training."""

    model: str
    make: Callable[[], nn.Module]
    in_shape: tuple[int, ...]
    optimizer: str = "SGD"


@dataclass(frozen=True)
class CountRow:
    """One method on one model, at two steps that follow each other."""

    model: str
    optimizer: str
    method: str
    layers: int
    shapes: int  # different ones, of weights
    kernels: int
    views: int
    reads: int
    bytes: int
    kernels_after: int  # at the second step
    reads_after: int
    bytes_after: int


class Training:
    """A model that learns from one batch, and a method whose work is called for by hand."""

    def __init__(self, setting: Setting, method: Method) -> None:
        self._model = seeded(setting.make, 0)
        generator = torch.Generator().manual_seed(0)
        self._images = torch.randn(BATCH, *setting.in_shape, generator=generator)
        self._labels = torch.arange(BATCH)
        parameters = self._model.parameters()
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(parameters, lr=1e-3)
            if setting.optimizer == "Adam"
            else torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
        )
        example = self._images[:1]
        self.attachment = attach(self._model, self._optimizer, example, method=method)
        for hook in self.attachment._hooks:
            hook.remove()
        _as_on_an_accelerator(self.attachment)

    def step(self) -> None:
        """A step of the optimizer, before the method's work."""
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._model(self._images), self._labels).backward()
        self._optimizer.step()

    def settle(self, steps: int = STEPS) -> None:
        """Some steps with the method's work, and one without."""
        for _ in range(steps):
            self.step()
            self.attachment.step()
        self.step()

    def count(self) -> Count:
        """That of the method's work, after which comes another step."""
        # Small momenta are projected one by one on a CPU, and all at once on an accelerator.
        with counting() as count, patch.object(momentum, "_is_on_host", lambda *_: False):
            self.attachment.step()
        self.step()
        return count


def measure(session: Session) -> dict[str, Any]:
    """All models and methods, and what the compiler makes of one."""
    rows = []
    for setting, name in _cases(session.quick):
        row = _count(setting, name)
        rows.append(asdict(row))
        session.say(
            f"counts: {row.model}, {row.optimizer}, {row.method}: {row.kernels} kernels, "
            f"{row.reads} reads, {row.bytes / 1e6:.1f} MB"
        )
    compiled = None if session.quick else _count_compiled(session)
    return {"batch": BATCH, "vectors": VECTORS, "rows": rows, "compiled": compiled}


def _cases(quick: bool) -> Iterator[tuple[Setting, str]]:
    if quick:
        settings = [_resnet("ResNet-18", resnet18, 4), _convnet("reflect")]
    else:
        settings = [
            _resnet("ResNet-18", resnet18, WIDTH),
            _resnet("ResNet-18", resnet18, WIDTH, "Adam"),
            _resnet("ResNet-34", resnet34, WIDTH),
            _resnet("ResNet-50", resnet50, WIDTH),
            _resnet("ResNet-18", resnet18, FULL_WIDTH),
            *[_convnet(padding) for padding in PADDINGS],
        ]
    for setting in settings:
        first = setting is settings[0] and not quick
        for name in COUNTED if first else COMPARED:
            yield setting, name


def _resnet(
    name: str, make: Callable[[int], nn.Module], width: int, optimizer: str = "SGD"
) -> Setting:
    return Setting(f"{name}, width {width}", partial(make, width), (3, 32, 32), optimizer)


def _convnet(padding: Padding) -> Setting:
    return Setting(f"small convnet, {padding}", partial(small_convnet, padding), (1, 28, 28))


def _count(setting: Setting, name: str) -> CountRow:
    training = Training(setting, COUNTED[name]())
    training.settle()
    first, second = training.count(), training.count()
    layers = training.attachment.layers.values()
    return CountRow(
        model=setting.model,
        optimizer=setting.optimizer,
        method=name,
        layers=len(layers),
        shapes=len({weight_of(layer.modules[0]).shape for layer in layers}),
        **asdict(first),
        kernels_after=second.kernels,
        reads_after=second.reads,
        bytes_after=second.bytes,
    )


def _count_compiled(session: Session) -> dict[str, Any]:
    """ResNet-18 with a compiled step."""
    setting = _resnet("ResNet-18", resnet18, WIDTH)
    training = Training(setting, _ours(compile=True))
    training.settle(1)  # which does not compile: the first step is another one
    found = compiled_kernels(training.attachment.step)
    training.step()
    around = _kernels_around(training)
    session.say(f"counts: compiled: {found}, {around} kernels around it")
    return {"model": setting.model, **asdict(found), "around": around}


def _kernels_around(training: Training) -> int:
    """What a step runs beside the compiled code: it writes weights, and projects momenta."""
    state: Any = training.attachment._state
    engine = state._engine

    def known(values: list[Tensor]) -> Callable[..., list[Tensor]]:
        return lambda **options: values

    with torch.no_grad():
        engine._runs = [known(stage.run()) for stage in engine._stages]
    return training.count().kernels


def _as_on_an_accelerator(attachment: Attachment) -> None:
    """Let SpectralClip not look for what is lost at each step, as it does where reading is free."""
    engine = getattr(attachment._state, "_engine", None)
    if engine is not None:
        engine.is_on_host = False
