"""What is compared: methods by name, one of which lives here, and how they are attached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spectralclip import FoundLayer, find_layers
from spectralclip._models import Compose
from spectralclip._training import Attachment, Method, MethodState, Sharing, attach
from spectralclip.methods import FastClip, SpectralClip

NONE = "none"
FASTCLIP = "FastClip"
FASTCLIP_10 = "FastClip, every 10"
FASTCLIP_BACKWARD = "FastClip, by backward"
SCALE = "scale"
OURS = "SpectralClip"
OURS_COMPOSED = "SpectralClip, conv+BN"
OURS_COMPILED = "SpectralClip, compiled"
NONE_COMPOSED = "none, conv+BN"
FASTCLIP_PERIOD = 100  # steps from one clip to the next, as printed


@dataclass(frozen=True)
class Nothing(Method):
    """Leaves the weights alone, until `.finalize()`."""

    compose: Compose = "none"

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return _Idle(self, sharing, seed)


class _Idle(MethodState):
    num_matvecs = 0

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        pass

    def norms(self) -> dict[str, float]:
        return {}


class ScaleEveryStep(Method):
    """One warm power iteration a step; where its estimate is above c, `W *= c / estimate`."""

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return _Scaler(sharing.mine(), seed)


class _Scaler(MethodState):
    def __init__(self, layers: Mapping[str, FoundLayer], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._layers, self._norms = layers, dict[str, float]()
        self._vectors = {
            (name, shape): torch.randn(1, *shape, generator=generator)
            for name, layer in layers.items()
            for shape in layer.in_shapes
        }
        self.num_matvecs = 0

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            (module,) = self._layers[name].modules
            estimate = max(self._iterate(name, module, s) for s in self._layers[name].in_shapes)
            if estimate > bound:
                with torch.no_grad():
                    weight_of(module).mul_(bound / estimate)
            self._norms[name] = min(estimate, bound)

    def norms(self) -> dict[str, float]:
        return dict(self._norms)

    def _iterate(self, name: str, module: nn.Module, shape: tuple[int, ...]) -> float:
        """`v <- M^T M v / |...|`; what it returns is `|M^T u|` for `u = M v / |M v|`."""
        v = self._vectors[name, shape].requires_grad_()
        with torch.enable_grad():
            y = _without_bias(module, v)
        u = y.detach() / y.detach().norm()
        (back,) = torch.autograd.grad(y, v, u)
        estimate = back.norm()
        self._vectors[name, shape] = back / estimate
        self.num_matvecs += 2
        return float(estimate)


class FastClipByBackward(Method):
    """Algorithm 3 with `FastClip`'s constants, as the published code applies layers."""

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return _ByBackward(sharing.mine(), seed)


class _ByBackward(MethodState):
    """Every product is a `.backward()`, which computes f(0) and the gradients of weights too."""

    def __init__(self, layers: Mapping[str, FoundLayer], seed: int) -> None:
        self._layers = layers
        self._generator = torch.Generator().manual_seed(seed)
        self._vectors: dict[str, Tensor] = {}
        self._norms: dict[str, float] = {}
        self.num_matvecs = 0

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            (module,) = self._layers[name].modules
            if name not in self._vectors:
                self._start_again(name, module)
            self._iterate(name, module)
            if step % FASTCLIP_PERIOD == 0 and self._norms[name] > bound:
                self._clip(name, module, bound)
            module.zero_grad()

    def norms(self) -> dict[str, float]:
        return dict(self._norms)

    def _start_again(self, name: str, module: nn.Module) -> None:
        (shape,) = self._layers[name].in_shapes
        self._vectors[name] = torch.randn(1, *shape, generator=self._generator)
        for _ in range(10):
            self._iterate(name, module)

    def _iterate(self, name: str, module: nn.Module) -> None:
        """PowerQR on one vector, with its shift of one."""
        x = self._vectors[name].requires_grad_()
        (0.5 * self._image(module, x).square().sum()).backward()
        assert x.grad is not None
        moved = x.detach() + x.grad
        length = moved.norm()
        self._vectors[name] = moved / length
        self._norms[name] = float((length - 1).clamp_min(0).sqrt())
        self.num_matvecs += 2

    def _clip(self, name: str, module: nn.Module, bound: float) -> None:
        x = self._vectors[name]
        image = self._image(module, x)
        target = image.detach() * (bound / self._norms[name])
        module.zero_grad()
        (0.5 * (image - target).square().sum()).backward()
        weight = weight_of(module)
        assert weight.grad is not None
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.35)
        self.num_matvecs += 2
        self._start_again(name, module)

    def _image(self, module: nn.Module, x: Tensor) -> Tensor:
        image: Tensor = module(x) - module(torch.zeros_like(x))
        return image


def _without_bias(module: nn.Module, x: Tensor) -> Tensor:
    weight = weight_of(module).detach()
    if isinstance(module, nn.Conv2d):
        image: Tensor = module._conv_forward(x, weight, None)
        return image
    return nn.functional.linear(x, weight)


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a convolution or dense layer."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


METHODS: dict[str, Callable[[], Method]] = {
    NONE: Nothing,
    NONE_COMPOSED: lambda: Nothing(compose="conv_bn"),
    FASTCLIP: FastClip,
    FASTCLIP_BACKWARD: FastClipByBackward,
    FASTCLIP_10: lambda: FastClip(every=10),
    SCALE: ScaleEveryStep,
    OURS: SpectralClip,
    OURS_COMPOSED: lambda: SpectralClip(compose="conv_bn"),
    OURS_COMPILED: lambda: SpectralClip(compile=True),
}


def attached(
    name: str,
    model: nn.Module,
    example: Tensor,
    optimizer: Optimizer | None,
    max_norm: Any = 1.0,
    seed: int = 0,
) -> Attachment:
    """The method of that name at work on the model."""
    return attach(model, optimizer, example, method=METHODS[name](), max_norm=max_norm, seed=seed)


def bounded_layers(
    model: nn.Module, example: Tensor, compose: Compose = "none"
) -> dict[str, FoundLayer]:
    """The layers that are to stay within c, whether a method holds them or not."""
    found = find_layers(model, example, compose)
    return {
        name: layer
        for name, layer in found.items()
        if not isinstance(layer.modules[0], nn.BatchNorm2d)
    }


def num_matvecs(attachment: Attachment) -> float:
    """Vectors sent through layers until now; 0 for SpectralClip, which does not count them."""
    return attachment.num_matvecs


def counts_matvecs(name: str) -> bool:
    """Whether a method's work is one of vectors sent through layers, and counted as such."""
    return name not in (OURS, OURS_COMPOSED, OURS_COMPILED)


def clip_is_due(name: str, attachment: Attachment) -> bool:
    """Whether the latest step was one at which FastClip clips."""
    return clips_at_times(name) and attachment.steps % FASTCLIP_PERIOD == 0


def clips_at_times(name: str) -> bool:
    """Whether it clips every hundred steps, and works less at the others."""
    return name in (FASTCLIP, FASTCLIP_BACKWARD)


def make_clip_due(attachment: Attachment) -> None:
    """Let the next step be one at which FastClip clips, without waiting for a hundred."""
    state = attachment.state_dict()
    attachment.load_state_dict({**state, "steps": [FASTCLIP_PERIOD - 1]})
