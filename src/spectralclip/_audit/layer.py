"""What audits say of one layer: by itself, and in comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

from spectralclip._bounds import Interval


@final
@dataclass(frozen=True)
class LayerAudit:
    """What is known of one affine layer of a model, or of a chain of them as one operator.

    Attributes:
        name: The module's name in the model; the names joined by "+" for a chain.
        role: "layer", or "chain".
        parts: The names of its modules, in the order of their use.
        kind: Their types, such as "Conv2d" or "Conv2d + BatchNorm2d".
        geometry: Sizes and paddings in plain words.
        in_shape: Shape of one input, without the batch. Where the layer is used at several, the
            one at which its norm is largest. What acts on each row of its input alone, as dense
            layers and embeddings do, is audited on one row.
        out_shape: Shape of one output.
        uses: How often it is called in one forward pass.
        parameters: How many numbers its parameters have.
        shared: Other names in the model under which one of its weights is found.
        norm: An interval that holds the largest singular value.
        singular_values: The largest ones, descending, to the accuracy that the settings name.
        frobenius: Frobenius norm of the operator.
        frobenius_is_exact: Whether that is known up to rounding; else it is an estimate.
        stable_rank: `frobenius^2 / norm^2`: over how many directions the layer's gain is spread.
        reshaped_norm: What `torch.nn.utils.spectral_norm` would take for the norm: the largest
            singular value of the kernel as a matrix `(out, rest)`. None where there is no one
            kernel.
        batch_norm: For a chain with batch norm, the norm of the batch norm alone (the product,
            if there are several); else None.
        linear: For a chain with batch norm, the norm of the chain without it; else None.
        compensates: Whether batch norm and the rest of the chain work against each other, so that
            bounding one of them alone says little about the chain.
        remark: What this means and what to do, in a sentence or two.
        max_norm: The bound at which training holds it, with an attachment; else None.
        pressure: The share of one of the latest steps that clipping has undone, where it is known.
    """

    name: str
    role: Literal["layer", "chain"]
    parts: tuple[str, ...]
    kind: str
    geometry: str
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    uses: int
    parameters: int
    shared: tuple[str, ...]
    norm: Interval
    singular_values: tuple[float, ...]
    frobenius: float
    frobenius_is_exact: bool
    stable_rank: float
    reshaped_norm: float | None
    batch_norm: float | None
    linear: float | None
    compensates: bool
    remark: str
    max_norm: float | None = None
    pressure: float | None = None


class Change(NamedTuple):
    """A layer in two audits; an interval is None where one of them does not have it.

    `change` is the relative change of the norm (-0.5: half of what it was), from the middles of
    the intervals; None where there is nothing to compare.
    """

    name: str
    before: Interval | None
    after: Interval | None
    change: float | None


def change_of(name: str, before: Interval | None, after: Interval | None) -> Change:
    if before is None or after is None or before.lower + before.upper == 0:
        return Change(name, before, after, None)
    ratio = (after.lower + after.upper) / (before.lower + before.upper)
    return Change(name, before, after, ratio - 1)
