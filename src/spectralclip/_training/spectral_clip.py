"""Ours: after each step, every layer is projected back to where its norm is within the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from torch import nn

from spectralclip._common import check_count
from spectralclip._models import Compose, FoundLayer, check_compose
from spectralclip._training.distributed.sharing import Sharing
from spectralclip._training.engine.check import Checks
from spectralclip._training.engine.constrained_layer import BatchNorm
from spectralclip._training.engine.engine import Engine
from spectralclip._training.method import Method, MethodState, warn
from spectralclip._training.promise import Promise


@final
@dataclass(frozen=True)
class SpectralClip(Method):
    """Keep every layer's norm within its bound at all times, by small projections.

    After each step of the optimizer the leading singular pairs of each layer, kept warm from step
    to step, are refreshed, and the weights move to the nearest point where none of their values
    is above the bound, by cuts, one for each value. A cut changes what is too large and little
    else, which is why it costs so much less accuracy than dividing the whole layer by its norm.
    What the optimizer's momentum would push out again is taken out of it, in the optimizer's own
    metric.

    How the pairs are followed depends on the layer:

    - dense layers, 1x1 convolutions and others whose windows do not overlap: a block of leading
      vectors, within which all values are clipped at once;
    - convolutions with zero or circular padding: Fourier modes, at a price that does not depend on
      the size of the image;
    - all others, such as reflected and replicated borders: full vectors.

    Layers of equal shape go together, and what is done is a fixed sequence of operations on the
    weights' device: nothing is read back, so that an accelerator never waits for the host. Now and
    then, outside of the step, the host measures each layer itself and corrects what it finds.

    Bounding layers one by one leaves batch norms free to amplify. With `compose="conv_bn"` it is
    the convolution together with the following batch norm that is bounded, at the running
    statistics of the moment; there the batch norm's factor moves, since any other change would
    be undone by the normalization. With `compose="heads"` it is the two products of each attention
    head that are bounded, `<layer>[n].logit` and `<layer>[n].value`: both factors of a product give
    way by the same share along each of its singular pairs.

    *Domain.* Every affine layer with weights, and with `compose="conv_bn"` their compositions with
    batch norm; batch norms alone with `batch_norm=True`. Heads as `attention_heads` finds them,
    where queries and keys are not rotated. Embeddings are left alone.

    *Promise.* Of layers that training moves slowly, the true norm is at most 1.01 times the bound;
    `finalize(certify=True)` ends with a proven bound. A zero-padded layer may be held some percent
    lower: Fourier modes know the norm of a kernel on an image without borders.

    *Cost.* Three products of the weights with some vectors a step: with 32 for dense layers, with
    about 200 for convolutions of 3x3 taps, and fewer on images of up to eight pixels a side.

    *Known failure.* Weights that are not finite are left alone, and the host hears of it late where
    they are on an accelerator: at the next check, or when `norms()` is asked for.

    Attributes:
        headroom: The target is `(1 - headroom) * max_norm`, and lower while a layer grows fast.
        compose: "conv_bn" to bound dense layers and convolutions together with the following
            batch norm; "heads" to bound the products of attention heads in place of their
            projections; "none" to bound all layers alone.
        batch_norm: Bound the norm of batch norms as well, where they are layers of their own.
        project_momentum: Take out of the momentum what would push the layer out again, where it
            is known how the optimizer's steps follow from it.
        check_every: The most steps between two checks of a layer's norm itself; 0 for no checks.
        vectors: At each frequency, and a quarter of those of a layer that is followed by full
            vectors. By default 2, and 4 on an accelerator, where they cost no more launches.
        compile: Run the step through `torch.compile`, which takes half a minute at the start.

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

    promises = (
        Promise(margin=0.01, steps=30),
        Promise(margin=0.01, steps=30, settings={"compose": "conv_bn"}),
    )

    headroom: float = 0.01
    compose: Compose | Literal["heads"] = "none"
    batch_norm: bool = False
    project_momentum: bool = True
    check_every: int = 200
    vectors: int | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        if not isinstance(self.headroom, (int, float)) or not 0 <= self.headroom < 0.5:
            raise ValueError(f"headroom must be at least 0 and below 0.5, got {self.headroom!r}.")
        check_compose(self.compose, ("none", "conv_bn", "heads"))
        check_count(self.check_every, "check_every", 0)
        if self.vectors is not None:
            check_count(self.vectors, "vectors", 1)

    def takes(self, layer: FoundLayer) -> bool:
        """All layers but embeddings, and batch norms only if asked for."""
        if isinstance(layer.modules[0], BatchNorm):
            return self.batch_norm and layer.modules[0]._parameters.get("weight") is not None
        return not isinstance(layer.modules[0], (nn.Embedding, nn.EmbeddingBag))

    def for_network(self) -> SpectralClip:
        """The same with batch norms held as well, which amplify like other layers."""
        return replace(self, batch_norm=True)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin to follow the layers; weights stay as they are until the first step."""
        return _Following(self, sharing, bounds, seed)


@final
class _Following(MethodState):
    """The layers of one model, each with what follows it."""

    method: SpectralClip

    def __init__(
        self, method: SpectralClip, sharing: Sharing, bounds: Mapping[str, float], seed: int
    ) -> None:
        super().__init__(method, sharing, seed)
        for name in sharing.optimizers.with_unknown_momentum() if method.project_momentum else ():
            warn(
                f"The momentum of {name} is left as it is, since it is not known how {name} turns "
                "it into a step. Norms are held all the same, by larger corrections. To say that "
                "this is meant: SpectralClip(project_momentum=False)."
            )
        self._engine = Engine(self.layers, method.headroom, method.vectors, seed, method.compile)
        self._engine.set_bounds(bounds)
        self._engine.warm_up()
        followed = self._engine.followed()
        self._checks = Checks(self.layers, followed, method.check_every, seed)
        self._non_finite: set[str] = set()
        self._now = 0

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        self._now = step
        self._engine = self._engine.up_to_date()
        self._engine.set_bounds(bounds)
        # Who has to be told what has changed needs to know it. On a host nothing waits for that,
        # and what stays as it is need not be written.
        is_told = not self.sharing.is_alone or self.sharing.optimizers.infer_curvature
        selective = is_told or self._engine.is_on_host
        for moved in self._engine.step(selective=selective):
            if self.method.project_momentum:
                self.sharing.project_momenta(moved)
        due = [name for name in self._checks.due(step) if name in bounds]
        if due or self._engine.is_on_host:
            self._report(self._engine.non_finite())
        if due:
            estimates = self._engine.estimates()
            for name in due:
                norm = self._checks.measure(name, step, self.operators)
                self._checks.compare(name, estimates[name])
                self._engine.correct(name, norm, estimates[name], bounds[name])

    def norms(self) -> dict[str, float]:
        """The latest norms, read back from the device now."""
        found = self._engine.norms()
        self._report({name for name, norm in found.items() if math.isnan(norm)})
        return {
            name: self._checks.norm(name, self._now, self.operators)
            if self._checks.is_off(name) and not math.isnan(norm)
            else norm * self._checks.ratio(name)
            for name, norm in found.items()
        }

    def known_norms(self) -> dict[str, float]:
        bad = self._engine.non_finite()
        return {
            name: math.nan if name in bad else norm * self._checks.ratio(name)
            for name, norm in self._engine.estimates().items()
        }

    def checked(self) -> dict[str, int]:
        checked = self._checks.norms.items()
        return {name: step for name, (step, _) in checked if step == self._now}

    def layer_states(self) -> dict[str, Any]:
        states = self._engine.layer_states()
        return {n: {**state, "check": self._checks.state(n)} for n, state in states.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        self._engine.load_layer_states(states)
        for name, state in states.items():
            if name in self.layers:
                self._checks.load_state(name, state["check"])

    def _report(self, non_finite: set[str]) -> None:
        """Say once that a layer cannot be followed, and go on when it can be again."""
        for name in sorted(non_finite - self._non_finite):
            warn(
                f"Layer {name!r} has weights or statistics that are NaN or infinite: it is not "
                "clipped until they are restored, as by loading a checkpoint."
            )
        self._non_finite = non_finite
