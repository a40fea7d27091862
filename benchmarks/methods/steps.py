"""What each method costs beside a step of ResNet-18: all in turns, on the same batches.

Each step with a method comes right behind a plain one, and is compared with that one: over a run of
ten minutes the machine is not always equally fast.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.method_variants import Variant, variants
from benchmarks.common.session import Session
from benchmarks.training.methods import Nothing
from benchmarks.training.models import resnet18, seeded
from spectralclip import Attachment, Method, attach

NONE = "none"
ROUNDS = 3
# Beside the methods with their defaults; other settings multiply the same work.
FURTHER = {
    "delattre, penalty": Variant("delattre", {"use": "penalty"}),
    "fast_clip, concat": Variant("fast_clip", {"concat": True}),
    "spectral_clip, conv + batch norm": Variant("spectral_clip", {"compose": "conv_bn"}),
}
TOO_LONG = 40.0  # seconds of a step, after which a method takes no further one but a due one


@dataclass(frozen=True)
class StepRow:
    """One method beside the training."""

    method: str
    layers: int = 0
    seconds: float | None = None  # of a step with the method: median
    ratio: float | None = None  # of such a step to the plain one before it: median
    due_seconds: float | None = None  # of a step at which it clips, where that is not each
    every: int = 1
    over_plain: float | None = None  # `ratio`, with the steps at which it clips in their share
    steps: int = 0
    reason: str = ""


class Trained:
    """One copy of the network with a method beside it."""

    def __init__(self, method: Method, width: int, example: Tensor) -> None:
        self.model = seeded(lambda: resnet18(width, halve=True), 0).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.every = int(getattr(method, "every", 1))
        self.attachment: Attachment = attach(self.model, self.optimizer, example, method=method)
        self.seconds: list[float] = []
        self.ratios: list[float] = []
        self.due_seconds: float | None = None

    def step(self, images: Tensor, labels: Tensor) -> float:
        began = time.perf_counter()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), labels)
        (loss + self.attachment.penalty()).backward()
        self.optimizer.step()
        return time.perf_counter() - began

    def make_due(self) -> None:
        """Let the next step be one at which it clips."""
        state = self.attachment.state_dict()
        self.attachment.load_state_dict({**state, "steps": [self.every - 1]})


def measure(session: Session) -> dict[str, Any]:
    width, batch = (4, 4) if session.quick else (64, 32)
    rounds = 2 if session.quick else ROUNDS
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(2, 3, 32, 32, generator=generator)
    trained, reasons = _begun(width, example)
    plain = Trained(Nothing(), width, example)
    for index in range(rounds + 1):
        images = torch.randn(batch, 3, 32, 32, generator=generator)
        labels = torch.randint(10, (batch,), generator=generator)
        names = list(trained)
        for name in names[index % len(names) :] + names[: index % len(names)]:
            one = trained[name]
            if one.seconds and one.seconds[0] > TOO_LONG:
                continue
            before = plain.step(images, labels)
            one.seconds.append(one.step(images, labels))
            one.ratios.append(one.seconds[-1] / before)
        session.say(f"round {index} of {rounds}")
    for name, one in trained.items():
        if one.every > 1:
            one.make_due()
            one.due_seconds = one.step(images, labels)
            session.say(f"{name}: a clip")
    rows = [_row(name, one) for name, one in trained.items()]
    rows += [StepRow(name, reason=reason) for name, reason in reasons.items()]
    return {"width": width, "batch": batch, "rows": [asdict(row) for row in rows]}


def _begun(width: int, example: Tensor) -> tuple[dict[str, Trained], dict[str, str]]:
    trained, reasons = {NONE: Trained(Nothing(), width, example)}, {}
    usual = {name: one for name, one in variants().items() if not one.settings}
    for name, variant in {**usual, **FURTHER}.items():
        try:
            trained[name] = Trained(variant.make(), width, example)
        except Exception as error:  # refusals are part of the comparison
            reasons[name] = f"{type(error).__name__}: {error}"
    return trained, reasons


def _row(name: str, one: Trained) -> StepRow:
    """The first round warms up, and counts only where there is no other."""
    counted = one.seconds[1:] or one.seconds
    seconds, ratio = statistics.median(counted), statistics.median(one.ratios[1:] or one.ratios)
    due = one.due_seconds
    share = 0.0 if due is None else (due / seconds - 1) / one.every
    layers = len(one.attachment.layers) if name != NONE else 0
    return StepRow(name, layers, seconds, ratio, due, one.every, ratio * (1 + share), len(counted))
