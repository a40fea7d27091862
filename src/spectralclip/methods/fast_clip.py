"""Algorithm 3 of the paper (FastClip) as printed, and FastClip-concat, for comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from spectralclip._models import Compose
from spectralclip._training import Method, MethodState, Sharing, warn
from spectralclip.methods._domain import check_count, check_positive
from spectralclip.methods._followed import FollowedLayer
from spectralclip.methods.paper_clip import PUBLISHED, PUBLISHED_WITHOUT_BATCH_NORM


@final
@dataclass(frozen=True)
class FastClip(Method):
    """The paper's FastClip: follow the leading singular vector, clip now and then.

    "Spectrum Extraction and Clipping for Implicitly Linear Layers", Algorithm 3. After each step
    of the optimizer one iteration of PowerQR, from the vector of the step before, follows the norm
    of each layer. Every `every` steps a layer whose tracked norm is above the bound gets one round
    of the paper's Clip (`paper_clip_`): `inner_steps` gradient steps of length `lr` that pull this
    one singular value towards the bound. Since the clipped direction is no longer the leading one,
    a few iterations on a fresh random vector look for the new one. The warm-up, as many
    iterations, comes with the first step that moves the layer.

    *Domain.* Every affine layer with a weight, apart from batch norms and embeddings.

    *Promise.* None at a given step: norms come down to the bound over many rounds.

    *Cost.* One application of the layer and one of its transpose a step; a round takes
    `1 + 2 inner_steps + 2 power_iterations` more.

    *Known failure.* Between two rounds nothing holds the norms, a round lowers one singular value
    where many may be above the bound, and one iteration a step lags behind: the tracked norms are
    too small. `SpectralClip` holds the bound at every step.

    In a convolution one weight acts at many positions, and `lr = 0.35` is too long a step where
    the leading vector is smooth. A round that makes the norm larger is undone, and reported by a
    `NormWarning`. `published()` takes the shorter steps of the published code.

    With `concat=True`, FastClip-concat: each layer that a batch norm directly follows is clipped
    as above *and* the composition of both is, to the same bound, by rounds of its own
    (`concat_lr`, `concat_every`). These move the weights of both; batch norms are not clipped on
    their own. `norms()` speaks of the composition.

    Args:
        lr: Length of a gradient step, lambda in the paper.
        inner_steps: Gradient steps in a round, N of the paper's Clip.
        every: Steps of the optimizer from one round to the next.
        power_iterations: Iterations of PowerQR on a fresh vector, P of the paper's Clip.
        shift: The shift of PowerQR, mu in the paper.
        averaged: Take the loss of a round as the published code does, averaged over the width of
            the image and without the factor 1/2: a gradient step is 2 / width times as long as
            printed (2 times for layers that are not on images).
        raises: Raise norms that are more than 0.05 below the bound up to it, by the same rounds, as
            the published code does and the printed algorithm does not.
        concat: Clip compositions with batch norm too.
        concat_lr: `lr` for these; the paper speaks of "a much smaller value".
        concat_every: `every` for these.

    Example:
        >>> import torch
        >>> from spectralclip import attach
        >>> from spectralclip.methods import FastClip
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> attachment = attach(model, optimizer, torch.zeros(1, 8), method=FastClip())
        >>> model(torch.randn(32, 8)).square().mean().backward()
        >>> optimizer.step()
        >>> list(attachment.norms())
        ['0']
    """

    lr: float = 0.35
    inner_steps: int = 1
    every: int = 100
    power_iterations: int = 10
    shift: float = 1.0
    averaged: bool = False
    raises: bool = False
    concat: bool = False
    concat_lr: float = 0.01
    concat_every: int = 500

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_positive(lr=self.lr, concat_lr=self.concat_lr)
        check_count(1, inner_steps=self.inner_steps, power_iterations=self.power_iterations)
        check_count(1, every=self.every, concat_every=self.concat_every)
        if not isinstance(self.raises, bool):
            raise TypeError(f"raises must be True or False, got {self.raises!r}.")
        if not 0 <= self.shift < math.inf:
            raise ValueError(f"shift must be a finite number of at least 0, got {self.shift!r}.")

    @classmethod
    def published(
        cls, batch_norm: bool = True, *, concat: bool = False, raises: bool = False
    ) -> FastClip:
        """With the constants of the paper's experiments, and the loss of its code.

        Args:
            batch_norm: Whether the network has batch norms: then 5 inner steps every 50 steps of
                training, else 1 every 100.
            concat: FastClip-concat.
            raises: Raise norms as the published code does.

        Example:
            >>> from spectralclip.methods import FastClip
            >>> FastClip.published(batch_norm=True).inner_steps
            5
        """
        settings = PUBLISHED if batch_norm else PUBLISHED_WITHOUT_BATCH_NORM
        every = 50 if batch_norm else 100
        return cls(**settings, every=every, averaged=True, concat=concat, raises=raises)

    @property
    def compose(self) -> Compose:
        """A convolution and the following batch norm count as one layer in FastClip-concat."""
        return "conv_bn" if self.concat else "none"

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        """Begin; the layers are followed from the first step on."""
        return _Clipper(self, sharing, seed)


@final
class _Clipper(MethodState):
    """Algorithm 3 at work on the layers of one model.

    A layer is followed at each of its input shapes; and first together with its batch norm, at
    each of them, where it counts as one layer with it.
    """

    method: FastClip

    def __init__(self, method: FastClip, sharing: Sharing, seed: int) -> None:
        super().__init__(method, sharing, seed)
        self._followed: dict[str, list[FollowedLayer]] = {}
        composed = replace(method, lr=method.concat_lr, every=method.concat_every)
        for name, found in self.layers.items():
            wholes = [(found.modules, composed)] if len(found.modules) > 1 else []
            parts = [*wholes, (found.modules[:1], method)]
            uses = [(*part, shape) for part in parts for shape in found.in_shapes]
            self._followed[name] = [
                FollowedLayer(modules, shape, own, f"{seed}, {name}, {index}")
                for index, (modules, own, shape) in enumerate(uses)
            ]

    @property
    def num_matvecs(self) -> int:
        """Vectors sent through layers, their transposes or their weight gradients so far."""
        return sum(each.num_matvecs for layer in self._followed.values() for each in layer)

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            for each in self._followed[name]:
                complaint = each.after_step(step, bound)
                if complaint:
                    warn(f"FastClip on layer {name!r}: {complaint}")

    def norms(self) -> dict[str, float]:
        """The largest norm over the input shapes of a layer."""
        found = {}
        for name, followed in self._followed.items():
            shapes = len(self.layers[name].in_shapes)
            norms = [each.norm for each in followed[:shapes] if each.norm is not None]
            if norms:
                found[name] = math.nan if any(map(math.isnan, norms)) else max(norms)
        return found

    def layer_states(self) -> dict[str, Any]:
        return {name: [each.state() for each in layer] for name, layer in self._followed.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        known = {name: states[name] for name in self._followed if name in states}
        for name, saved in known.items():
            if len(saved) != len(self._followed[name]):
                raise ValueError(
                    f"The state of layer {name!r} was saved with other settings or input sizes: it "
                    f"is for {len(saved)} uses, expected {len(self._followed[name])}. Attach as "
                    "before."
                )
        for name, saved in known.items():
            for each, state in zip(self._followed[name], saved, strict=True):
                each.load_state(state)
