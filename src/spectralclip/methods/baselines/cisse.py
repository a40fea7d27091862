"""Cisse et al. (2017), Parseval networks: retraction toward orthonormal rows after each step."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import largest_singular_value
from spectralclip._models import FoundLayer
from spectralclip._operators import Layer
from spectralclip._training import (
    CONVS,
    Keeper,
    Method,
    Promise,
    Sharing,
    Slot,
    saved_vectors,
    warn,
)
from spectralclip.methods._domain import (
    DENSE,
    finite_estimate,
    require,
    sole_module,
    why_not_plain,
)
from spectralclip.methods._settings import check_positive
from spectralclip.methods.baselines._periodic import repetition


@final
@dataclass(frozen=True)
class Cisse(Method):
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

    *Residual sums*: the authors replace each `x + f(x)` by a convex combination, whose weights are
    learned and kept on the simplex. A sum in the code of a model cannot be changed from outside:
    write `(x + f(x)) / 2` there, or `spectralclip.methods.ConvexSum`, whose weights stay there.

    *Domain*: dense layers and convolutions, each group by itself. Others are left alone.

    *Promise*: rows that are orthonormal, times the length above, in the limit of many steps; then
    the norm is at most the bound for convolutions with zero or no padding, or with circular
    padding of at most half the reach of the kernel.

    *Cost*: `2 (share r)^2 n` multiplications a layer and step, r its rows and n their length; no
    application of the layer. It does not depend on the size of the image.

    *Known failure*: it is soft. An excess decays by a factor of about `1 - 2 beta share` a step, as
    long as nothing pushes back, and gradients do. It reaches orthonormal rows, not a norm: that of
    a convolution is then below the bound, at about two thirds of it for 3 x 3 and further below
    with a stride; with reflected, replicated or wider circular borders, where a pixel lies in more
    windows, it can be above. Weights of norm beyond `sqrt(2 / beta)` times their target run away:
    such a step is not taken, and reported by a `NormWarning`.

    Args:
        beta: Length of a retraction step.
        share: Of the rows, in each step.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        >>> method = methods.get("cisse")(beta=0.2, share=1.0)
        >>> with attach(method, model, torch.zeros(1, 8), optimizer):
        ...     for _ in range(50):
        ...         optimizer.step()
        >>> W = model[0].weight.detach()
        >>> torch.allclose(W @ W.T, torch.eye(4), atol=1e-4)
        True
    """

    beta: float = 3e-4
    share: float = 0.3

    promises: ClassVar[tuple[Promise, ...]] = (
        Promise(
            steps=700,
            settings={"beta": 0.006, "share": 1.0},
            covers=lambda module: not repetition(module),
        ),
    )

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_positive(beta=self.beta, share=self.share)
        if self.beta >= 1 or self.share > 1:
            raise ValueError(
                f"beta must be below 1 and share at most 1, got {self.beta!r} and {self.share!r}."
            )

    def takes(self, layer: FoundLayer) -> bool:
        """Dense layers and convolutions."""
        return not why_not_plain(layer, *DENSE, *CONVS)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> Keeper:
        """Begin; weights stay as they are until the first step."""
        return _Retraction(self, sharing.mine(), seed)

    @staticmethod
    def estimate(
        module: Layer, in_shape: Shape, *, generator: torch.Generator | None = None
    ) -> float:
        """The paper's bound `sqrt(t) ||W||`: from above, for the paddings of the promise.

        Args:
            module: A dense layer or convolution.
            in_shape: Not looked at.
            generator: Not needed.

        Raises:
            OutsideDomain: The layer is of another kind.
            ValueError: Its weights are not finite.
        """
        require("Cisse", module, why_not_plain(module, *DENSE, *CONVS))
        kernels = Slot("", sole_module(module), None, ()).kernels()
        bound = math.sqrt(kernels.shape[-1]) * largest_singular_value(kernels.flatten(2))
        return finite_estimate("Cisse", module, bound)


def retracted(rows: Tensor, beta: float, scale: float = 1.0) -> Tensor:
    """`(1 + beta) W - beta W W^T W` of rows times `sqrt(scale)`, in terms of the rows."""
    return (1 + beta) * rows - beta * scale * ((rows @ rows.mT) @ rows)


@final
class _Retraction(Keeper):
    """The kernels of one model's layers, and for each a vector that follows its norm."""

    def __init__(self, method: Cisse, layers: Mapping[str, FoundLayer], seed: int) -> None:
        self._method, self._seed = method, seed
        self._slots = {name: Slot(name, a.modules[0], None, ()) for name, a in layers.items()}
        self._norms, self._vectors = dict[str, float](), dict[str, Tensor]()

    @torch.no_grad()
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            kernels = self._slots[name].kernels()
            rows, taps = kernels.flatten(2), kernels.shape[-1]
            chosen = self._chosen(f"{name}, {step}", rows.shape[1]).to(rows.device)
            old = rows[:, chosen]
            new = retracted(old, self._method.beta, taps / bound**2)
            # No singular value grows by more, unless it overshoots; rows not drawn count as well.
            limit = (1 + 2 * self._method.beta) * float(old.norm())
            if bool(torch.isfinite(rows).all()) and float(new.norm()) <= limit < math.inf:
                rows = rows.index_copy(1, chosen, new)
                self._slots[name].write(rows.reshape(kernels.shape))
                self._norms[name] = math.sqrt(taps) * self._followed(name, rows)
                continue
            if math.isfinite(self._norms.get(name, 0.0)):
                warn(
                    f"Cisse on layer {name!r}: weights are not finite, or so large that the "
                    "retraction makes them larger. They are left as they are: scale them down."
                )
            self._norms[name] = math.nan

    def _chosen(self, origin: str, count: int) -> Tensor:
        """Some of the rows, which depend on the seed, the layer and the step alone."""
        seed = zlib.crc32(f"{self._seed}, {origin}".encode())
        generator = torch.Generator("cpu").manual_seed(seed)
        order = torch.randperm(count, generator=generator, device="cpu")
        return order[: math.ceil(self._method.share * count)]

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

    def norms(self) -> dict[str, float]:
        return dict(self._norms)

    def layer_states(self) -> dict[str, Any]:
        return {name: vector.clone() for name, vector in self._vectors.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        known = {n: slot.kernels().flatten(2) for n, slot in self._slots.items() if n in states}
        self._vectors |= {
            name: saved_vectors(states[name], (rows.shape[-1], 1)).to(rows, copy=True)
            for name, rows in known.items()
        }
