"""Cisse et al. (2017), Parseval networks: retraction toward orthonormal rows after each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._linalg import largest_singular_value
from spectralclip._operators import CONVS, HALF_PRECISION
from spectralclip._training import MethodState, Promise, Sharing, saved_vectors
from spectralclip.methods._domain import (
    DENSE,
    EstimatingMethod,
    Source,
    check_count,
    sole_module,
)
from spectralclip.methods.baselines._orthogonal import repetition

_TROUBLE = "weights are not finite, or so large that the retraction enlarges them: scale them down."


@final
@dataclass(frozen=True)
class Cisse(EstimatingMethod):
    """Parseval networks: pull the rows of each kernel toward orthonormal ones.

    Moustapha Cisse, Piotr Bojanowski, Edouard Grave, Yann Dauphin, Nicolas Usunier: *Parseval
    Networks: Improving Robustness to Adversarial Examples*, ICML 2017 (arXiv 1704.08847).

    The kernel is taken for a matrix W with a row for each output channel (in each group). One
    gradient step on `beta/4 ||W W^T - I||^2` after each step of the optimizer, on some of the rows
    drawn anew each time,

        W_S <- (1 + beta) W_S - beta W_S W_S^T W_S,

    pulls all singular values of W toward one: large ones down, and small ones up. In a
    convolution an input pixel lies in up to t windows, t the number of taps, so that the
    layer's norm is at most `sqrt(t) ||W||`. The authors divide its output by `sqrt(t)`; in a plain
    layer the rows get the length `max_norm / sqrt(t)` instead.

    *Residual sums* `x + f(x)` are convex combinations with learned weights there: write them with
    `spectralclip.methods.ConvexSum`, or `(x + f(x)) / 2`.

    *Domain*: dense layers and convolutions, each group by itself. Others are left alone.

    *Promise*: rows that are orthonormal, times the length above, in the limit of many steps; then
    the norm is at most the bound for convolutions with zero or no padding, or with circular
    padding of at most half the reach of the kernel.

    *Cost*: `2 (share r)^2 n` multiply-adds a layer and step, r its rows and n their length; no
    application of the layer. It does not depend on the size of the image.

    *Known failure*: it is soft: an excess decays by about `2 beta share` of it a step, as gradients
    push back. It reaches orthonormal rows, not a norm: a 3 x 3 convolution is then at about two
    thirds of the bound, and above it where borders repeat pixels. Weights of norm beyond
    `sqrt(2 / beta)` times their target run away: such a step is not taken, and reported.

    Args:
        beta: Length of a retraction step.
        share: Of the rows, in each step.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods
        >>> layer, method = torch.nn.Linear(8, 4), methods.get("cisse")(beta=0.2, share=1.0)
        >>> attachment = attach(layer, None, torch.zeros(1, 8), method=method)
        >>> for _ in range(50):
        ...     attachment.step()
        >>> W = layer.weight.detach()
        >>> torch.allclose(W @ W.T, torch.eye(4), atol=1e-4)
        True
    """

    beta: float = 3e-4
    share: float = 0.3

    kinds = (*DENSE, *CONVS)
    promises = (
        Promise(
            steps=700,
            settings={"beta": 0.006, "share": 1.0},
            covers=lambda module: not repetition(module),
        ),
    )

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        super().__post_init__()
        if self.beta >= 1 or self.share > 1:
            given = f"{self.beta!r} and {self.share!r}"
            raise ValueError(f"beta must be below 1 and share at most 1, got {given}.")

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin; weights stay as they are until the first step."""
        return _Retraction(self, sharing, seed)

    @classmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """The paper's bound `sqrt(t) ||W||`: from above, for the paddings of the promise."""
        kernels = _kernels(sole_module(module))
        return math.sqrt(kernels.shape[-1]) * largest_singular_value(kernels.flatten(2))


def _kernels(module: Any) -> Tensor:
    """The weight as `(groups, rows, columns, taps)` in the precision of computation."""
    weight: Tensor = module.weight.detach()
    groups = int(getattr(module, "groups", 1))
    shaped = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return shaped.float() if weight.dtype in HALF_PRECISION else shaped


