"""`spectralclip demo`: what clipping does to a small network for digits, measured on the spot.

The same network is trained without clipping, with each layer clipped, and with each convolution
clipped together with its batch norm as well; once more without clipping, at settings that suit it
better. All are attacked and audited, which makes one table and the pages of the report.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spectralclip._audit import (
    Audit,
    AuditComparison,
    Column,
    Sheet,
    audit,
    plain_table,
    rich_table,
)
from spectralclip._common import needed, note, require_writable, write_texts
from spectralclip.demo.digits import load_digits
from spectralclip.demo.network import RECIPES, Recipe, train
from spectralclip.demo.pgd import pgd, predictions
from spectralclip.report._numbers import at_least, at_most

RADII = (0.5, 1.0, 1.5)  # of the attack; a digit has a length of about 9
CERTIFIED = 0.1  # the radius within which a class is to be certain
FOLDER = Path("spectralclip-demo")


class Size(NamedTuple):
    """How much is done."""

    digits: int  # to learn from
    tests: int
    epochs: int
    width: int
    steps: int  # of the attack


FULL = Size(digits=4000, tests=500, epochs=6, width=32, steps=20)
QUICK = Size(digits=640, tests=50, epochs=1, width=8, steps=5)


class Result(NamedTuple):
    """What was measured of one network; shares of the test digits are between 0 and 1."""

    recipe: Recipe
    accuracy: float
    attacked: tuple[float, ...]
    certified: float
    audit: Audit
    seconds: float


def run(out: Path, seed: int = 0, quick: bool = False) -> None:
    """Train, attack and audit the networks; print the table and write the report.

    Args:
        out: The folder of the report, which is made if need be.
        seed: Of weights and batches. The same seed gives the same table but for the times, on the
            same machine with the same number of threads.
        quick: Do everything in a small way, to see that it works; the networks learn little.

    Raises:
        OSError: The folder cannot be written to; this is found out before the work.

    Example:
        >>> import contextlib, io, tempfile
        >>> from pathlib import Path
        >>> from spectralclip import demo
        >>> folder, printed = tempfile.TemporaryDirectory(), io.StringIO()
        >>> with folder, contextlib.redirect_stdout(printed):
        ...     demo.run(Path(folder.name), quick=True)
        ...     pages = sorted(path.name for path in Path(folder.name).glob("*.json"))
        >>> pages[0], "under attack" in printed.getvalue()
        ('comparison.json', True)
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    require_writable(out / "comparison.json")
    size = QUICK if quick else FULL
    _say(_before(size))
    results = []
    for number, recipe in enumerate(RECIPES, 1):
        note(f"{number}/{len(RECIPES)} {recipe.label}: training, attack, audit ...")
        results.append(measure(recipe, size, seed))
    pages, complaint = report(results)
    write_texts({out / name: text for name, text in pages.items()})
    _show(sheet(results))
    _say(_after({result.recipe.key: result for result in results}, quick))
    _say(_where(out, pages) + complaint)


