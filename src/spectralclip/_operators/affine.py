"""A layer as a pure affine function of its input and its parameters.

Everything else in the library evaluates layers through `AffineFunction` alone. It takes batch norm,
dropout and the like with their evaluation semantics, computes in float32 where the weights are in
half precision, and leaves the layer exactly as it found it: parameters are handed to
`torch.func.functional_call` as detached tensors.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spectralclip._common import Shape, as_shape, in_short
from spectralclip._linalg import has_float64, sent, testable
from spectralclip._operators.contexts import evaluation_mode, unchanged_rng
from spectralclip._operators.factor import Factor
from spectralclip._operators.module_types import describe
from spectralclip._operators.rows import Rows

Layer: TypeAlias = nn.Module | Callable[[Tensor], Tensor] | Sequence[Any]
"""A module, an affine callable on batches, or a sequence of them (their composition)."""

HALF_PRECISION = (torch.float16, torch.bfloat16)


class NotAffineError(ValueError):
    """The layer's output is not an affine function of its input."""


class Stage(NamedTuple):
    """One part of a composition."""

    name: str  # its place in the composition, as `nn.Sequential` would name it ("" if alone)
    layer: nn.Module | Callable[[Tensor], Tensor]
    # For each of the module's own parameter and buffer names, the name in the whole composition
    # under which the value is found. Parts that share a parameter share its name.
    parameters: Mapping[str, str]

    def __call__(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
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


def flattened(layer: Layer, name: str = "") -> Iterator[tuple[str, Any]]:
    """The parts of nested sequences and plain `nn.Sequential`s, with their names."""
    plain_sequential = type(layer) is nn.Sequential and not (
        layer._forward_hooks or layer._forward_pre_hooks
    )
    if plain_sequential or (isinstance(layer, Sequence) and not isinstance(layer, str)):
        for index, part in enumerate(layer):  # type: ignore[arg-type]
            yield from flattened(part, f"{name}.{index}" if name else str(index))
    elif callable(layer):
        yield name, layer
    else:
        given: object = layer
        kernel = ": of a kernel alone, kernel_norm and kernel_operator know the layer"
        raise TypeError(
            "Expected a module, an affine callable or a sequence of them, got "
            f"{in_short(given)}{kernel if isinstance(given, Tensor) else ''}."
        )


@final
class AffineFunction:
    """`f(x) = M(W) x + b` on batches `(k, *in_shape)`, from the layer's own forward.

    Attributes:
        stages: The parts of the composition, in order, with `shapes` before, between and after.
        parameters: The layer's own parameter tensors by name, each once.
        values: Detached parameters and buffers by name, in the dtype of the computation.
        is_checked: Whether the layer's backward pass is known to fit its forward pass.
    """

    def __init__(
        self,
        layer: Layer,
        in_shape: Sequence[int] | int | None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.name, self.is_checked = describe(layer), False
        self._origin: AffineFunction | None = None
        self.in_shape = input_shape(layer, in_shape)
        known: dict[int, tuple[str, Tensor]] = {}  # with the tensors, so that no id comes again
        stages = []
        for name, part in flattened(layer):
            bindings = {}
            for own, tensor in _named_tensors(part):
                whole = f"{name}.{own}" if name else own
                bindings[own] = known.setdefault(id(tensor), (whole, tensor))[0]
            stages.append(Stage(name, part, bindings))
        if not stages:
            raise ValueError("An empty sequence has no spectrum: give at least one layer.")
        self.stages: tuple[Stage, ...] = tuple(stages)
        self._modules = [s.layer for s in stages if isinstance(s.layer, nn.Module)]
        tensors = self.tensors()
        self.parameters: dict[str, Tensor] = {
            stage.parameters[own]: tensors[stage.parameters[own]]
            for stage in stages
            if isinstance(stage.layer, nn.Module)
            for own, _ in stage.layer.named_parameters(remove_duplicate=False)
        }
        _check_tensors(self.name, self.parameters, tensors)
        self.dtype, self.device = _computation(self.parameters, tensors, dtype, device)
        self.values = self._detached(tensors)
        with torch.no_grad(), unchanged_rng(self.device):
            self.shapes = self._trace()
        self.out_shape = self.shapes[-1]

    def __call__(
        self, x: Tensor, values: Mapping[str, Tensor] | None = None, stages: slice = slice(None)
    ) -> Tensor:
        """`f(x)` on a batch; with other parameter values, or of some stages, where given."""
        merged = self.values if values is None else {**self.values, **values}
        with self.evaluating():
            for stage in self.stages[stages]:
                x = stage(merged, x)
        return x

    def evaluating(self) -> AbstractContextManager[None]:
        """The layers in the mode of evaluation."""
        return evaluation_mode(self._modules)

    def linear_part(self, x: Tensor, values: Mapping[str, Tensor] | None = None) -> Tensor:
        """`M x` on a batch, as `(f(gain x) - f(0)) / gain`; with other values where given."""
        offset = self(self.zeros(1), values)
        return (self(self.gain * x, values) - offset) / self.gain

    def bare_linear_part(self, x: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """`M x` by operations on tensors alone, for callers that are `evaluating()` themselves."""
        both = torch.cat((self.gain * x, torch.zeros_like(x[:1])))
        for stage in self.stages:
            both = stage(values, both)
        return (both[:-1] - both[-1:]) / self.gain

    def with_values(self, values: Mapping[str, Tensor]) -> AffineFunction:
        """The function with other parameter or buffer values, evaluated at the same gain."""
        moved = copy.copy(self)
        moved.values, moved.is_checked = {**self.values, **values}, True
        moved._origin = self._origin or self
        return moved

    def now(self) -> AffineFunction:
        """The function with the parameters and buffers that the layer has now."""
        tensors = self.tensors()
        moved = self.with_values(self._detached(tensors))
        moved.parameters = {name: tensors[name] for name in self.parameters}
        return moved

    def zeros(self, rows: int) -> Tensor:
        return torch.zeros(rows, *self.in_shape, dtype=self.dtype, device=self.device)

    @property
    def magnitude(self) -> float:
        """The largest entry of `M x` for a random unit vector x."""
        return (self._origin or self)._weight[0]

    @property
    def gain(self) -> float:
        """A power of two. Evaluated at `gain * x`, the linear part outweighs the offset `f(0)`.

        `f(x) - f(0)` would lose as many digits as `f(0)` is larger than it is.
        """
        return (self._origin or self)._weight[1]

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers as the modules hold them now, by name."""
        return {
            stage.parameters[own]: tensor
            for stage in self.stages
            for own, tensor in _named_tensors(stage.layer)
        }

    def _detached(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In the dtype of the computation; buffers copied, since a forward pass may write there."""
        return {
            name: sent(
                tensor.detach(),
                self.device,
                self.dtype if tensor.is_floating_point() else tensor.dtype,
                copy=name not in self.parameters,
            )
            for name, tensor in tensors.items()
        }

    def _trace(self) -> tuple[Shape, ...]:
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
                _check_output(stage.layer, shapes[-1], x)
                shapes.append(tuple(x.shape[1:]))
        return tuple(shapes)

    @cached_property
    def _weight(self) -> tuple[float, float]:
        generator = torch.Generator("cpu").manual_seed(0)
        x = torch.randn(1, *self.in_shape, generator=generator, device="cpu")
        x = (x / x.norm()).to(self.device, self.dtype)
        with torch.no_grad(), unchanged_rng(self.device):
            at_zero = self(self.zeros(1))
            offset = float(at_zero.abs().max())
            for power in (0, 20, 40, 60, 80, 100, 120):
                gain = 2.0**power
                linear = float((self(gain * x) - at_zero).abs().max()) / gain
                if offset == 0 or 0 < offset < linear * gain < math.inf:
                    return linear, gain
        return 0.0, 1.0


def _check_rank(layer: object, shape: Shape) -> None:
    """Torch would take a batch without a channel axis for a single input with one."""
    axes = getattr(layer, "kernel_size", None)
    if isinstance(layer, nn.modules.conv._ConvNd) and axes and len(shape) != len(axes) + 1:
        raise ValueError(
            f"{describe(layer)} needs an in_shape of {len(axes) + 1} entries, channels first and "
            f"without the batch dimension, got {shape}."
        )


_NO_TENSOR = (
    "Give a function that returns the tensor; the matrices of recurrent layers and of attention "
    "are among the layers of find_layers."
)


def _check_output(layer: object, in_shape: Shape, x: object) -> None:
    """Raise unless a batch of one has become a batch of one, real and not empty."""
    if not isinstance(x, Tensor) or x.ndim == 0 or x.shape[0] != 1:
        no_tensor = f"{type(x).__name__}. {_NO_TENSOR}"
        got = f"shape {tuple(x.shape)}." if isinstance(x, Tensor) else no_tensor
        raise ValueError(
            f"{describe(layer)} must map a batch of k inputs to a tensor with k outputs; from a "
            f"batch of one it made {got}"
        )
    if not x.is_floating_point():
        raise ValueError(
            f"{describe(layer)} makes an output of dtype {x.dtype}, expected a real "
            "floating-point one."
        )
    if x.numel() == 0:
        raise ValueError(
            f"{describe(layer)} makes an empty output of shape {tuple(x.shape[1:])} from in_shape "
            f"{in_shape}: give a larger input."
        )


def _named_tensors(layer: object) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of a module, each under all of its names."""
    if isinstance(layer, nn.Module):
        yield from layer.named_parameters(remove_duplicate=False)
        yield from layer.named_buffers(remove_duplicate=False)


def input_shape(layer: Layer, in_shape: Sequence[int] | int | None) -> Shape:
    """The shape of one input, checked; where it is None, as the layer itself knows it."""
    name = describe(layer)
    if in_shape is None:
        known = known_shape(layer)
        if known is None:
            raise ValueError(
                f"{name} does not say what its inputs look like, as nn.Linear and compositions "
                "that begin with one do: give in_shape, the shape of one input without the batch "
                "dimension, such as (3, 32, 32). Only norm_bounds_all_sizes does without."
            )
        return known
    try:
        shape = as_shape(in_shape)
    except TypeError as error:
        raise TypeError(
            f"in_shape of {name} must be a sequence of integers such as (3, 32, 32), "
            f"got {in_short(in_shape)}."
        ) from error
    if not shape or min(shape) < 1:
        raise ValueError(
            f"in_shape of {name} must have at least one dimension and no empty one, got {shape}: "
            "it is the shape of one input, without the batch dimension, such as (3, 32, 32)."
        )
    return shape


def known_shape(layer: Layer) -> Shape | None:
    """The shape of one input where the layer, or the first of a composition, fixes it.

    A dense layer takes vectors of one length, and an embedding one-hot vectors. (Both work at
    further leading positions too, each with the same spectrum, repeated.)
    """
    first = next((part for _, part in flattened(layer)), None)
    if isinstance(first, (nn.Linear, Rows, Factor)) and first.in_features > 0:
        return (first.in_features,)
    if isinstance(first, nn.Embedding):
        return (first.num_embeddings,)
    return None


def _check_tensors(
    name: str, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Raise unless all have values, are dense and finite, and parameters real."""
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
        if key in parameters and not tensor.is_floating_point():
            raise TypeError(
                f"{key!r} of {name} has dtype {tensor.dtype}, expected a real floating-point one: "
                "convert or dequantize the weights first."
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(testable(tensor)).all()):
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
    """Where and in which precision to compute: as the parameters say, at least in float32."""
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