def retracted(rows: Tensor, beta: float, scale: float = 1.0) -> Tensor:
    """`(1 + beta) W - beta W W^T W` of rows times `sqrt(scale)`, in terms of the rows."""
    return (1 + beta) * rows - beta * scale * ((rows @ rows.mT) @ rows)


@final
class _Retraction(MethodState):
    """The kernels of one model's layers, and for each a vector that follows its norm."""

    method: Cisse

    def __init__(self, method: Cisse, sharing: Sharing, seed: int) -> None:
        super().__init__(method, sharing, seed)
        self._vectors: dict[str, Tensor] = {}

    @torch.no_grad()
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        beta = self.method.beta
        for name, bound in bounds.items():
            module: Any = self.layers[name].modules[0]
            kernels = _kernels(module)
            rows, taps = kernels.flatten(2), kernels.shape[-1]
            source = self.generator(name, step)
            order = torch.randperm(rows.shape[1], generator=source, device="cpu")
            chosen = order[: math.ceil(self.method.share * len(order))].to(rows.device)
            old = rows[:, chosen]
            new = retracted(old, beta, taps / bound**2)
            # No singular value grows by more, unless it overshoots; rows not drawn count as well.
            limit = (1 + 2 * beta) * float(old.norm())
            norm = math.nan
            if bool(torch.isfinite(rows).all()) and float(new.norm()) <= limit < math.inf:
                rows = rows.index_copy(1, chosen, new)
                module.weight.copy_(rows.reshape(module.weight.shape))
                norm = math.sqrt(taps) * self._followed(name, rows)
            self.record(name, norm, _TROUBLE)

    def _followed(self, name: str, rows: Tensor) -> float:
        """The norm of the kernel by one iteration of the power method a step, from below."""
        # Any will do at first; later the model may have moved, or got another precision.
        v = self._vectors.get(name, torch.ones_like(rows[:, :1]).mT).to(rows)
        image = rows @ v
        pulled = rows.mT @ image
        sizes = torch.linalg.vector_norm(pulled, dim=1, keepdim=True)
        self._vectors[name] = torch.where(sizes > 0, pulled / sizes, v)
        lengths = torch.linalg.vector_norm(image, dim=1) / torch.linalg.vector_norm(v, dim=1)
        return float(lengths.max())

    def layer_states(self) -> dict[str, Any]:
        return {name: vector.clone() for name, vector in self._vectors.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        rows = {
            n: _kernels(layer.modules[0]).flatten(2)
            for n, layer in self.layers.items()
            if n in states
        }
        self._vectors |= {
            n: saved_vectors(states[n], (x.shape[-1], 1)).to(x, copy=True) for n, x in rows.items()
        }


@final
class ConvexSum(nn.Module):
    """`sum_i a_i x_i` with learned weights that are never negative and sum to one.

    The weights are the point of the simplex nearest to the parameters, taken anew in each call.

    Example:
        >>> import torch
        >>> from spectralclip.methods import ConvexSum
        >>> ConvexSum(2)(torch.ones(3), torch.zeros(3))
        tensor([0.5000, 0.5000, 0.5000], grad_fn=<...>)
    """

    def __init__(self, terms: int = 2) -> None:
        """Begin at the mean of so many terms."""
        check_count(1, terms=terms)
        super().__init__()
        self.weights = nn.Parameter(torch.full((terms,), 1 / terms))

    def forward(self, *terms: Tensor) -> Tensor:
        """The combination."""
        if len(terms) != len(self.weights):
            raise ValueError(f"ConvexSum has {len(self.weights)} terms, got {len(terms)}.")
        weights = on_simplex(self.weights)
        first, *others = [weight * term for weight, term in zip(weights, terms, strict=True)]
        return sum(others, start=first)  # type: ignore[no-any-return]


def on_simplex(point: Tensor) -> Tensor:
    """The nearest point with entries that are not negative and sum to one."""
    ordered = point.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.ones_like(point).cumsum(0)
    threshold = excess[(ordered > excess).sum() - 1]
    return (point - threshold).clamp_min(0)