def measure(recipe: Recipe, size: Size, seed: int) -> Result:
    """Train a network by the recipe, and measure what the table says of it."""
    images, labels = (part[: size.digits] for part in load_digits("train"))
    started = time.perf_counter()
    model = train(recipe, images, labels, epochs=size.epochs, seed=seed, width=size.width)
    seconds = time.perf_counter() - started
    every = slice(None, None, 1000 // size.tests)
    tests, classes = (part[every] for part in load_digits("test"))
    found = audit(model, tests[:8], seed=seed)
    right = predictions(model, tests) == classes
    with torch.no_grad():
        certain = right & (found.certified_radius(model(tests)) > CERTIFIED)
    attacked = survivors(model, tests, classes, size.steps)
    return Result(recipe, _share(right), attacked, _share(certain), found, seconds)


def survivors(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> tuple[float, ...]:
    """The share of images that keep their class under attack, at each radius.

    What a short way changes, a longer one does: only what is left is attacked further out.
    """
    left, shares = torch.ones_like(labels, dtype=torch.bool), []
    for radius in RADII:
        attacked = pgd(model, images[left], labels[left], radius, steps=steps)
        left[left.clone()] = predictions(model, attacked) == labels[left]
        shares.append(_share(left))
    return tuple(shares)


def sheet(results: Sequence[Result]) -> Sheet:
    """The table: a column for each network."""
    rows: list[tuple[str, Callable[[Result], str]]] = [
        ("accuracy", lambda one: f"{one.accuracy:.1%}"),
        *(
            (f"under attack, radius {radius:g}", lambda one, at=at: f"{one.attacked[at]:.1%}")
            for at, radius in enumerate(RADII)
        ),
        (f"certified, radius {CERTIFIED:g}", lambda one: f"{one.certified:.1%}"),
        ("Lipschitz constant at least", lambda one: at_least(_bounds(one.audit)[0])),
        ("Lipschitz constant at most", lambda one: at_most(_bounds(one.audit)[1])),
        ("largest conv or dense norm", lambda one: at_most(_largest(one.audit, "layer"))),
        ("largest conv+BN norm", lambda one: at_most(_largest(one.audit, "chain"))),
        ("seconds of training", lambda one: f"{one.seconds:.1f}"),
    ]
    columns = [Column("clipped:", "left"), *(Column(one.recipe.label) for one in results)]
    cells = [(name, *(text(one) for one in results)) for name, text in rows]
    return Sheet("Digits: accuracy, attacks and norms", columns, cells, "")


def report(results: Sequence[Result]) -> tuple[dict[str, str], str]:
    """The files of the report by name, and what to say if there can be no pages."""
    named = {one.recipe.key: one for one in results}
    change = named["unclipped"].audit.compare(named["composition"].audit)
    documents: dict[str, tuple[Audit | AuditComparison, str]] = {
        key: (one.audit, f"Digits, clipped: {one.recipe.label}") for key, one in named.items()
    }
    documents["comparison"] = change, "Digits: without clipping, and with conv+BN clipped"
    texts = {f"{key}.json": document.to_json() for key, (document, _) in documents.items()}
    try:
        pages = {f"{key}.html": doc.to_html(title=title) for key, (doc, title) in documents.items()}
    except ImportError as error:
        return texts, f"\nThe pages are missing: {error}"
    return {**texts, **pages}, ""


def _before(size: Size) -> str:
    return _filled(
        f"The same small network with batch norm learns {size.digits:,} real digits: without "
        "clipping (none), with each convolution and dense layer clipped to norm 1 (layers), and "
        "with each convolution and its batch norm clipped together as well (conv+BN); the last "
        f"has no clipping, and settings of its own that suit it better. Then {size.tests} test "
        "digits are attacked: moved by up to a radius, in the l2 norm, to change their class."
    )


def _after(named: Mapping[str, Result], quick: bool) -> str:
    """What there is to see, in the numbers of this run; of a quick one only norms mean anything."""
    free, layers, both, tuned = (
        named[key] for key in ("unclipped", "layers", "composition", "unclipped-tuned")
    )
    at = RADII.index(1.0)
    chain, (_, upper) = at_most(_largest(layers.audit, "chain")), _bounds(both.audit)
    norms = (
        "What to see: where layers are clipped one by one, a convolution and its batch norm still "
        f"amplify by up to {chain}; clipped together, they leave the network a Lipschitz constant "
        f"of at most {at_most(upper)} (without clipping: {at_most(_bounds(free.audit)[1])})"
    )
    if quick:
        return _filled(
            f"{norms}. After a moment of training the networks know little: accuracy, attacks "
            "and certificates tell nothing about clipping yet. The demo without --quick compares "
            "these, too."
        )
    return _filled(
        f"{norms}, which certifies that {both.certified:.1%} of the digits are right and stay so "
        f"within {CERTIFIED:g} (without clipping: {free.certified:.1%}, tuned "
        f"{tuned.certified:.1%}). The attack at radius 1 leaves {both.attacked[at]:.1%} right, "
        f"against {free.attacked[at]:.1%} without clipping at the same settings and "
        f"{tuned.attacked[at]:.1%} at settings of its own: what an attack finds depends on how a "
        "network was trained, and what is certified holds against every attack."
    )


def _where(out: Path, pages: Mapping[str, str]) -> str:
    kind = "html" if "comparison.html" in pages else "json"
    return (
        f"Next: open {out / f'comparison.{kind}'}\n"
        f"(none against conv+BN, layer by layer; {len(pages) - 1} files are beside it),\n"
        "and audit a model of your own: spectralclip audit nets.py:Net --input 3,32,32"
    )


def _filled(text: str) -> str:
    return textwrap.fill(text, 88) + "\n"


def _share(which: Tensor) -> float:
    return float(which.double().mean())


def _bounds(found: Audit) -> tuple[float, float]:
    bound = found.lipschitz
    return (0.0, math.inf) if bound is None else (bound.lower, bound.upper)


def _largest(found: Audit, role: str) -> float:
    """The largest norm among chains, or among layers other than batch norms."""
    return max(
        layer.norm.upper
        for layer in found.layers
        if layer.role == role and not layer.kind.startswith("BatchNorm")
    )


def _show(table: Sheet) -> None:
    """In colour on a terminal; plain where nobody sees colours, or rich is missing."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console

        Console().print(rich_table(table))
    else:
        _say(plain_table(table))


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """`python -m spectralclip.demo`, which needs none of the packages of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", "--out", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="train for a moment only")
    given = parser.parse_args()
    os.environ.update(needed())
    run(given.output, given.seed, given.quick)
