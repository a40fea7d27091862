"""Ours: after each step, every layer is projected back to where its norm is within the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from torch import Tensor, nn

from spectralclip._models import FoundLayer
from spectralclip._training.distributed.sharing import Sharing
from spectralclip._training.engine.build import layer_constraints
from spectralclip._training.engine.constrained_layer import BatchNorm
from spectralclip._training.engine.constraints import Turn
from spectralclip._training.method import Method, MethodState, warn
from spectralclip._training.promise import Promise


@final
@dataclass(frozen=True)
class SpectralClip(Method):
    """Keep every layer's norm within its bound at all times, by small projections.

    After each step of the optimizer the leading singular pairs of each layer, kept warm from step
    to step, are refreshed, and the weights move to the nearest point where none of their values
    is above the bound: for a dense layer exactly, for others by cuts, one for each value. A cut
    changes what is too large and little else, which is why it costs so much less accuracy than
    dividing the whole layer by its norm. What the optimizer's momentum would push out again along
    the same cuts is taken out of it, in the optimizer's own metric.

    How the pairs are followed depends on the layer:

    - dense layers, 1x1 convolutions and others whose windows do not overlap: all values, exactly;
    - convolutions with zero or circular padding: Fourier modes, at a price that does not depend on
      the size of the image;
    - all others, such as reflected and replicated borders: full vectors.

    An estimate of a norm comes from below, so two things keep the truth below the bound: the
    `headroom`, and checks of the layer itself, at every step until its estimates have proved right
    and then as often as its weights have moved by a few percent. A layer that is found above its
    bound is scaled in the same step, and its target lowered. Weights of any finite size come back
    within the bound in the step that they leave it.

    Bounding layers one by one leaves batch norms free to amplify. With `compose="conv_bn"` it is
    the convolution together with the following batch norm that is bounded, at the running
    statistics of the moment; there the batch norm's factor moves, since any other change would
    be undone by the normalization.

    *Domain.* Every affine layer with weights, and with `compose="conv_bn"` their compositions with
    batch norm; batch norms alone with `batch_norm=True`. Embeddings are left alone.

    *Promise.* Of layers that training moves slowly, the true norm is at most 1.01 times the bound;
    `finalize(certify=True)` ends with a proven bound. In the course of measured trainings it was at
    most 1.01 times, and 1.03 times in the first steps of a new network.

    *Cost.* For dense layers one decomposition of a small matrix a step where something is above
    its bound; for convolutions about ten products with Fourier modes or full vectors a step.

    *Known failure.* With `check_every=0`, a value that rises from far below to above the bound
    within a few steps is seen late, and the norm is above the bound until then.

    Attributes:
        headroom: The target is `(1 - headroom) * max_norm`, but for layers that are clipped
            exactly.
        compose: "conv_bn" to bound dense layers and convolutions together with the following
            batch norm; None to bound them alone.
        batch_norm: Bound the norm of batch norms as well, where they are layers of their own.
        project_momentum: Take out of the momentum what would push the layer out again, where it
            is known how the optimizer's steps follow from it.
        check_every: The most steps between two checks of a layer's norm itself; 0 for no checks.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, spectral_norm
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)
        ... )
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> x = torch.randn(4, 1, 12, 12)
        >>> with attach(model, optimizer, x) as attachment:
        ...     for _ in range(20):
        ...         optimizer.zero_grad()
        ...         (-model(x).square().mean()).backward()
        ...         optimizer.step()
        >>> bool(spectral_norm(model[2], (8, 12, 12)) < 1.01)
        True
    """

    promises: ClassVar[tuple[Promise, ...]] = (
        Promise(margin=0.01, steps=30),
        Promise(margin=0.01, steps=30, settings={"compose": "conv_bn"}),
    )

    headroom: float = 0.01
    compose: Literal["conv_bn"] | None = None
    batch_norm: bool = False
    project_momentum: bool = True
    check_every: int = 200

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        if not 0 <= self.headroom < 0.5:
            raise ValueError(f"headroom must be at least 0 and below 0.5, got {self.headroom!r}.")
        if self.compose not in (None, "conv_bn"):
            raise ValueError(f'compose must be "conv_bn" or None, got {self.compose!r}.')
        if self.check_every < 0:
            raise ValueError(f"check_every must not be negative, got {self.check_every!r}.")

    @property
    def composes(self) -> bool:
        """Whether a convolution and the following batch norm count as one layer."""
        return self.compose is not None

    def takes(self, layer: FoundLayer) -> bool:
        """All layers but embeddings, and batch norms only if asked for."""
        if isinstance(layer.modules[0], BatchNorm):
            return self.batch_norm and layer.modules[0]._parameters.get("weight") is not None
        return not isinstance(layer.modules[0], (nn.Embedding, nn.EmbeddingBag))

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin to follow the layers; weights stay as they are until the first step."""
        return _Following(self, sharing, seed)


@final
class _Following(MethodState):
    """The layers of one model, each with what follows it."""

    method: SpectralClip

    def __init__(self, method: SpectralClip, sharing: Sharing, seed: int) -> None:
        super().__init__(method, sharing, seed)
        project = sharing.project_momentum if method.project_momentum else _leave
        for name in sharing.optimizers.with_unknown_momentum() if method.project_momentum else ():
            warn(
                f"The momentum of {name} is left as it is, since it is not known how {name} turns "
                "it into a step. Norms are held all the same, by larger corrections. To say that "
                "this is meant: SpectralClip(project_momentum=False)."
            )
        self._constraints = layer_constraints(self.layers, project, seed)
        self._non_finite: set[str] = set()

    @property
    def num_matvecs(self) -> float:
        """Vectors sent through layers so far; Fourier modes count by their multiply-adds."""
        return sum(constraint.num_matvecs for constraint in self._constraints)

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for constraint in self._constraints:
            own = {name: bounds[name] for name in constraint.names if name in bounds}
            if own:
                turn = Turn(step, own, self.method.headroom, self.method.check_every)
                self._report(constraint.names, constraint.step(turn))

    def norms(self) -> dict[str, float]:
        known = {n: norm for each in self._constraints for n, norm in each.norms().items()}
        return known | dict.fromkeys(self._non_finite, math.nan)

    def checked(self) -> dict[str, int]:
        return {n: at for each in self._constraints for n, at in each.checked().items()}

    def layer_states(self) -> dict[str, Any]:
        return {n: state for each in self._constraints for n, state in each.states().items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        for each in self._constraints:
            each.load_states({n: states[n] for n in each.names if n in states})

    def _report(self, names: Sequence[str], non_finite: Sequence[str]) -> None:
        """Say once that a layer cannot be followed, and go on when it can be again."""
        for name in non_finite:
            if name not in self._non_finite:
                warn(
                    f"Layer {name!r} has weights or statistics that are NaN or infinite: it is not "
                    "clipped until they are restored, as by loading a checkpoint."
                )
        self._non_finite -= set(names)
        self._non_finite |= set(non_finite)


def _leave(parameter: Tensor, project: object) -> None:
    """Leave the momentum of a parameter as it is."""
