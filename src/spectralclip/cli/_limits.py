"""`--fail-above`: which norms of an audit are not certified to be within a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from spectralclip._audit._layer import LayerAudit
from spectralclip._audit._record import Audit


class FailOn(str, Enum):
    """What is held against the limit."""

    layers = "layers"
    chains = "chains"
    network = "network"


def above(audit: Audit, limit: float, what: Sequence[FailOn]) -> list[str]:
    """What may be above the limit, in words: an upper end that is not within it counts.

    A norm whose interval holds the limit is not known to be above, nor known to be within; to
    pass, it has to be certified.
    """
    parts = [one for one in what if one is not FailOn.network]
    chosen = list(dict.fromkeys(row.name for one in parts for row in _rows(audit, one)))
    found = [_words(audit[name], limit) for name in chosen if audit[name].norm.upper > limit]
    bound = audit.lipschitz
    if FailOn.network in what and bound is not None and not bound.upper <= limit:
        found.append(f"the network ({bound.lower:.4g} .. {bound.upper:.4g})")
    return found


def _rows(audit: Audit, what: FailOn) -> Iterator[LayerAudit]:
    chained = {part for row in audit.layers if row.role == "chain" for part in row.parts}
    for row in audit.layers:
        alone = row.role == "layer"
        if alone if what is FailOn.layers else not alone or row.name not in chained:
            yield row


def _words(row: LayerAudit, limit: float) -> str:
    undecided = ", undecided" if row.norm.lower <= limit else ""
    return f"{row.name} ({row.norm.lower:.4g} .. {row.norm.upper:.4g}{undecided})"
