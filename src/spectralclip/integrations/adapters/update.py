"""One low-rank update `scale * B A` of a layer: its spectrum from the factors, and as a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._bounds import Interval, norm_bounds
from spectralclip._clipping import ClipResult
from spectralclip._common import Shape
from spectralclip._linalg import FactoredSVD, factored_svd, on_host
from spectralclip.integrations.adapters.clipping import clip_convolution_, clip_matrix_

_CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
# The QR decomposition in front of the bounds turns norms by less than this, relatively.
_TURNED = 1e-12


@final
class Update(nn.Module):
    """A pair of factors as the layer that it adds to another: `x -> scale * B (A x)`.

    A has the rank's number of rows, B as many columns. For a convolution A is a kernel
    `(r, in, *kernel)` and B a 1x1 kernel `(out, r, 1, ...)`. As a layer it goes into `svds`,
    `norm_bounds`, `clip_` and the others, with `update.in_shape` or, for a convolution, the shape
    of an image. What it says of itself comes from the factors, in float64, and is exact.

    Args:
        A: The factor that reads inputs; a parameter is taken as it is, so that changing the update
            changes its owner, and so is the memory of any other tensor.
        B: The factor that writes outputs.
        scale: What their product is multiplied with, such as `alpha / r`.
        name: Of the layer, for tables and errors.
        stride: Of a convolution. Files do not tell it, nor the next two: they are the layer's own.
        padding: Of a convolution.
        dilation: Of a convolution.
        transposed: Whether the base keeps its weight as `(in, out)`, as embeddings do.

    Raises:
        ValueError: The factors do not fit each other, or are not finite.

    Example:
        >>> import torch, spectralclip as sc
        >>> from spectralclip.integrations import adapters
        >>> A, B = torch.eye(2, 5), torch.eye(4, 2)
        >>> update = adapters.Update(A, B, scale=3.0)
        >>> update.norm, update.singular_values.tolist()
        (3.0, [3.0, 3.0])
        >>> sc.norm_bounds(update, update.in_shape).upper < 3.01
        True
    """

    def __init__(
        self,
        A: Tensor,
        B: Tensor,
        scale: float = 1.0,
        *,
        name: str = "update",
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = "same",
        dilation: int | Sequence[int] = 1,
        transposed: bool = False,
    ) -> None:
        """Of two factors, which are checked and then shared."""
        super().__init__()
        _check(name, A, B, scale)
        self.A = A if isinstance(A, nn.Parameter) else nn.Parameter(A, requires_grad=False)
        self.B = B if isinstance(B, nn.Parameter) else nn.Parameter(B, requires_grad=False)
        self.scale, self.name, self.transposed = float(scale), name, transposed
        self._geometry: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
        }

    def extra_repr(self) -> str:
        """What a print of the module says."""
        return f"{self.name!r}, {self.shape[1]} -> {self.shape[0]}, rank {self.rank}"

    def forward(self, x: Tensor) -> Tensor:
        """`scale * B (A x)` on a batch."""
        if self.A.ndim == 2:
            return self.scale * nn.functional.linear(nn.functional.linear(x, self.A), self.B)
        convolve: Any = getattr(nn.functional, f"conv{self.A.ndim - 2}d")
        y: Tensor = convolve(convolve(x, self.A, **self._geometry), self.B)
        return self.scale * y

    @property
    def rank(self) -> int:
        """How many rows A has; the numerical rank may be smaller."""
        return self.A.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and inputs, or of channels."""
        return self.B.shape[0], self.A.shape[1]

    @property
    def kernel_size(self) -> Shape:
        """Sides of the kernel; empty for a dense layer."""
        return tuple(self.A.shape[2:])

    @property
    def is_convolution(self) -> bool:
        """Whether its norm depends on the image: its kernel has more than one tap."""
        return math.prod(self.kernel_size) > 1

    @property
    def in_shape(self) -> Shape:
        """The shape of one input; of a convolution, of one that shows a single window."""
        return self.A.shape[1], *self.kernel_size

    def with_factors(self, A: Tensor, B: Tensor, scale: float | None = None) -> Update:
        """The same layer's update by other factors, of whatever rank."""
        scale = self.scale if scale is None else scale
        known: dict[str, Any] = {"name": self.name, "transposed": self.transposed}
        return Update(A, B, scale, **known, **self._geometry)

    def delta(self) -> Tensor:
        """The update as a weight `(out, in, *kernel)`, in float64 on the CPU."""
        B, A = on_host(self.B).flatten(1), on_host(self.A)
        return (self.scale * (B @ A.flatten(1))).reshape(B.shape[0], *A.shape[1:])

    def svd(self) -> FactoredSVD:
        """`U, S, Vh` in float64 of the update as a matrix `(out, in * taps)`, by its factors."""
        return factored_svd(self.scale * on_host(self.B).flatten(1), self.A.flatten(1))

    @property
    def singular_values(self) -> Tensor:
        """Its singular values; for a convolution those of the reshaped kernel, which are others."""
        return self.svd().S

    @property
    def norm(self) -> float:
        """The largest of `singular_values`: of a convolution the norm of its reshaped kernel.

        That is at most the norm of the convolution, on images that show one window whole, and at
        least its `1 / sqrt(taps)`. The norm itself, at a size, is `norm_at`.
        """
        return float(self.singular_values[0])

    @property
    def frobenius(self) -> float:
        """The Frobenius norm of the weight."""
        return float(self.singular_values.norm())

    def norm_at(self, in_shape: Sequence[int] | None = None) -> Interval:
        """An interval that holds the norm, for inputs of a shape; without one for dense layers.

        With `B = Q R` the norm is that of the convolution by `scale * R A`, of as many output
        channels as the rank: the bounds are those of `norm_bounds` on it.
        """
        if not self.is_convolution:
            norm = self.norm
            return Interval(norm, norm, "exact", 0.0)
        image = self._image(in_shape)
        conv, _ = self.thin_convolution()
        found = norm_bounds(conv, image)
        ends = found.lower * (1 - _TURNED), found.upper * (1 + _TURNED)
        return Interval(*ends, found.kind, found.failure, found.num_matvecs)

    def thin_convolution(self) -> tuple[nn.Module, Tensor]:
        """A convolution of `min(r, out)` outputs in float64, and an orthonormal Q to follow it.

        Together they are the update. Q changes no length: singular values, and distances between
        updates with the same Q, are those of the convolution.
        """
        Q, R = torch.linalg.qr(on_host(self.B).flatten(1))
        return self.as_convolution(torch.tensordot(self.scale * R, on_host(self.A), 1)), Q

    def as_convolution(self, kernel: Tensor) -> nn.Module:
        """A plain convolution by a kernel, with the stride, padding and dilation of the update."""
        make: Any = _CONVS[len(self.kernel_size)]
        sizes = {"kernel_size": self.kernel_size, "device": "meta", "dtype": kernel.dtype}
        conv: nn.Module = make(*kernel.shape[1::-1], bias=False, **sizes, **self._geometry)
        conv.weight = nn.Parameter(kernel)
        return conv

    def clip_(self, max_norm: float, in_shape: Sequence[int] | None = None) -> ClipResult:
        """Move the update, in place, to the nearest one whose norm is at most `max_norm`.

        Singular values above are lowered to the bound, and each factor gives half of it, as a
        factor `sqrt(max_norm / sigma)`: no other direction moves. The norm that is left is that of
        the factors as they are stored, whatever their precision. An update within the bound stays
        as it is, bit for bit.

        Args:
            max_norm: The bound.
            in_shape: For a convolution, the shape of its input: then its norm there is held.
                Without one the norm of the reshaped kernel is.

        Returns:
            What was done, as `spectralclip.clip_` says it.

        Example:
            >>> import torch
            >>> from spectralclip.integrations import adapters
            >>> update = adapters.Update(torch.eye(2, 5), torch.eye(4, 2), scale=3.0)
            >>> update.clip_(1.0).norm_before, update.norm <= 1.0
            (3.0, True)
        """
        if self.is_convolution and in_shape is not None:
            return clip_convolution_(self, max_norm, self._image(in_shape))
        return clip_matrix_(self, max_norm)

    def _image(self, in_shape: Sequence[int] | None) -> Shape:
        axes = len(self.kernel_size)
        if in_shape is None or len(in_shape) != axes + 1 or in_shape[0] != self.shape[1]:
            example = (self.shape[1], *(32,) * axes)
            raise ValueError(
                f"{self.name} is a convolution, whose norm depends on the size of its input: "
                f"expected an in_shape such as {example}, got {in_shape}. `norm` is that of the "
                "reshaped kernel."
            )
        return tuple(in_shape)


