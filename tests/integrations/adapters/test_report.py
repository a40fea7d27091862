"""Measures of updates beside their base and each other, against dense matrices."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from adapter_cases import dense, factors, kohya, kohya_base, normal, peft_tensors
from torch import Tensor

import oracle
from spectralclip.integrations.adapters import Adapter, Update, from_tensors, report
from spectralclip.integrations.adapters.base import matched_keys


def pair(seed: int, layer: str = "fc", scale: float = 1.0, name: str = "one") -> Adapter:
    A, B = factors(seed, 40, 30, 3)
    return from_tensors({f"{layer}.lora_A": A, f"{layer}.lora_B": scale * B}, name=name)


def deltas(*adapters: Adapter) -> list[Tensor]:
    return [dense(a["fc"].A.detach(), a["fc"].B.detach(), a["fc"].scale) for a in adapters]


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.flatten(1), 2))


def test_an_update_by_itself() -> None:
    adapter = pair(0)
    (row,) = report(adapter, k=2).updates
    (weight,) = deltas(adapter)
    S = torch.linalg.svdvals(weight)
    shares = S[:3] / S[:3].sum()
    assert row.norm == pytest.approx(float(S[0]))
    assert row.singular_values == pytest.approx(S[:2].tolist())
    assert row.frobenius == pytest.approx(float(weight.norm()))
    assert row.effective_rank == pytest.approx(float(torch.exp(-(shares * shares.log()).sum())))
    assert row.stable_rank == pytest.approx(float(weight.norm() / S[0]) ** 2)
    assert (row.shape, row.rank, row.is_reshaped, row.base) == ((40, 30), 3, False, None)


def test_an_update_beside_its_base() -> None:
    adapter, base = pair(1), normal(5, 40, 30).double() * torch.logspace(0, -2, 30)
    (row,) = report(adapter, {"model.fc.weight": base}, k=4).updates
    (weight,) = deltas(adapter)
    U0, S0, V0 = torch.linalg.svd(base, full_matrices=False)
    U1, _, V1 = torch.linalg.svd(weight, full_matrices=False)
    U2, S2, _ = torch.linalg.svd(base + weight, full_matrices=False)
    assert row.base is not None and row.base.key == "model.fc.weight"
    assert row.base.norm == pytest.approx(float(S0[0]), rel=1e-3)
    assert row.base.sum_norm == pytest.approx(float(S2[0]), rel=1e-3)
    for found, theirs, mine in (
        (row.base.output_angles, U0[:, :4], U1[:, :3]),
        (row.base.input_angles, V0[:4].T, V1[:3].T),
    ):
        cosines = torch.linalg.svdvals(mine.T @ theirs).clamp(max=1)
        assert found == pytest.approx(torch.rad2deg(torch.acos(cosines)).tolist(), abs=0.2)
    inside = (U2[:, :4].T @ U0[:, :8]).norm(dim=1)
    assert row.base.intruders == int((inside < 0.5).sum())


def test_a_base_of_low_rank_has_no_other_directions() -> None:
    A, B = torch.eye(20)[2:4], torch.eye(12)[:, 2:4]
    adapter = from_tensors({"fc.lora_A": A, "fc.lora_B": 9 * B})
    weight = torch.zeros(12, 20)
    (zero,) = report(adapter, {"fc.weight": weight}).updates
    assert zero.base is not None
    assert (zero.base.output_angles, zero.base.input_angles) == ((), ())
    assert zero.base.intruders == 2  # all that the sum has
    weight[0, 0] = 3.0
    (one,) = report(adapter, {"fc.weight": weight}).updates
    assert one.base is not None
    assert one.base.output_angles == one.base.input_angles == (pytest.approx(90),)
    assert one.base.intruders == 2


def test_intruders_are_new_leading_directions() -> None:
    base = torch.diag(torch.linspace(2, 0.1, 30))
    A, B = torch.zeros(2, 30), torch.zeros(30, 2)
    A[0, 28] = B[28, 0] = A[1, 0] = B[0, 1] = 1.0
    tensors = {"fc.lora_A": A, "fc.lora_B": 5 * B}
    (row,) = report(from_tensors(tensors), {"fc.weight": base}, k=4).updates
    # One direction is far down in the base, the other is the base's own leading one.
    assert row.base is not None and row.base.intruders == 1
    assert row.base.output_angles == pytest.approx((0.0, 90.0), abs=0.1)


@pytest.mark.parametrize("scale", [1.0, 0.3, -1.0])
def test_two_updates_beside_each_other(scale: float) -> None:
    one, two = pair(2, name="one"), pair(3, scale=scale, name="two")
    (clash,) = report([one, two]).clashes
    first, second = deltas(one, two)
    norms = [norm(first), norm(second)]
    assert clash.adapters == ("one", "two") and clash.norms == pytest.approx(norms)
    assert clash.sum_norm == pytest.approx(norm(first + second))
    assert clash.alignment == pytest.approx((norm(first + second) - max(norms)) / min(norms))
    cosine = float((first * second).sum() / first.norm() / second.norm())
    assert clash.cosine == pytest.approx(cosine)
    (U1, _, V1), (U2, _, V2) = (torch.linalg.svd(d, full_matrices=False) for d in (first, second))
    expected = [float((a.square().sum()) / 3) for a in (U1[:, :3].T @ U2[:, :3], V1[:3] @ V2[:3].T)]
    assert [clash.output_overlap, clash.input_overlap] == pytest.approx(expected)
    assert clash.remark == ""


@pytest.mark.parametrize(
    ("scale", "remark", "alignment"), [(2.0, "add up", 1), (-0.5, "cancel", -1)]
)
def test_the_same_update_twice(scale: float, remark: str, alignment: float) -> None:
    (clash,) = report([pair(4), pair(4, scale=scale)]).clashes
    assert clash.remark == remark
    assert clash.alignment == pytest.approx(alignment)
    assert clash.cosine == pytest.approx(scale / abs(scale))
    assert (clash.output_overlap, clash.input_overlap) == (pytest.approx(1), pytest.approx(1))


def test_three_adapters_are_added_in_pairs_and_together() -> None:
    three = [pair(5, name="a"), pair(6, name="b"), pair(7, name="c")]
    clashes = report(three).clashes
    assert [one.adapters for one in clashes] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
        ("a", "b", "c"),
    ]
    assert clashes[-1].sum_norm == pytest.approx(norm(sum(deltas(*three), torch.zeros(40, 30))))
    assert clashes[-1].cosine is None
    assert report([pair(5), pair(6, layer="other")]).clashes == ()


def test_names_are_told_apart_by_numbers_that_are_free() -> None:
    given = [pair(5, name="a"), pair(6, name="a"), pair(7, name="a (1)")]
    assert report(given).adapters == ("a (2)", "a (3)", "a (1)")


@pytest.mark.parametrize("given", ["a.safetensors", [{"fc.lora_A": torch.ones(2, 2)}]])
def test_what_is_no_adapter_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"such as spectralclip.integrations.adapters.load"):
        report(given)


def test_a_sum_may_have_more_rank_than_sides() -> None:
    many = [pair(seed, name=str(seed)) for seed in range(14)]
    assert report(many).clashes[-1].sum_norm == pytest.approx(
        norm(sum(deltas(*many), torch.zeros(40, 30)))
    )


def test_updates_of_zero_clash_with_nothing() -> None:
    zero = from_tensors({"fc.lora_A": torch.ones(3, 30), "fc.lora_B": torch.zeros(40, 3)})
    for both in ([pair(0), zero], [zero, pair(0)], [zero, zero]):
        (clash,) = report(both).clashes
        assert (clash.alignment, clash.cosine, clash.remark) == (0, 0, "")
        assert (clash.output_overlap, clash.input_overlap) == (0, 0)
    row = report(zero, {"fc.weight": torch.eye(40, 30)}).updates[0]
    assert (row.norm, row.effective_rank, row.stable_rank) == (0, 0, 0)
    assert row.base is not None and row.base.output_angles == ()


def test_convolutions_at_a_size() -> None:
    one, two = (from_tensors(kohya(seed), name=str(seed)) for seed in (1, 2))
    found = report([one, two], kohya_base(), size=(6, 6))
    row = next(row for row in found.updates if row.layer == "lora_unet_mid_conv")
    update, weight = one["lora_unet_mid_conv"], kohya_base()["model.mid.conv.weight"].double()

    def true_norm(kernel: Tensor) -> float:
        return float(oracle.dense_norm(update.as_convolution(kernel), (5, 6, 6)))

    assert row.is_reshaped and row.in_shape == (5, 6, 6)
    assert row.norm_at is not None and true_norm(update.delta()) in row.norm_at
    assert row.base is not None
    assert row.base.norm == pytest.approx(true_norm(weight), rel=2e-3)
    assert row.base.sum_norm == pytest.approx(true_norm(weight + update.delta()), rel=2e-3)
    both = true_norm(update.delta() + two["lora_unet_mid_conv"].delta())
    assert found.clashes[0].sum_norm == pytest.approx(both, rel=2e-2)
    assert "(reshaped)" not in str(found)
    assert "(reshaped)" in str(report(one))


# Names of the base

BLOCKS = [f"m.b.{number}.q.weight" for number in range(3)]


@pytest.mark.parametrize(
    ("layers", "keys", "expected"),
    [
        (["a.q", "a.k"], ["a.q.weight", "a.k.weight", "a.k.bias"], ["a.q.weight", "a.k.weight"]),
        (["a.q", "a.k"], ["model.a.q.weight"], ["model.a.q.weight", None]),
        (["transformer.h.0.q"], ["h.0.q.weight", "h.1.q.weight"], ["h.0.q.weight"]),
        (["b.0.q", "b.1.q"], BLOCKS, BLOCKS[:2]),
        (["lora_unet_mid_to_q"], ["mid.to_q.weight", "q.weight"], ["mid.to_q.weight"]),
        (["lora_unet_mid_to_q"], ["up.mid.to.q.weight", "x.weight"], ["up.mid.to.q.weight"]),
        (["unet.mid.q"], ["model.mid.q.weight"], ["model.mid.q.weight"]),
        (["a.q"], ["a.k.weight", "aq.weight", "b.a_q.weight"], [None]),
    ],
)  # fmt: skip
def test_layers_are_found_in_the_base(
    layers: list[str], keys: list[str], expected: list[str | None]
) -> None:
    found = matched_keys(layers, keys)
    assert [found.get(layer) for layer in layers] == expected


@pytest.mark.parametrize("square", [False, True])
def test_transposed_weights_are_turned(square: bool) -> None:
    inputs = 40 if square else 30
    A, B = factors(0, 40, inputs, 3)
    tensors = {"base_model.model.fc.lora_A.weight": A, "base_model.model.fc.lora_B.weight": B}
    adapter = from_tensors(tensors, config={"r": 3, "lora_alpha": 3, "fan_in_fan_out": True})
    base = normal(1, 40, inputs)
    (row,) = report(adapter, {"fc.weight": base.T}).updates
    assert row.base is not None
    assert row.base.sum_norm == pytest.approx(norm(base.double() + dense(A, B, 1.0)), rel=1e-3)


def test_a_base_that_does_not_fit_is_refused() -> None:
    adapter = pair(0)
    for base, message in (
        ({"other.weight": torch.ones(40, 30)}, "expected its layers in the base, such as 'fc'"),
        ({"fc.weight": torch.ones(30, 31)}, r"'fc.weight': expected .*\(40, 30\).*got \(30, 31\)"),
        ({"fc.weight": torch.ones(40, 30).int()}, "got torch.int32: dequantize"),
        ({"fc.weight": torch.full((40, 30), torch.nan)}, "'fc.weight': NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            report(adapter, base)
    with pytest.raises(ValueError, match="got none"):
        report([])
    with pytest.raises(ValueError, match="at least 1, got 0"):
        report(adapter, k=0)
    other = from_tensors({"fc.lora_A": torch.ones(2, 31), "fc.lora_B": torch.ones(40, 2)})
    with pytest.raises(ValueError, match=r"one shape, got \(40, 30\), \(40, 31\)"):
        report([adapter, other])


def test_what_is_not_measured_is_said() -> None:
    tensors = {**peft_tensors(), "base_model.model.score.weight": torch.ones(2, 2)}
    adapter = from_tensors(tensors, alpha=4.0, name="mine")
    found = report(adapter, {"layers.0.q_proj.weight": normal(0, 12, 20)})
    assert found.left_out == {
        "base of layers.1.q_proj": "no such weight among those given",
        "score.weight": "a tensor of its own, no low-rank update",
    }
    assert "left out: score.weight: a tensor of its own" in str(found)


def test_the_report_as_text_and_json() -> None:
    found = report([pair(0, name="one"), pair(0, name="one")], {"fc.weight": torch.eye(40, 30)})
    assert found.adapters == ("one (1)", "one (2)")
    text = str(found)
    assert "updates of one (1), one (2)" in text and "of 1 sums: 1 add up." in text
    document = json.loads(found.to_json())
    assert (document["format"], document["version"]) == ("spectralclip.adapters", 1)
    assert document["updates"][0]["norm"] == pytest.approx(found.updates[0].norm)
    assert document["clashes"][0]["remark"] == "add up"
    assert document == found.to_dict()


def test_updates_are_left_as_they_were() -> None:
    adapter = from_tensors(kohya())
    before = {layer: (u.A.clone(), u.B.clone()) for layer, u in adapter.items()}
    state = torch.random.get_rng_state()
    report([adapter, adapter], kohya_base(), size=(6, 6))
    assert torch.equal(torch.random.get_rng_state(), state)
    for layer, (A, B) in before.items():
        assert torch.equal(adapter[layer].A, A) and torch.equal(adapter[layer].B, B)
    assert isinstance(adapter["lora_unet_mid_conv"], Update)
