"""A layer as a pure affine function of its input and its parameters.

Everything else in the library evaluates layers through `AffineFunction` alone. It takes
batch norm, dropout and the like with their evaluation semantics, computes in float32 where
the weights are in half precision, and leaves the layer exactly as it found it: parameters
are handed to `torch.func.functional_call` as detached tensors, so that no `.grad`, no
buffer and no training flag of the layer changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spectralclip._common import as_shape, explained
from spectralclip._linalg import full_precision, has_float64, sent

Layer: TypeAlias = nn.Module | Callable[[Tensor], Tensor] | Sequence[Any]
"""A module, an affine callable on batches, or a sequence of them (their composition)."""

HALF_PRECISION = (torch.float16, torch.bfloat16)


class NotAffineError(ValueError):
    """The layer's output is not an affine function of its input."""


def describe(layer: object) -> str:
    """A short name for error messages: the module's own one-line form, or its type."""
    if isinstance(layer, nn.Module):
        text = " ".join(repr(layer).split())
        return text if len(text) <= 100 else f"{type(layer).__name__}(...)"
    if isinstance(layer, Sequence) and not isinstance(layer, str):
        return "[" + ", ".join(describe(part) for part in layer) + "]"
    return getattr(layer, "__name__", None) or type(layer).__name__


@contextmanager
def evaluation_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switch modules to evaluation for the block, flag by flag, and back.

    `Module.eval()` is not called: it is often overridden, and its inverse is not known. Parts that
    are frozen have no flag. Attention goes its usual way: torch's faster one in evaluation computes
    the same, but has no derivatives and calls none of its modules.
    """
    training = [
        part for module in modules for part in module.modules() if getattr(part, "training", False)
    ]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    for part in training:
        part.training = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part in training:
            part.training = True


@contextmanager
def plain_numerics() -> Iterator[None]:
    """Full precision, and autograd at hand, whatever the caller has switched on around us.

    All that the library computes for a caller is computed in here: so this is also where faults of
    the machine are told from those of a layer.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(full_precision())
        try:
            yield
        except Exception as error:
            fault = explained(error)
            if fault is None or fault is error:
                raise
            raise fault from error


@contextmanager
def unchanged_rng(device: torch.device) -> Iterator[None]:
    """Put torch's global random state back, should a layer have drawn from it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@final
@dataclass(frozen=True)
class Stage:
    """One part of a composition.

    Attributes:
        name: Its place in the composition, as `nn.Sequential` would name it ("" if alone).
        layer: The module or callable.
        parameters: For each of the module's own parameter and buffer names, the name in the
            whole composition under which the value is found. Parts that share a parameter
            share its name.
    """

    name: str
    layer: nn.Module | Callable[[Tensor], Tensor]
    parameters: Mapping[str, str]

    def __call__(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Evaluate on a batch, with the given parameter and buffer values."""
        if not isinstance(self.layer, nn.Module):
            return self.layer(x)
        own = {name: values[whole] for name, whole in self.parameters.items()}
        if isinstance(self.layer, (nn.Embedding, nn.EmbeddingBag)):
            return _embed_one_hot(self.layer, own["weight"], x)
        if isinstance(self.layer, torch.jit.ScriptModule):
            # Its parameters cannot be exchanged from outside: it is called as it is.
            return self.layer(x)  # type: ignore[no-any-return]
        result: Tensor = torch.func.functional_call(self.layer, own, (x,))
        return result


def _embed_one_hot(layer: nn.Embedding | nn.EmbeddingBag, weight: Tensor, x: Tensor) -> Tensor:
    """An embedding as the linear map that it is on one-hot rows."""
    if layer.max_norm is not None:
        norms = torch.linalg.vector_norm(weight, ord=layer.norm_type, dim=1, keepdim=True)
        weight = weight * torch.clamp(layer.max_norm / norms.clamp_min(1e-7), max=1.0)
    if isinstance(layer, nn.Embedding):
        return x @ weight
    if layer.mode == "max":
        raise NotAffineError(f"{describe(layer)} takes a maximum, which is not affine.")
    if layer.padding_idx is not None:
        if layer.mode == "mean":
            raise NotAffineError(
                f"{describe(layer)} divides by the number of entries that are not padding, which "
                "is not affine."
            )
        kept = torch.arange(weight.shape[0], device=weight.device) != layer.padding_idx
        weight = weight * kept[:, None]
    rows = x @ weight
    return rows.sum(-2) if layer.mode == "sum" else rows.mean(-2)


def _flatten(layer: Layer, name: str = "") -> Iterator[tuple[str, Any]]:
    """The parts of nested sequences and plain `nn.Sequential`s, with their names."""
    plain_sequential = type(layer) is nn.Sequential and not (
        layer._forward_hooks or layer._forward_pre_hooks
    )
    if plain_sequential or (isinstance(layer, Sequence) and not isinstance(layer, str)):
        for index, part in enumerate(layer):  # type: ignore[arg-type]
            yield from _flatten(part, f"{name}.{index}" if name else str(index))
    elif callable(layer):
        yield name, layer
    else:
        raise TypeError(
            f"Expected a module, an affine callable or a sequence of them, got {layer!r}."
        )


