"""Virmaux and Scaman (2018): the power method through autograd, with deflation."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._models import FoundLayer
from spectralclip._operators import Layer, as_operator
from spectralclip._training import Method, MethodState, Sharing, saved_vectors, warn
from spectralclip.methods._domain import finite_estimate
from spectralclip.methods._settings import check_count, check_positive
from spectralclip.methods.baselines._deflation import ITERATIONS, TOL, virmaux_svds
from spectralclip.methods.baselines._power import (
    MOST_ITERATIONS,
    SETTLED,
    power_method,
    random_start,
)


@final
@dataclass(frozen=True)
class Virmaux(Method):
    """AutoLip's layer part: measure norms by the power method through autograd, and no more.

    Aladin Virmaux, Kevin Scaman: *Lipschitz Regularity of Deep Neural Networks: Analysis and
    Efficient Estimation*, NeurIPS 2018 (arXiv 1805.10965).

    For an affine function f the gradient of `1/2 ||f(x) - f(0)||^2` is `M^T M x`, so that the power
    method needs nothing but the layer's own forward and backward pass. For further singular
    values those found are projected away, and it begins again: `virmaux_svds`. AutoLip multiplies
    the layers' norms to a bound for the network.

    It is a way to look, and the authors train nothing with it. Attached, it watches: every
    `every` steps `norms()` is measured anew, from the vector of the last look. No weight moves.

    *Domain*: `estimate` and `virmaux_svds` take every layer that is affine, of any kind, and any
    composition. Attached, it leaves batch norms and embeddings out.

    *Promise*: the estimates tend to the true values from below, and are within 1e-3 after enough
    iterations. Nothing holds the norms.

    *Cost*: two applications an iteration, for k values k times as many iterations, one after the
    other; through autograd, at about twice the price of explicit convolutions.

    *Known failure*: values that lie close together, as in nearly every convolution, converge
    slowly, and deflation by vectors that have not converged spoils those that come after them.
    `svds` finds all k at once, in a small part of the applications.

    Args:
        every: Steps of the optimizer from one look to the next.
        power_iterations: At most, in a look.
        tol: A look ends once an iteration moves the unit vector by no more than this. (The authors'
            1e-8 is below what single precision can tell.)

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> method = methods.get("virmaux")(every=1)
        >>> with attach(method, model, torch.zeros(1, 8), optimizer) as attachment:
        ...     optimizer.step()
        >>> true = torch.linalg.matrix_norm(model[0].weight, 2)
        >>> bool(abs(attachment.norms()["0"] - true) < 1e-3)
        True
    """

    every: int = 100
    power_iterations: int = ITERATIONS
    tol: float = TOL

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_count(1, every=self.every, power_iterations=self.power_iterations)
        check_positive(tol=self.tol)

    @property
    def moves_weights(self) -> bool:
        """It only watches."""
        return False

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin to watch."""
        return _Watch(self, sharing.mine(), seed)

    @staticmethod
    def estimate(
        module: Layer,
        in_shape: Shape,
        *,
        generator: torch.Generator | None = None,
        power_iterations: int | None = None,
    ) -> float:
        """The largest singular value of any affine layer, or of a composition.

        Args:
            module: The layer.
            in_shape: Shape of one input.
            generator: Source of the start; by default the same for each call.
            power_iterations: How many; by default as many as it takes to settle.

        Raises:
            OutsideDomain: The layer is not affine.
            ValueError: Its weights are not finite.
        """
        most, tol = MOST_ITERATIONS, SETTLED
        if power_iterations is not None:
            most, tol = power_iterations, TOL
        found = virmaux_svds(module, in_shape, power_iterations=most, tol=tol, generator=generator)
        return finite_estimate("Virmaux", module, float(found.S[0]))


@final
class _Watch(MethodState):
    """The layers of one model, each with the vectors of the latest look at each input shape."""

    def __init__(self, method: Virmaux, layers: Mapping[str, FoundLayer], seed: int) -> None:
        self._method, self._layers, self._seed = method, dict(layers), seed
        self._vectors: dict[str, list[Tensor]] = {}
        self._norms: dict[str, float] = {}
        self.applications = 0

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name in bounds if step % self._method.every == 0 else ():
            try:
                self._look(name)
            except ValueError as error:  # weights or statistics that make no sense
                if math.isfinite(self._norms.get(name, 0.0)):
                    warn(f"Virmaux on layer {name!r}: {error}")
                self._norms[name] = math.nan

    def _look(self, name: str) -> None:
        found = self._layers[name]
        starts, vectors, norms = self._vectors.get(name, []), [], []
        for index, shape in enumerate(found.in_shapes):
            op = as_operator(found.modules, shape, explicit=False)
            seed = zlib.crc32(f"{self._seed}, {name}, {index}".encode())
            fresh = random_start(op, torch.Generator("cpu").manual_seed(seed))
            start = starts[index].to(fresh) if starts else fresh
            iterations, tol = self._method.power_iterations, self._method.tol
            x, done, _ = power_method(op.gram, start, iterations, tol)
            vectors.append(x)
            norms.append(float(torch.linalg.vector_norm(op.matvec(x))))
            self.applications += 2 * done + 1
        self._vectors[name], self._norms[name] = vectors, max(norms)

    def norms(self) -> dict[str, float]:
        return dict(self._norms)

    def layer_states(self) -> dict[str, Any]:
        return {name: [v.clone() for v in vectors] for name, vectors in self._vectors.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        known = {name: states[name] for name in self._layers if name in states}
        self._vectors |= {
            name: [
                saved_vectors(vector, shape).clone()
                for vector, shape in zip(saved, self._layers[name].in_shapes, strict=True)
            ]
            for name, saved in known.items()
        }
