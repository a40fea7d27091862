"""Virmaux and Scaman (2018): the power method through autograd, with deflation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from spectralclip._common import Shape
from spectralclip._operators import as_operator
from spectralclip._training import MethodState, Sharing
from spectralclip.methods._domain import EstimatingMethod, Source
from spectralclip.methods.baselines._power import (
    ITERATIONS,
    MOST_ITERATIONS,
    SETTLED,
    TOL,
    PowerState,
    virmaux_svds,
)


@final
@dataclass(frozen=True)
class Virmaux(EstimatingMethod):
    """AutoLip's layer part: measure norms by the power method through autograd, and no more.

    Aladin Virmaux, Kevin Scaman: *Lipschitz Regularity of Deep Neural Networks: Analysis and
    Efficient Estimation*, NeurIPS 2018 (arXiv 1805.10965).

    For an affine function f the gradient of `1/2 ||f(x) - f(0)||^2` is `M^T M x`, so that the power
    method needs nothing but the layer's own forward and backward pass. For further singular
    values those found are projected away, and it begins again: `virmaux_svds`. AutoLip multiplies
    the layers' norms to a bound for the network.

    It measures, and the authors train nothing with it. Attached, it watches: every `every` steps
    `norms()` is measured anew, from the last vector. No weight moves before `finalize()`, which
    clips every layer to its bound after any method; `remove()` leaves the weights alone.

    *Domain*: `estimate` and `virmaux_svds` take every layer that is affine, of any kind, and any
    composition. Attached, it leaves batch norms and embeddings out.

    *Promise*: the estimates tend to the true values from below, and are within 1e-3 after enough
    iterations. Nothing holds the norms.

    *Cost*: two matvecs an iteration, for k values k times as many iterations, one after the
    other; through autograd, at about twice the price of explicit convolutions.

    *Known failure*: values that lie close together, as in nearly every convolution, converge
    slowly, and deflation by vectors that have not converged spoils those that come after them.
    `svds` finds all k at once, in a small part of the matvecs.

    Args:
        every: Steps of the optimizer from one measurement to the next.
        power_iterations: At most, in each.
        tol: It ends once an iteration moves the unit vector by no more than this. (The authors'
            1e-8 is below what single precision can tell.)

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> method = methods.get("virmaux")(every=1)
        >>> attachment = attach(model, None, torch.zeros(1, 8), method=method)
        >>> attachment.step()
        >>> true = torch.linalg.matrix_norm(model[0].weight, 2)
        >>> bool(abs(attachment.norms()["0"] - true) < 1e-3)
        True
    """

    every: int = 100
    power_iterations: int = ITERATIONS
    tol: float = TOL
    moves_weights = False

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin to watch."""
        return _Watch(self, sharing, seed)

    @classmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """The largest singular value of any affine layer, or of a composition."""
        usual = {"power_iterations": MOST_ITERATIONS, "tol": SETTLED}
        found = virmaux_svds(module, in_shape, generator=generator, **(settings or usual))
        return float(found.S[0])


@final
class _Watch(PowerState):
    """The layers of one model, each with the latest vectors at each input shape."""

    method: Virmaux

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        iterations, tol = self.method.power_iterations, self.method.tol
        for name in bounds if step % self.method.every == 0 else ():
            layer = self.layers[name]
            try:
                ops = [as_operator(layer.modules, x, explicit=False) for x in layer.in_shapes]
                self.record(name, self.measured(name, ops, iterations, tol, warm=True))
            except ValueError as error:  # weights or statistics that make no sense
                self.record(name, float("nan"), str(error))
