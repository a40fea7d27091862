"""Maps that mix nothing."""

from __future__ import annotations

import torch
from torch import nn

from spectralclip import as_operator


def test_batch_norm_is_diagonal_and_shifting_pixels_changes_nothing() -> None:
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor([4.0, 1.0, 0.25]))
        norm.weight.copy_(torch.tensor([1.0, -3.0, 0.0]))
        norm.running_mean.fill_(5.0)
    matrix = as_operator(norm, (3, 2, 2)).to_dense()
    expected = torch.tensor([0.5, -3.0, 0.0]).repeat_interleave(4)
    torch.testing.assert_close(matrix, torch.diag(expected), rtol=1e-4, atol=1e-6)


def test_identity_does_not_hand_back_the_input_itself() -> None:
    # Who writes into the result must not write into the argument.
    for layer in (nn.Identity(), nn.Flatten(), nn.Dropout()):
        op = as_operator(layer, (2, 3))
        x = torch.ones(1, 2, 3)
        for result in (op.matvec(x), op.rmatvec(x.reshape(1, *op.out_shape)), op.gram(x)):
            result.zero_()
            assert bool(x.all())
