"""`LinearOperator`: a layer as the matrix `M` that it is, without forming it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import Tensor

from spectralclip._common import as_shape
from spectralclip._linalg import full_precision, gradients_in, sent
from spectralclip._operators.affine import AffineFunction, Layer
from spectralclip._operators.arrays import scipy_operator
from spectralclip._operators.blocks import BlockForm
from spectralclip._operators.build import build_maps, merge
from spectralclip._operators.callables import callable_maps
from spectralclip._operators.check_affine import require_affine
from spectralclip._operators.contexts import plain_numerics
from spectralclip._operators.maps import AutogradMap, ConvMap, LinearMap, ScalarMap
from spectralclip._operators.module_types import is_known_affine

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator as ScipyOperator


# Bytes of rows that go through a recorded forward pass at once, on a CPU: wider batches leave its
# caches, and each pass pages in new memory (up to twice as slow).
_WIDE = 3 * 2**20


@final
class LinearOperator:
    """The linear part `M` of an affine layer `f(x) = M x + b`, applied but never formed.

    Made by `as_operator`, for the weights that the layer has then: make a new one when they
    have changed. `kernel_operator` and `from_callables` make it from arrays. Vectors are tensors of
    shape `in_shape` or `out_shape`, or batches of them with one leading dimension.

    Attributes:
        in_shape: Shape of one input.
        out_shape: Shape of one output.
        dtype: Of the computation: the parameters', at least float32.
        device: Of the parameters; the CPU for float64 that their device lacks.
        name: The layer in a few words.
        maps: How `M` is applied to flat rows, stage by stage.
        function: The layer as an affine function of its input and its parameters.
    """

    def __init__(
        self,
        function: AffineFunction,
        maps: Sequence[LinearMap],
        *,
        transposed: bool,
        scale: float = 1.0,
    ) -> None:
        self.function = function
        self._transposed = transposed
        self._scale = scale
        self.maps: tuple[LinearMap, ...] = tuple(maps)
        self.dtype, self.device = function.dtype, function.device
        self.name = f"adjoint of {function.name}" if transposed else function.name
        shapes = function.in_shape, function.out_shape
        self.in_shape, self.out_shape = reversed(shapes) if transposed else shapes

    @property
    def shape(self) -> tuple[int, int]:
        """`(m, n)`: the number of outputs and of inputs."""
        return math.prod(self.out_shape), math.prod(self.in_shape)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The layer's own parameters by name, as `pullback` names them."""
        return dict(self.function.parameters)

    def __repr__(self) -> str:
        m, n = self.shape
        return f"<LinearOperator {m}x{n} {self.dtype}: {self.name}>"

    @classmethod
    @plain_numerics()
    def from_callables(
        cls,
        matvec: Callable[[Any], Any],
        rmatvec: Callable[[Any], Any],
        in_shape: Sequence[int] | int,
        out_shape: Sequence[int] | int,
        *,
        arrays: Literal["numpy", "torch"] = "numpy",
        batched: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        name: str | None = None,
    ) -> LinearOperator:
        """An operator from two functions on arrays, such as those of NumPy, JAX or CuPy.

        Both are tried at random vectors first: they have to be linear, and `<matvec(x), y>` has to
        be `<x, rmatvec(y)>`. The operator has no parameters, so it cannot be clipped.

        Args:
            matvec: `M x`, from an array of shape `in_shape` to one of shape `out_shape`, which may
                be anything with `__array__` or `__dlpack__`.
            rmatvec: `M^T y`: the other way round.
            in_shape: Shape of one input.
            out_shape: Shape of one output.
            arrays: What the functions are given: NumPy arrays, or tensors.
            batched: Whether they take batches `(k, *in_shape)`, and not one array at a time.
            dtype: Precision of the arrays; by default the one in which `matvec` answers float64,
                and torch's default for tensors.
            device: Where the computation between the products happens; by default the CPU.
            name: What errors call the operator.

        Raises:
            NotAffineError: `matvec` is not linear.
            ValueError: `rmatvec` is not the transpose, or an answer does not fit.

        Example:
            >>> import numpy as np
            >>> import spectralclip as sc
            >>> op = sc.LinearOperator.from_callables(  # differences of neighbours, on a ring
            ...     lambda x: np.roll(x, -1) - x, lambda y: np.roll(y, 1) - y, 100, 100
            ... )
            >>> round(float(sc.spectral_norm(op)), 4), sc.norm_bounds(op, tol=1e-3).kind
            (2.0, 'probabilistic')
        """
        products, shapes = (matvec, rmatvec), (in_shape, out_shape)
        function, maps = callable_maps(products, shapes, arrays, batched, dtype, device, name)
        return cls(function, maps, transposed=False)

    # --- on tensors of the layer's own shapes ---

    @plain_numerics()
    def matvec(self, x: Tensor) -> Tensor:
        """`M x`, for one input or a batch."""
        batch, single = self._batch(x, self.in_shape, "matvec")
        y = self.output_tensor(self.forward_rows(self.input_rows(batch)))
        return y[0] if single else y

    @plain_numerics()
    def rmatvec(self, y: Tensor) -> Tensor:
        """`M^T y`, for one output or a batch."""
        batch, single = self._batch(y, self.out_shape, "rmatvec")
        x = self.input_tensor(self.adjoint_rows(self.output_rows(batch)))
        return x[0] if single else x

    @plain_numerics()
    def gram(self, x: Tensor) -> Tensor:
        """`M^T M x`, for one input or a batch; one forward and one backward pass."""
        batch, single = self._batch(x, self.in_shape, "gram")
        z = self.input_tensor(self.gram_rows(self.input_rows(batch)))
        return z[0] if single else z

    @plain_numerics()
    def pullback(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:
        """The gradient of `<u, M(W) v>` in the parameters W, by name.

        For batches of as many u and v, the gradient of the sum over the rows. Parameters on which
        `M` does not depend, such as biases, get zeros.
        """
        if self._transposed:
            return self.adjoint().pullback(v, u)
        function = self.function
        if not function.parameters:
            raise ValueError(f"{self.name} has no parameters to take a gradient in.")
        values = {name: function.values[name] for name in function.parameters}
        return self._bilinear(u, v, values)[1]

    @plain_numerics()
    def bilinear(self, u: Tensor, v: Tensor) -> Tensor:
        """The sum of `<u_i, M(W) v_i>` over a batch, attached to the layer's own parameters."""
        if self._transposed:
            return self.adjoint().bilinear(v, u)
        own = self.function.parameters
        live = {name: sent(one, self.device, self.dtype) for name, one in own.items()}
        # The gradient is taken here and now, at full precision: by the time that a user calls
        # `backward`, settings such as TF32 are back.
        result, gradients = self._bilinear(u, v, live)
        for name, value in live.items():
            if value.requires_grad and torch.is_grad_enabled():
                result = result + torch.sum(gradients[name] * (value - value.detach()))
        return result

    def _bilinear(
        self, u: Tensor, v: Tensor, values: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of `<u_i, M(W) v_i>` for these parameter values, and its gradients in them."""
        function = self.function
        if any(isinstance(stage.layer, torch.jit.ScriptModule) for stage in function.stages):
            raise ValueError(
                f"{self.name} is scripted: its parameters cannot be reached for a gradient. Use "
                "the module that it was made from."
            )
        outputs, _ = self._batch(u, self.out_shape, "u")
        inputs, _ = self._batch(v, self.in_shape, "v")
        if outputs.shape[0] != inputs.shape[0]:
            raise ValueError(
                f"Expected as many u as v for {self.name}, got {outputs.shape[0]} and "
                f"{inputs.shape[0]}."
            )
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        with torch.enable_grad():
            value = torch.sum(outputs * function.linear_part(inputs, leaves))
        return value.detach(), gradients_in(value, leaves)

    def adjoint(self) -> LinearOperator:
        """The operator `M^T`, from `out_shape` to `in_shape`."""
        maps, scale = [map_.transpose() for map_ in reversed(self.maps)], self._scale
        return LinearOperator(self.function, maps, transposed=not self._transposed, scale=scale)

    # --- what the maps know ---

    @property
    def convolution(self) -> ConvMap | None:
        """The one convolution that the operator or its transpose is, batch norms merged in."""
        merged = merge(self.maps)
        return merged[0].convolution if len(merged) == 1 else None

    def block_form(self) -> BlockForm | None:
        """The operator, or its transpose, as small matrices, where it is block diagonal."""
        return self.maps[0].block_form() if len(self.maps) == 1 else None

    def frobenius_sq(self) -> float | None:
        """`||M||_F^2`; None where it has no closed form."""
        factor, rest = 1.0, []
        for map_ in merge(self.maps):
            if isinstance(map_, ScalarMap):
                factor *= map_.factor**2
            elif not map_.is_identity:
                rest.append(map_)
        square = rest[0].frobenius_sq() if len(rest) == 1 else None
        return None if square is None else factor * square

    def balanced(self) -> tuple[LinearOperator, float]:
        """The operator times a power of two that keeps fourth powers of its norm in range.

        The factor is one unless the weights are extremely large or small.
        """
        magnitude = self._scale * (self.function.magnitude or self._measured_magnitude())
        # A factor beyond the second number would itself overflow.
        comfortable, most = (2.0**16, 120) if self.dtype == torch.float32 else (2.0**200, 1000)
        if not 0 < magnitude < math.inf or 1 / comfortable < magnitude < comfortable:
            return self, 1.0
        factor = 2.0 ** min(-round(math.log2(magnitude)), most)
        return self.scaled(factor), factor

    def scaled(self, factor: float) -> LinearOperator:
        """The operator times a factor."""
        maps = [*self.maps, ScalarMap(factor, self.maps[-1].target)]
        scale = self._scale * factor
        return LinearOperator(self.function, maps, transposed=self._transposed, scale=scale)

    def _measured_magnitude(self) -> float:
        """The largest entry of `M x` for a unit vector x, where the offset hides it from f."""
        n = self.maps[0].source.size
        row = torch.full((1, n), n**-0.5, dtype=self.dtype, device=self.device)
        return float(self.forward_rows(row).abs().max()) / self._scale

    def to_dense(self) -> Tensor:
        """The matrix `M`, both sides flattened as torch does; for tests and small layers."""
        m, n = self.shape
        if m < n:
            return self.adjoint().to_dense().T.contiguous()
        identity = torch.eye(n, dtype=self.dtype, device=self.device)
        return self.matvec(identity.reshape(n, *self.in_shape)).reshape(n, m).T.contiguous()

    def to_scipy(self) -> ScipyOperator:
        """A `scipy.sparse.linalg.LinearOperator` on flat NumPy vectors."""
        return scipy_operator(self)

    # --- on flat rows, in the layout that the layer likes; what the solvers work with ---

    @full_precision()
    @torch.no_grad()
    def forward_rows(self, rows: Tensor) -> Tensor:
        """`M x` for each flat row x."""
        layout = self.maps[0].source
        for map_ in self.maps:
            rows = map_.forward(layout.converted(rows, map_.source))
            layout = map_.target
        return rows

    @full_precision()
    @torch.no_grad()
    def adjoint_rows(self, rows: Tensor) -> Tensor:
        """`M^T y` for each flat row y."""
        layout = self.maps[-1].target
        for map_ in reversed(self.maps):
            rows = map_.adjoint(layout.converted(rows, map_.target))
            layout = map_.source
        return rows

    @full_precision()
    @torch.no_grad()
    def gram_rows(self, rows: Tensor) -> Tensor:
        """`M^T M x` for each flat row x."""
        if rows.device.type == "cpu" and not all(map_.is_explicit for map_ in self.maps):
            at_once = max(1, _WIDE // (rows.shape[1] * rows.element_size()))
            if rows.shape[0] > at_once:
                return torch.cat([self._gram_of(part) for part in rows.split(at_once)])
        return self._gram_of(rows)

    def _gram_of(self, rows: Tensor) -> Tensor:
        layout, adjoints = self.maps[0].source, []
        for map_ in self.maps:
            rows, adjoint = map_.linearize(layout.converted(rows, map_.source))
            adjoints.append(adjoint)
            layout = map_.target
        for map_, adjoint in zip(reversed(self.maps), reversed(adjoints), strict=True):
            rows = adjoint(layout.converted(rows, map_.target))
            layout = map_.source
        return rows

    def input_rows(self, x: Tensor) -> Tensor:
        """A batch of inputs as flat rows."""
        return self.maps[0].source.to_rows(x)

    def input_tensor(self, rows: Tensor) -> Tensor:
        """Flat rows as a batch of inputs, contiguous."""
        return self.maps[0].source.to_tensor(rows).reshape(-1, *self.in_shape).contiguous()

    def output_rows(self, y: Tensor) -> Tensor:
        """A batch of outputs as flat rows."""
        return self.maps[-1].target.to_rows(y)

    def output_tensor(self, rows: Tensor) -> Tensor:
        """Flat rows as a batch of outputs, contiguous."""
        return self.maps[-1].target.to_tensor(rows).reshape(-1, *self.out_shape).contiguous()

    def _batch(self, x: Tensor, shape: tuple[int, ...], method: str) -> tuple[Tensor, bool]:
        single = tuple(x.shape) == shape
        if not single and tuple(x.shape[1:]) != shape:
            raise ValueError(
                f"{method} of {self.name} expects shape {shape}, or (k, *{shape}) for a batch, "
                f"got {tuple(x.shape)}."
            )
        x = sent(x.detach(), self.device, self.dtype)
        return (x[None] if single else x), single


@plain_numerics()
def as_operator(
    layer: Layer | LinearOperator,
    in_shape: Sequence[int] | int | None = None,
    *,
    explicit: bool = True,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> LinearOperator:
    """The linear part of a layer as an operator that can be applied in both directions.

    Args:
        layer: A module, an affine callable on batches, or a sequence of them (their
            composition, the first applied first). An operator is returned as it is.
        in_shape: Shape of one input, without the batch dimension. For an embedding the last
            entry is the number of embeddings: its inputs are one-hot vectors. May be left out
            where the layer knows it: `nn.Linear`, and compositions that begin with one.
        explicit: Use the explicit forms of known layers, which are faster. Without them
            everything goes through the layer's own forward and backward.
        dtype: Precision (default: the parameters', at least float32; torch's default without
            any). Float64 that the parameters' device lacks is computed on the CPU.
        device: Device for layers without parameters (default: CPU).

    Returns:
        The operator, for the weights that the layer has now.

    Raises:
        NotAffineError: The layer is not affine; the message names the submodule.
        ValueError: `in_shape` does not fit, or weights are missing or not finite.

    Example:
        >>> import torch
        >>> from spectralclip import as_operator
        >>> conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect")
        >>> norm = torch.nn.BatchNorm2d(8)
        >>> op = as_operator([conv, norm], (3, 16, 16))
        >>> op.out_shape, op.matvec(torch.ones(3, 16, 16)).shape
        ((8, 8, 8), torch.Size([8, 8, 8]))
    """
    if isinstance(layer, LinearOperator):
        if in_shape is not None and as_shape(in_shape) != layer.in_shape:
            raise ValueError(f"{layer!r} has in_shape {layer.in_shape}, got {in_shape}.")
        return layer
    function = AffineFunction(layer, in_shape, dtype=dtype, device=device)
    if not all(is_known_affine(stage.layer) for stage in function.stages):
        require_affine(function)
    maps = build_maps(function) if explicit else [AutogradMap(function, 0, len(function.stages))]
    return LinearOperator(function, maps, transposed=False)