def _check(name: str, A: Tensor, B: Tensor, scale: float) -> None:
    for factor, given in (("A", A), ("B", B)):
        if not isinstance(given, Tensor):
            raise TypeError(
                f"{name}: expected a tensor as {factor}, got {type(given).__name__}: arrays "
                "of NumPy become tensors by torch.from_numpy."
            )
    shapes = f"A {tuple(A.shape)} and B {tuple(B.shape)}"
    expected = "A (r, in) and B (out, r), or kernels (r, in, *kernel) and (out, r, 1, ...)"
    fits = 2 <= A.ndim <= 5 and A.ndim == B.ndim and A.numel() > 0 and B.numel() > 0
    if not fits or A.shape[0] != B.shape[1] or math.prod(B.shape[2:]) != 1:
        raise ValueError(
            f"{name}: expected {expected}, got {shapes}: are they factors of the same update, "
            "and not transposed?"
        )
    if not math.isfinite(scale):
        raise ValueError(f"{name}: expected a finite scale, got {scale}: look at alpha and rank.")
    for factor, tensor in (("A", A), ("B", B)):
        if not tensor.is_floating_point():
            raise ValueError(
                f"{name}: expected real numbers in {factor}, got {tensor.dtype}: convert or "
                "dequantize the adapter first."
            )
        if not bool(torch.isfinite(on_host(tensor)).all()):
            raise ValueError(
                f"{name}: NaN or infinite values in {factor}: its spectrum is not defined. Restore "
                "finite weights."
            )


def require_thin(name: str, A: Tensor, B: Tensor) -> None:
    """Refuse square layers' factors that are kept transposed: all else would fit."""
    if A.ndim == B.ndim == 2 and A.shape[0] == B.shape[1] > max(A.shape[1], B.shape[0]):
        raise ValueError(
            f"{name}: expected A (r, in) and B (out, r) of a rank below both sides, got A "
            f"{tuple(A.shape)} and B {tuple(B.shape)}: they seem to be transposed."
        )


def summed(updates: Sequence[Update]) -> Update:
    """The sum of updates of one layer: their factors beside each other."""
    first = updates[0]
    if len({(one.shape, one.kernel_size) for one in updates}) > 1:
        shapes = ", ".join(f"{(*one.shape, *one.kernel_size)}" for one in updates)
        raise ValueError(
            f"{first.name}: expected updates of one shape, got {shapes}: the adapters belong to "
            "different models, or other layers of the same name."
        )
    A = torch.cat([on_host(one.A) for one in updates])
    B = torch.cat([one.scale * on_host(one.B) for one in updates], dim=1)
    return first.with_factors(A, B, 1.0)
