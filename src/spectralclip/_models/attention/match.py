"""Which dense layers make and read the heads of attention, and in which columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectralclip._models.attention.observe import AttentionCall, DenseCall, Observed


class Matching(NamedTuple):
    """Where to look."""

    most_calls: int = 12  # of dense layers, around a call of attention, that are looked at
    fewest_rows: int = 4  # to tell a rotation from chance


MATCHING = Matching()


class Found(NamedTuple):
    """The place of each head in a dense layer, and by how much its numbers were multiplied."""

    call: DenseCall
    width: int
    columns: tuple[int, ...]
    factors: tuple[float, ...]
    is_rotated: bool

    def numbers(self) -> Tensor:
        """What the layer has made for each head, `(rows, heads, width)`."""
        parts = zip(self.columns, self.factors, strict=True)
        return torch.stack([f * self.call.made[:, at : at + self.width] for at, f in parts], 1)


class Traced(NamedTuple):
    """Where the queries, keys and values of a call come from, and what reads the result."""

    queries: Found | None
    keys: Found | None
    values: Found | None
    output: Found | None

    def matrices(self) -> tuple[Any, ...]:
        """Which columns of which dense layers these are."""
        return tuple(one and (one.call.module, one.columns) for one in self)


def traced(call: AttentionCall, dense: Sequence[DenseCall]) -> Traced:
    """The dense layers around a call of attention."""
    before, after = dense[: call.before], dense[call.before :]
    return Traced(
        _find_made(before, call.queries, rotations=True),
        _find_made(before, call.keys, rotations=True),
        _find_made(before, call.values, rotations=False),
        _find_given(after, call.result),
    )


def different_calls(seen: Observed) -> Iterator[tuple[AttentionCall, Traced, int]]:
    """The calls of attention, each with the number that its first head has in its module.

    A module may compute attention twice: with other matrices these are further heads of it, as
    self- and cross-attention in one block; with the same ones, a layer that is used again.
    """
    known: dict[str, dict[Any, int]] = {}  # how many heads there are with these matrices
    for call in seen.attention:
        found = traced(call, seen.dense)
        counts = known.setdefault(call.where, {})
        if found.matrices() not in counts:
            start = sum(counts.values())
            counts[found.matrices()] = call.queries.shape[1]
            yield call, found, start


def _find_made(calls: Sequence[DenseCall], heads: Tensor, *, rotations: bool) -> Found | None:
    """The latest of some calls whose output the heads are, perhaps each vector rotated."""
    for is_rotated in (False, True) if rotations else (False,):
        for call in reversed(calls[-MATCHING.most_calls :]):
            found = _places(call.made, heads, call.tol, is_rotated)
            if found is not None:
                return Found(call, heads.shape[2], *found, is_rotated)
    return None


def _find_given(calls: Sequence[DenseCall], heads: Tensor) -> Found | None:
    """The first of some calls whose input the heads are."""
    for call in calls[: MATCHING.most_calls]:
        found = _places(call.given, heads, call.tol, False)
        if found is not None:
            return Found(call, heads.shape[2], *found, False)
    return None


def _places(
    rows: Tensor, heads: Tensor, tol: float, is_rotated: bool
) -> tuple[tuple[int, ...], tuple[float, ...]] | None:
    """For each head the columns that it is, times a positive number; None if one is missing.

    Parts of a packed output may lie in any order, but begin at multiples of their width.
    """
    count, _, width = heads.shape
    blocks = rows[:, : rows.shape[1] // width * width].unflatten(1, (-1, width))
    if len(rows) != count or blocks.shape[1] == 0 or (is_rotated and count < MATCHING.fewest_rows):
        return None
    if is_rotated:
        blocks, heads = (x.norm(dim=2, keepdim=True) for x in (blocks, heads))
    flat, wanted = (x.transpose(0, 1).flatten(1) for x in (blocks, heads))
    sizes, sought = flat.norm(dim=1), wanted.norm(dim=1)
    factors = sought[:, None] / sizes.clamp_min(1e-300)
    pairs = zip(wanted, factors, strict=True)
    apart = torch.stack([(one - own[:, None] * flat).norm(dim=1) for one, own in pairs])
    apart = apart / sought[:, None].clamp_min(1e-300)
    # Where all rows are alike, as with equal tokens, the norms of any columns would do.
    likely = (apart < tol).sum(1)
    if bool((likely == 0).any()) or (is_rotated and bool((likely > 1).any())):
        return None
    nearest = apart.min(1)
    columns = tuple(width * int(place) for place in nearest.indices)
    chosen = factors.gather(1, nearest.indices[:, None])[:, 0].tolist()
    return columns, tuple(1.0 if abs(one - 1) < tol else one for one in chosen)