@final
class AffineFunction:
    """`f(x) = M(W) x + b` on batches `(k, *in_shape)`, from the layer's own forward.

    Attributes:
        name: For error messages.
        stages: The parts of the composition, in order.
        parameters: The layer's own parameter tensors by name, each once.
        values: Detached parameters and buffers by name, in the dtype of the computation.
        in_shape: Shape of one input.
        out_shape: Shape of one output.
        at_zero: `f(0) = b`, of shape `(1, *out_shape)`.
        shapes: Shapes between the stages: `in_shape`, ..., `out_shape`.
        magnitude: The largest entry of `M x` for a random unit vector x.
        gain: A power of two. `f(x) - f(0)` loses what `f(0)` is larger than it is; evaluated
            at `gain * x` the linear part outweighs the offset.
    """

    def __init__(
        self,
        layer: Layer,
        in_shape: Sequence[int] | int | None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.name = describe(layer)
        self.in_shape = input_shape(layer, in_shape)
        self.parameters: dict[str, Tensor] = {}
        tensors: dict[str, Tensor] = {}
        names_by_identity: dict[int, str] = {}
        stages = []
        for name, part in _flatten(layer):
            bindings = {}
            if isinstance(part, nn.Module):
                for kind, own, tensor in _named_tensors(part):
                    whole = f"{name}.{own}" if name else own
                    whole = names_by_identity.setdefault(id(tensor), whole)
                    bindings[own] = whole
                    tensors[whole] = tensor
                    if kind == "parameter":
                        self.parameters[whole] = tensor
            stages.append(Stage(name, part, bindings))
        if not stages:
            raise ValueError("An empty sequence has no spectrum: give at least one layer.")
        self.stages: tuple[Stage, ...] = tuple(stages)
        self._modules = [s.layer for s in stages if isinstance(s.layer, nn.Module)]
        _check_tensors(self.name, self.parameters, tensors)
        self.dtype, self.device = _computation(self.parameters, tensors, dtype, device)
        # Buffers are copied, since a forward pass may write into them.
        self.values = {
            name: sent(
                tensor.detach(),
                self.device,
                self.dtype if tensor.is_floating_point() else tensor.dtype,
                copy=name not in self.parameters,
            )
            for name, tensor in tensors.items()
        }
        with torch.no_grad(), unchanged_rng(self.device):
            self.shapes, self.at_zero = self._trace()
            self.out_shape = self.shapes[-1]
            self.magnitude, self.gain = self._weigh()

    def __call__(self, x: Tensor, values: Mapping[str, Tensor] | None = None) -> Tensor:
        """`f(x)` on a batch; with other parameter values where some are given."""
        merged = self.values if values is None else {**self.values, **values}
        with evaluation_mode(self._modules):
            for stage in self.stages:
                x = stage(merged, x)
        return x

    def part(self, start: int, stop: int, x: Tensor) -> Tensor:
        """The stages from `start` up to `stop` alone."""
        with evaluation_mode(self._modules):
            for stage in self.stages[start:stop]:
                x = stage(self.values, x)
        return x

    def live_values(self) -> dict[str, Tensor]:
        """The layer's own parameters in the dtype of the computation, attached to autograd."""
        own = self.parameters.items()
        return {name: sent(tensor, self.device, self.dtype) for name, tensor in own}

    def zeros(self, rows: int) -> Tensor:
        """A batch of zero inputs."""
        return torch.zeros(rows, *self.in_shape, dtype=self.dtype, device=self.device)

    def _trace(self) -> tuple[tuple[tuple[int, ...], ...], Tensor]:
        """The shapes between the stages, and `f(0)`."""
        x, shapes = self.zeros(1), [self.in_shape]
        with evaluation_mode(self._modules):
            for stage in self.stages:
                _check_rank(stage.layer, shapes[-1])
                try:
                    x = stage(self.values, x)
                except NotAffineError:
                    raise
                except Exception as error:
                    place = f"{describe(stage.layer)} in {self.name}" if stage.name else self.name
                    raise ValueError(
                        f"{place} cannot be applied to an input of shape {shapes[-1]}: {error} "
                        "(in_shape is the shape of one input, without the batch dimension)."
                    ) from error
                if not isinstance(x, Tensor) or x.ndim == 0 or x.shape[0] != 1:
                    got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
                    raise ValueError(
                        f"{describe(stage.layer)} must map a batch of k inputs to a tensor with "
                        f"k outputs; from a batch of one it made {got}."
                    )
                if not x.is_floating_point():
                    raise ValueError(
                        f"{describe(stage.layer)} makes an output of dtype {x.dtype}, expected a "
                        "real floating-point one."
                    )
                if x.numel() == 0:
                    raise ValueError(
                        f"{describe(stage.layer)} makes an empty output of shape "
                        f"{tuple(x.shape[1:])} from in_shape {shapes[-1]}: give a larger input."
                    )
                shapes.append(tuple(x.shape[1:]))
        return tuple(shapes), x

    def _weigh(self) -> tuple[float, float]:
        """Magnitude of the linear part, and the gain at which it outweighs the offset."""
        generator = torch.Generator("cpu").manual_seed(0)
        x = torch.randn(1, *self.in_shape, generator=generator, device="cpu")
        x = (x / x.norm()).to(self.device, self.dtype)
        offset = float(self.at_zero.abs().max())
        for power in (0, 20, 40, 60, 80, 100, 120):
            gain = 2.0**power
            linear = float((self(gain * x) - self.at_zero).abs().max()) / gain
            if offset == 0 or 0 < offset < linear * gain < math.inf:
                return linear, max(1.0, gain)
        return 0.0, 1.0


def _check_rank(layer: object, shape: tuple[int, ...]) -> None:
    """Torch would take a batch without a channel axis for a single input with one."""
    axes = getattr(layer, "kernel_size", None)
    if isinstance(layer, nn.modules.conv._ConvNd) and axes and len(shape) != len(axes) + 1:
        raise ValueError(
            f"{describe(layer)} needs an in_shape of {len(axes) + 1} entries, channels first and "
            f"without the batch dimension, got {shape}."
        )


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield "parameter", name, parameter
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield "buffer", name, buffer


def input_shape(layer: Layer, in_shape: Sequence[int] | int | None) -> tuple[int, ...]:
    """The shape of one input, checked; where it is None, as the layer itself knows it."""
    name = describe(layer)
    if in_shape is None:
        known = known_shape(layer)
        if known is None:
            raise ValueError(
                f"{name} does not say what its inputs look like, as nn.Linear and compositions "
                "that begin with one do: give in_shape, the shape of one input without the batch "
                "dimension, such as (3, 32, 32)."
            )
        return known
    try:
        shape = as_shape(in_shape)
    except TypeError as error:
        raise TypeError(
            f"in_shape of {name} must be a sequence of integers such as (3, 32, 32), "
            f"got {in_shape!r}."
        ) from error
    if not shape or min(shape) < 1:
        raise ValueError(
            f"in_shape of {name} must have at least one dimension and no empty one, got {shape}: "
            "it is the shape of one input, without the batch dimension, such as (3, 32, 32)."
        )
    return shape


def known_shape(layer: Layer) -> tuple[int, ...] | None:
    """The shape of one input where the layer, or the first of a composition, fixes it.

    A dense layer takes vectors of one length, and an embedding one-hot vectors. (Both work at
    further leading positions too, each with the same spectrum, repeated.)
    """
    first = next((part for _, part in _flatten(layer)), None)
    if isinstance(first, nn.Linear) and first.in_features > 0:
        return (first.in_features,)
    if isinstance(first, nn.Embedding):
        return (first.num_embeddings,)
    return None


def _check_tensors(
    name: str, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    for key, tensor in tensors.items():
        if is_lazy(tensor):
            raise ValueError(
                f"{key!r} of {name} has no size yet: run the lazy layer once on an example input."
            )
        if tensor.is_meta:
            raise ValueError(
                f"{key!r} of {name} is on the meta device and has no values: load the weights or "
                "use .to_empty() first."
            )
        if tensor.layout != torch.strided:
            raise TypeError(
                f"{key!r} of {name} is a sparse tensor ({tensor.layout}), expected a dense one: "
                "convert it by .to_dense() first."
            )
    for key, tensor in parameters.items():
        if not tensor.is_floating_point():
            raise TypeError(
                f"{key!r} of {name} has dtype {tensor.dtype}, expected a real floating-point one: "
                "convert or dequantize the weights first."
            )
    for key, tensor in tensors.items():
        wide = tensor.float() if tensor.element_size() < 2 else tensor
        if tensor.is_floating_point() and not bool(torch.isfinite(wide).all()):
            raise ValueError(
                f"{key!r} of {name} holds NaN or infinite values: its spectrum is not defined. "
                "Restore finite weights."
            )


def _computation(
    parameters: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> tuple[torch.dtype, torch.device]:
    """Where and in which precision to compute: as the parameters say, at least float32.

    Float64 that their device lacks is had on the CPU.
    """
    floating = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    places = {tensor.device for tensor in floating}
    if len(places) > 1:
        raise ValueError(f"The parameters lie on several devices {sorted(map(str, places))}.")
    if dtype is None:
        dtype = torch.get_default_dtype() if not floating else floating[0].dtype
        for tensor in list(parameters.values()) or floating:
            dtype = torch.promote_types(dtype, tensor.dtype)
        if floating and not any(tensor.dtype == torch.float64 for tensor in floating):
            dtype = torch.float32
    if dtype in HALF_PRECISION:
        dtype = torch.float32
    if device is None:
        device = places.pop() if places else torch.device("cpu")
    device = torch.device(device)
    if dtype == torch.float64 and not has_float64(device):
        device = torch.device("cpu")
    return dtype, device
