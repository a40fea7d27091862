"""A small language model whose attention logits are held, head by head, while it trains.

    python examples/attention_logits.py

It learns to write the documentation of this repository, letter by letter. With a large learning
rate logits grow until attention looks at one place alone. Held, the products of queries and keys
stay where they are told, and the loss is that of the free model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spectralclip as sc

DOCS = Path(__file__).parents[1] / "docs"
CONTEXT, BATCH, WIDTH, HEADS, BOUND = 64, 16, 128, 4, 0.25


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a layer norm."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.largest = 0.0  # logit that was seen

    def forward(self, x: Tensor) -> Tensor:
        """Notes the largest logit on the way."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        with torch.no_grad():
            logits = q @ k.mT / q.shape[-1] ** 0.5
            self.largest = max(self.largest, float(logits.abs().max()))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Letters to scores of the next one."""

    def __init__(self, letters: int) -> None:
        """For an alphabet of so many."""
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores at every place."""
        x = self.letters(tokens) + self.places.weight[: tokens.shape[1]]
        scores: Tensor = self.scores(self.norm(self.blocks(x)))
        return scores


def row(name: str, text: Tensor, steps: int, held: bool) -> str:
    """Train one model, and what became of it."""
    torch.manual_seed(0)
    model = Model(int(text.max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    if held:
        method, example = sc.methods.SpectralClip(compose="heads"), text[None, :CONTEXT]
        sc.attach(model, optimizer, example, method=method, max_norm=logits_alone)
    losses = []
    for starts in torch.randint(len(text) - CONTEXT - 1, (steps, BATCH)):
        tokens = text[starts[:, None] + torch.arange(CONTEXT + 1)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    heads = sc.attention_heads(model, text[None, :CONTEXT]).values()
    norm = max(head.logit.upper for head in heads if head.logit is not None)
    seen = max(block.largest for block in model.blocks)
    last = losses[-max(1, steps // 10) :]
    return f"{name:16} {sum(last) / len(last):6.3f} {norm:10.3f} {seen:14.1f}"


def logits_alone(name: str, layer: sc.FoundLayer) -> float | None:
    """The bound of a layer; None for those that are left alone."""
    return BOUND if name.endswith(".logit") else None


def main() -> None:
    """Train it twice, free and held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    text = "".join(page.read_text() for page in sorted(DOCS.glob("*.md")))
    letters = {letter: n for n, letter in enumerate(sorted(set(text)))}
    numbers = torch.tensor([letters[letter] for letter in text])
    print(f"{'':16} {'loss':>6} {'logit norm':>10} {'largest logit':>14}")
    print(row("free", numbers, steps, held=False))
    print(row(f"held at {BOUND:g}", numbers, steps, held=True))


if __name__ == "__main__":
    main()
