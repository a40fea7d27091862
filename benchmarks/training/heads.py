"""Attention heads that are held while a language model learns: what it costs, and the true norms.

Copies of a small GPT learn the pages of the documentation, letter by letter, in turns on the same
batches: one free, one with the logit products of all heads held, one with their value products too.
Bounds are below what the products have at the start, so that all of them are held from then on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.audit.models import TransformerBlock
from benchmarks.common.runs import ROOT
from benchmarks.common.session import Session
from benchmarks.training.models import seeded
from spectralclip import Attachment, FoundLayer, attach, attention_heads
from spectralclip.methods import SpectralClip

FREE, LOGITS, BOTH = "free", "logits", "logits and values"
HELD = {FREE: (), LOGITS: (".logit",), BOTH: (".logit", ".value")}
SHARE = 0.8  # of the smallest norm at the start: the bound of all


@dataclass(frozen=True)
class Setting:
    """A language model, and how long it learns."""

    depth: int = 4
    width: int = 256
    heads: int = 4
    batch: int = 16
    context: int = 128
    steps: int = 60
    warm_up: int = 8  # steps whose times do not count
    every: int = 5  # steps between two readings of the true norms


QUICK = Setting(depth=2, width=32, heads=2, batch=2, context=16, steps=6, warm_up=1, every=2)


class LanguageModel(nn.Module):
    """Letters to scores of the next one."""

    def __init__(self, letters: int, setting: Setting) -> None:
        super().__init__()
        width = setting.width
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(128, width)
        blocks = [TransformerBlock(width, setting.heads) for _ in range(setting.depth)]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, letters))

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.blocks(self.letters(tokens) + self.places.weight[: tokens.shape[1]])
        return scores


@dataclass(frozen=True)
class HeadsRow:
    """One copy of the model."""

    held: str
    products: int
    step_seconds: float  # without the method's work: median over all copies
    after_seconds: float  # of the method's work: mean
    overhead: float
    norm: float | None  # largest true norm of a held product over its bound, at all readings
    loss: float  # mean over the last tenth of the steps


@dataclass
class Learner:
    """A copy of the model, some products of which are held."""

    model: nn.Module
    held: str
    bound: float
    example: Tensor
    plain: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._stamps: list[float] = []
        # Hooks run in the order of their registration: this one just before the method's.
        self.optimizer.register_step_post_hook(lambda *_: self._stamps.append(time.perf_counter()))
        self.attachment: Attachment | None = None
        if HELD[self.held]:
            method = SpectralClip(compose="heads")
            self.attachment = attach(
                self.model, self.optimizer, self.example, method=method, max_norm=self._bound_of
            )

    def _bound_of(self, name: str, layer: FoundLayer) -> float | None:
        return self.bound if name.endswith(HELD[self.held]) else None

    def step(self, tokens: Tensor) -> None:
        began = time.perf_counter()
        self.optimizer.zero_grad()
        scores = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        ended, middle = time.perf_counter(), self._stamps.pop()
        self.plain.append(middle - began)
        self.after.append(ended - middle)
        self.losses.append(loss.item())

    def read(self) -> None:
        """The largest true norm of what is held, over its bound, by dense decompositions."""
        if HELD[self.held]:
            found = true_norms(self.model)
            held = [norm for kind in HELD[self.held] for norm in found[kind]]
            self.norms.append(max(held) / self.bound)


def true_norms(model: nn.Module) -> dict[str, list[float]]:
    """Of both products of all heads, in float64 from the weights of their layers."""
    found: dict[str, list[float]] = {".logit": [], ".value": []}
    for block in model.modules():
        if not isinstance(block, TransformerBlock):
            continue
        attention: Any = block.attention[1]
        count, inward = attention.heads, attention.inward
        offsets = inward.bias.detach().double()[:, None]
        made = torch.cat([inward.weight.detach().double(), offsets], 1)
        q, k, v = made.unflatten(0, (3, count, -1))
        out = attention.outward.weight.detach().double().unflatten(1, (count, -1)).movedim(1, 0)
        logits = q.mT @ k / q.shape[1] ** 0.5
        found[".logit"] += torch.linalg.matrix_norm(logits, 2).tolist()
        found[".value"] += torch.linalg.matrix_norm(out @ v, 2).tolist()
    return found


def measure(session: Session) -> dict[str, Any]:
    """All copies in turns."""
    setting = QUICK if session.quick else Setting()
    text = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    numbers = torch.tensor([letters[letter] for letter in text])

    def make() -> nn.Module:
        return LanguageModel(len(letters), setting)

    rows = [asdict(row) for row in _rows(setting, make, numbers)]
    for row in rows:
        session.say(
            f"heads, {row['held']}: {1e3 * row['after_seconds']:.1f} ms after a step of "
            f"{1e3 * row['step_seconds']:.0f} ms, norm {row['norm']}, loss {row['loss']:.3f}"
        )
    return {"setting": asdict(setting), "share": SHARE, "rows": rows}


def _rows(setting: Setting, make: Callable[[], nn.Module], text: Tensor) -> list[HeadsRow]:
    example = text[None, : setting.context]
    start = true_norms(seeded(make, 0))
    bound = SHARE * min(norm for own in start.values() for norm in own)
    learners = [Learner(seeded(make, 0), held, bound, example) for held in HELD]
    generator = torch.Generator().manual_seed(0)
    for step in range(1, setting.steps + 1):
        last_start = len(text) - setting.context
        starts = torch.randint(last_start, (setting.batch, 1), generator=generator)
        tokens = text[starts + torch.arange(setting.context + 1)]
        for learner in learners[step % 3 :] + learners[: step % 3]:
            learner.step(tokens)
            if step % setting.every == 0:
                learner.read()
    skip, last = setting.warm_up, max(1, setting.steps // 10)
    plain = statistics.median(one for own in learners for one in own.plain[skip:])
    found = []
    for own in learners:
        after = statistics.mean(own.after[skip:])
        products = 0 if own.attachment is None else len(own.attachment.layers)
        norm, loss = max(own.norms, default=None), statistics.mean(own.losses[-last:])
        found.append(HeadsRow(own.held, products, plain, after, after / plain, norm, loss))
        if own.attachment is not None:
            own.attachment.remove()
    assert len(attention_heads(learners[0].model, example)) == setting.depth * setting.heads
    return found
