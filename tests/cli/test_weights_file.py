"""Checkpoints are read as data, and written back in the form that they came in."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_cases import weights
from torch import Tensor, nn

from spectralclip import spectral_norm
from spectralclip.cli import _weights_file
from spectralclip.cli._problems import Problem
from spectralclip.cli._weights_file import load_, read, store_, write

safetensors = pytest.importorskip("safetensors.torch")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(144, 5)


def same(found: Any, expected: Any) -> bool:
    """Whether two contents are of the same types, in the same order, with the same bits."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(found, dict):
        return list(found) == list(expected) and all(same(found[k], expected[k]) for k in found)
    if isinstance(found, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


WRAPPERS = {
    "plain": (lambda state: state, ()),
    "ordered": (OrderedDict, ()),
    "state_dict": (lambda state: {"epoch": 3, "state_dict": state}, ("state_dict",)),
    "model": (lambda state: {"model": state, "optimizer": {"lr": [0.1]}}, ("model",)),
    "nested": (lambda state: {"model": {"state_dict": state}}, ("model", "state_dict")),
    # A tensor beside the weights is not one of them.
    "step": (lambda state: {"step": torch.tensor(3), "model": state}, ("model",)),
}


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("form", WRAPPERS)
def test_wrappers_and_prefixes_are_recognized_and_kept(
    tmp_path: Path, form: str, prefix: str
) -> None:
    wrap, keys = WRAPPERS[form]
    content = wrap({prefix + name: value for name, value in weights().items()})
    torch.save(content, tmp_path / "in.pt")
    model = Net()

    checkpoint = read(tmp_path / "in.pt")
    fit = load_(model, checkpoint)

    assert checkpoint.wrapper == keys
    assert fit.prefix == prefix
    assert same(dict(model.state_dict()), weights())
    with torch.no_grad():
        model.fc.weight.mul_(0.5)
    store_(checkpoint, model, fit)
    write(checkpoint, tmp_path / "out.pt")
    changed = weights() | {"fc.weight": weights()["fc.weight"] * 0.5}
    expected = wrap({prefix + name: value for name, value in changed.items()})
    assert same(torch.load(tmp_path / "out.pt", weights_only=True), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_and_metadata_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in weights().items()
    }
    safetensors.save_file(state, tmp_path / "in.safetensors", {"format": "pt", "by": "us"})
    model = Net()
    checkpoint = read(tmp_path / "in.safetensors")
    fit = load_(model, checkpoint)
    store_(checkpoint, model, fit)
    write(checkpoint, tmp_path / "out.safetensors")
    again = read(tmp_path / "out.safetensors")
    assert again.metadata == {"format": "pt", "by": "us"}
    if dtype != torch.float64:  # float32 holds what the others can
        assert {key: again.tensors[key] for key in state}.keys() == state.keys()
        assert all(torch.equal(again.tensors[key], state[key]) for key in state)
    assert {key: t.dtype for key, t in again.tensors.items()} == {
        key: t.dtype for key, t in state.items()
    }


def test_what_shares_memory_goes_on_sharing_it(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    torch.save(tied.state_dict(), tmp_path / "in.pt")
    checkpoint = read(tmp_path / "in.pt")
    store_(checkpoint, tied, load_(tied, checkpoint))
    write(checkpoint, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found["0.weight"].data_ptr() == found["1.weight"].data_ptr()
    # safetensors keeps such a weight once.
    alone = {k: v for k, v in tied.state_dict().items() if k != "1.weight"}
    safetensors.save_file(alone, tmp_path / "in.safetensors")
    assert load_(tied, read(tmp_path / "in.safetensors")).missing == []


def test_old_batch_norms_have_counted_nothing(tmp_path: Path) -> None:
    state = weights()
    del state["bn.num_batches_tracked"]
    torch.save(state, tmp_path / "in.pt")
    assert load_(Net(), read(tmp_path / "in.pt")).complaints == []


def test_a_compiled_model_is_loaded_by_its_own_names(tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / "in.pt")
    model = Net()
    assert load_(torch.compile(model, backend="eager"), read(tmp_path / "in.pt")).prefix == ""
    assert same(dict(model.state_dict()), weights())


# What is refused


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_damaged_files_are_told_from_others(tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole{suffix}"
    if suffix == ".pt":
        torch.save(weights(), whole)
    else:
        safetensors.save_file(weights(), whole)
    data, path = whole.read_bytes(), tmp_path / f"cut{suffix}"
    contents = [data[: len(data) * part // 8] for part in range(8)]
    contents += [b"hello world\n" * 9, b"{}", b"\x80\x02", b"PK\x03\x04", bytes(64), data[-900:]]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(Problem, match=r"cut.*truncated, damaged or something else") as caught:
            read(path)
        assert "weights_only" not in str(caught.value)  # torch's advice is to run the file
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("gone.pt", "cannot read .*gone.pt: No such file"),
        ("folder.pt", "weights .*folder.pt: expected a regular file, got a directory"),
        ("weights.h5", r"expected a file ending in \.safetensors.*got \.h5"),
        ("weights", "got no ending"),
    ],
)
def test_files_that_are_no_checkpoints(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(Problem, match=complaint):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "content", [[1, 2], {"epoch": 3}, {"model": {"a": 1}}, 7, {}, {0: torch.ones(2)}, torch.ones(2)]
)
def test_files_without_weights(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "in.pt")
    with pytest.raises(Problem, match=f"expected a state_dict.*got {type(content).__name__}"):
        read(tmp_path / "in.pt")


def test_what_does_not_fit_is_listed_briefly_and_changes_nothing(tmp_path: Path) -> None:
    state = weights(width=6) | {f"extra.{n}": torch.ones(1) for n in range(8)}
    del state["fc.bias"]
    torch.save(state, tmp_path / "in.pt")
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(Problem) as caught:
        load_(model, read(tmp_path / "in.pt"))
    text = str(caught.value)
    assert "6 of another shape: conv.weight (6, 3, 3, 3), not (4, 3, 3, 3)" in text
    assert "and 1 more" in text
    assert "1 missing in the file: fc.bias" in text
    assert "8 unknown to the model: extra.0, extra.1, extra.2, extra.3, extra.4 and 3 more" in text
    assert "--allow-partial" in text
    assert same(dict(model.state_dict()), before)


def test_what_fits_is_loaded_if_asked_for(tmp_path: Path) -> None:
    state = weights() | {"extra": torch.ones(1), "conv.weight": torch.ones(4, 3, 5, 5)}
    torch.save(state, tmp_path / "in.pt")
    model = Net()
    conv = model.conv.weight.detach().clone()
    fit = load_(model, read(tmp_path / "in.pt"), allow_partial=True)
    assert torch.equal(model.conv.weight, conv)
    assert torch.equal(model.fc.weight, state["fc.weight"])
    assert (fit.unexpected, len(fit.mismatched)) == (["extra"], 1)
    torch.save({"other": torch.ones(1)}, tmp_path / "in.pt")
    with pytest.raises(
        Problem, match=r"no tensor fits.*file has other; the model has conv\.weight"
    ):
        load_(model, read(tmp_path / "in.pt"), allow_partial=True)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_full_disk_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    large = {"weight": torch.zeros(300, 300)}  # only of these torch hides what happened
    path = tmp_path / f"in{suffix}"
    if suffix == ".pt":
        torch.save(large, path)
    else:
        safetensors.save_file(large, path)
    checkpoint = read(path)

    class Full:
        room = 1000

        def write(self, data: bytes) -> int:
            self.room -= len(data)
            if self.room < 0:
                raise OSError(28, "No space left on device")
            return len(data)

        def flush(self) -> None:
            pass

    class Opened:
        def __enter__(self) -> Full:
            return Full()

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(_weights_file, "replacing", lambda path: Opened())
    with pytest.raises(OSError, match="No space left on device"):
        write(checkpoint, tmp_path / f"out{suffix}")


# Other kinds of numbers


def _kinds() -> dict[str, Tensor]:
    """A weight in forms that are no plain array of real numbers."""
    weight = torch.randn(5, 144, generator=torch.Generator().manual_seed(0))
    scaled = (10 * weight).round()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: some of these forms are new, others are old
        return {
            "complex64, not float32": weight.to(torch.complex64),
            "int64, not float32": scaled.long(),
            "int8, not float32": scaled.to(torch.int8),
            "uint16, not float32": scaled.abs().to(torch.uint16),
            "bool, not float32": weight > 0,
            "a sparse tensor (sparse_coo)": weight.to_sparse(),
            "a sparse tensor (sparse_csr)": weight.to_sparse_csr(),
            "a sparse tensor (sparse_bsc)": weight.to_sparse_bsc((5, 2)),
            "a meta tensor without values": weight.to("meta"),
            "quantized (qint8)": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
        }


@pytest.mark.filterwarnings("ignore:.*Sparse|.*sparse|.*uantize")  # torch's own, when it loads them
@pytest.mark.parametrize("kind", _kinds())
def test_weights_of_another_kind_are_refused(tmp_path: Path, kind: str) -> None:
    torch.save(weights() | {"fc.weight": _kinds()[kind]}, tmp_path / "in.pt")
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(Problem) as caught:
        load_(model, read(tmp_path / "in.pt"))
    assert f"1 of another kind of number: fc.weight ({kind}). Weights have to be" in str(
        caught.value
    )
    assert same(dict(model.state_dict()), before)
    fit = load_(model, read(tmp_path / "in.pt"), allow_partial=True)
    assert len(fit.unfit) == 1
    assert torch.equal(model.fc.weight, before["fc.weight"])
    assert torch.equal(model.conv.weight, weights()["conv.weight"])


def test_masks_and_counters_keep_their_values(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.mask: Tensor
            self.register_buffer("mask", torch.zeros(3, dtype=torch.bool))

    model = Masked()
    good, bad = torch.tensor([0, 1, 1], dtype=torch.uint8), torch.tensor([0.0, 0.5, 1.0])
    torch.save(model.state_dict() | {"mask": good}, tmp_path / "in.pt")
    load_(model, read(tmp_path / "in.pt"))
    assert model.mask.tolist() == [False, True, True]
    torch.save(model.state_dict() | {"mask": bad}, tmp_path / "in.pt")
    with pytest.raises(Problem, match=r"mask \(float32, not bool\)"):
        load_(model, read(tmp_path / "in.pt"))


def test_models_without_plain_weights_are_refused_too(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "in.pt")
    checkpoint = read(tmp_path / "in.pt")
    with pytest.raises(Problem, match=r"weight \(a meta tensor without values in the model\)"):
        load_(nn.Linear(2, 2, device="meta"), checkpoint)
    with pytest.raises(Problem, match=r"weight \(of no size yet in the model\)"):
        load_(nn.LazyLinear(2), checkpoint)
    expanded = nn.Linear(2, 2)
    expanded.weight = nn.Parameter(torch.ones(1, 2).expand(2, 2))
    with pytest.raises(Problem, match="more than one element"):
        load_(expanded, checkpoint)


def test_memory_that_was_shared_holds_one_weight_only(tmp_path: Path) -> None:
    shared = torch.eye(3)
    row = torch.ones(3)
    state = {"0.weight": shared, "1.weight": shared, "2.weight": row.expand(3, 3)}
    torch.save(state, tmp_path / "in.pt")
    model = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(3)))
    checkpoint = read(tmp_path / "in.pt")
    fit = load_(model, checkpoint)
    factors = (1, 2, torch.arange(3.0)[:, None])
    with torch.no_grad():
        for layer, factor in zip(model, factors, strict=True):
            layer.weight.mul_(factor)
    store_(checkpoint, model, fit)
    write(checkpoint, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert same(found, dict(model.state_dict()))


@pytest.mark.parametrize("order", ["transposed", "sliced"])
def test_weights_that_are_views_are_stored_as_such(tmp_path: Path, order: str) -> None:
    whole = torch.arange(18.0).reshape(6, 3)
    view = whole[:3].t() if order == "transposed" else whole[::2]
    torch.save({"weight": view}, tmp_path / "in.pt")
    layer = nn.Linear(3, 3, bias=False)
    checkpoint = read(tmp_path / "in.pt")
    fit = load_(layer, checkpoint)
    assert torch.equal(layer.weight, view)
    with torch.no_grad():
        layer.weight.mul_(2)
    store_(checkpoint, layer, fit)
    write(checkpoint, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)["weight"]
    assert torch.equal(found, 2 * view)
    assert found.stride() == view.stride()


@pytest.mark.filterwarnings("ignore:.*Sparse")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_sparse_layer_is_named_with_a_remedy(layout: str) -> None:
    layer = nn.Linear(4, 4, bias=False)
    layer.weight = nn.Parameter(getattr(layer.weight.detach(), layout)())
    with pytest.raises(TypeError, match=r"'weight' of Linear.*sparse tensor.*\.to_dense"):
        spectral_norm(layer, (4,))
