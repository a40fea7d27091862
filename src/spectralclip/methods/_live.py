"""A layer in training: `M` with the weights and statistics that it has at the moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._operators import AffineFunction, LinearOperator, operator_at


@final
class Snapshot:
    """`M` on batches `(k, *in_shape)`, until the weights change again."""

    def __init__(self, op: LinearOperator) -> None:
        self._op = op

    def image(self, x: Tensor) -> Tensor:
        """`M x`."""
        rows = self._op.forward_rows(self._op.input_rows(x))
        return self._op.maps[-1].target.to_tensor(rows)

    def gram(self, x: Tensor) -> Tensor:
        """`M^T M x`, which the caller may write into."""
        rows = self._op.gram_rows(self._op.input_rows(x))
        return self._op.maps[0].source.to_tensor(rows)


@final
class LiveLayer:
    """A layer that others keep changing.

    What does not change is checked and computed once, here; a snapshot then costs next to
    nothing for dense layers, convolutions and batch norms, and an evaluation at zero for any
    other layer.

    Attributes:
        function: The layer as an affine function. Its `values` are those of the beginning.
    """

    def __init__(self, modules: Sequence[nn.Module], in_shape: Shape) -> None:
        self.function = AffineFunction(list(modules), in_shape)

    def now(self) -> Snapshot:
        """The layer as it is.

        Raises:
            ValueError: A running variance is not positive.
        """
        return Snapshot(operator_at(self.function))

    def values(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, detached, in the dtype of the computation."""
        return self.function.now().values

    def trainable(self) -> dict[str, Tensor]:
        """The layer's own parameters that are not frozen, by name."""
        own = self.function.now().parameters
        return {name: tensor for name, tensor in own.items() if tensor.requires_grad}
