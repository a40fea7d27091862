"""Parts of a weight lie where torch's own chunks do."""

from __future__ import annotations

import pytest
import torch

from spectralclip._training.distributed.layout import Layout


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("size", range(1, 8))
def test_parts_are_those_of_chunk(size: int, parts: int) -> None:
    whole = torch.arange(2.0 * size).reshape(2, size)
    layout = Layout(1, parts, tuple(range(parts)), (0,) * parts)
    chunks = [*whole.chunk(parts, 1), *[whole[:, :0]] * parts][:parts]
    for rank, chunk in enumerate(chunks):
        assert torch.equal(layout.part(whole, rank), chunk)
