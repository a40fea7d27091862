"""What an audit says of differences between inputs, and of layers that training holds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from spectralclip import attach, audit


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


def batch(count: int = 32) -> Tensor:
    return 3 * torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


def test_over_the_example_inputs_where_they_differ() -> None:
    model, x = network(), batch()
    found = audit(model, x, k=1, lipschitz=False).scores
    with torch.no_grad():
        made = model.eval()(x).numpy().var(0, ddof=1)
    assert found is not None and found.over == "example" and found.gain is not None
    assert found.spread == pytest.approx(math.sqrt(made.mean()), rel=1e-5)
    given = x.numpy().var(0, ddof=1).sum()
    assert found.gain == pytest.approx(math.sqrt(made.sum() / given), rel=1e-5)


@pytest.mark.parametrize("example", [torch.zeros(1, 6), torch.ones(4, 6)])
def test_over_normal_inputs_where_they_do_not(example: Tensor) -> None:
    layer = nn.Linear(6, 6, bias=False)
    with torch.no_grad():
        layer.weight.copy_(2 * torch.eye(6))
    found = audit(layer, example, k=1)
    assert found.scores is not None and found.scores.over == "normal"
    assert found.scores.gain == pytest.approx(2, rel=1e-5)
    assert "Spread of the outputs over standard normal inputs: " in str(found)
    assert ", 2 of that of the inputs." in str(found)


def test_one_number_for_each_input() -> None:
    model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    scores = audit(model, batch(), k=1, lipschitz=False).scores
    assert scores is not None and scores.spread > 0


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.table(tokens).sum(1)
        return found


def test_tokens_have_a_spread_and_no_gain() -> None:
    scores = audit(Tokens(), torch.tensor([[0, 1], [2, 3]]), k=1, lipschitz=False).scores
    assert scores is not None and scores.gain is None and scores.spread > 0
    assert audit(Tokens(), torch.tensor([[0, 1]]), k=1, lipschitz=False).scores is None


def test_a_model_that_takes_no_batch_has_none() -> None:
    class Single(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 1:
                raise RuntimeError("one at a time")
            return super().forward(x)

    found = audit(Single(6, 5), torch.zeros(1, 6), k=1, lipschitz=False)
    assert found.scores is None and "Spread" not in str(found)


def test_layers_that_are_held_have_bound_and_pressure() -> None:
    model, x = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    attachment = attach(model, optimizer, x[:1], max_norm={"0": 0.5})
    for _ in range(3):
        optimizer.zero_grad()
        (-model(x).norm(dim=1).mean()).backward()
        optimizer.step()
    found = audit(model, x, k=1, lipschitz=False, attachment=attachment)
    assert found["0"].max_norm == 0.5
    assert found["0"].pressure == attachment.pressures()["0"] > 0.01
    assert found["3"].max_norm is None and found["3"].pressure is None
    row = next(line for line in str(found).splitlines() if line.startswith("0 "))
    assert row.endswith(f"0.5     {found['0'].pressure:.3g}")
    assert type(found).from_json(found.to_json()) == found


def test_other_attachments_are_refused() -> None:
    model, other = network(), nn.Sequential(nn.Identity(), nn.Linear(6, 5))
    attachment = attach(other, None, batch(1))
    with pytest.raises(ValueError, match=r"holds \['1'\], and the model has no such layers"):
        audit(model, batch(1), attachment=attachment)
    with pytest.raises(TypeError, match="must be what attach returned, got int"):
        audit(model, batch(1), attachment=3)  # type: ignore[arg-type]
