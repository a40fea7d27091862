"""`CenterNorm` and `ScalarBatchNorm`, against torch's batch norm and plain formulas."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectralclip.nn import CenterNorm, ScalarBatchNorm

BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
SHAPES = [(1, (7, 3)), (1, (4, 3, 6)), (2, (4, 3, 5, 2)), (3, (2, 3, 2, 3, 4))]
NORMS = [CenterNorm, ScalarBatchNorm]


def batches(shape: tuple[int, ...], count: int = 3, dtype: Any = torch.float64) -> list[Tensor]:
    """Batches whose channels differ in mean and deviation."""
    channels = torch.arange(1.0, shape[1] + 1, dtype=dtype).reshape(-1, *[1] * (len(shape) - 2))
    return [channels * torch.randn(shape, dtype=dtype) + 3 * channels for _ in range(count)]


def filled(norm: nn.Module) -> nn.Module:
    """With parameters that are no longer where they begin."""
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return norm


def train_step(norm: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of a loss that depends on every entry differently."""
    x = x.clone().requires_grad_()
    y = norm(x)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    wanted = [x, *norm.parameters()]
    return y.detach(), list(torch.autograd.grad((weights * y.sin()).sum(), wanted))


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("dims", "shape"), SHAPES)
def test_with_one_channel_it_is_batch_norm(
    dims: int, shape: tuple[int, ...], affine: bool, momentum: float | None
) -> None:
    settings: Any = {"eps": 1e-2, "momentum": momentum, "affine": affine, "dtype": torch.float64}
    theirs = filled(BATCH_NORMS[dims](1, **settings))
    ours = ScalarBatchNorm(1, **settings)
    ours.load_state_dict(theirs.state_dict())
    for x in batches((shape[0], 1, *shape[2:])):
        torch.testing.assert_close(train_step(ours, x), train_step(theirs, x))
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))
    torch.testing.assert_close(train_step(ours.eval(), x), train_step(theirs.eval(), x))


@pytest.mark.parametrize(("dims", "shape"), SHAPES)
def test_all_channels_are_divided_by_the_largest_deviation(
    dims: int, shape: tuple[int, ...]
) -> None:
    norm = filled(ScalarBatchNorm(shape[1], eps=1e-2, dtype=torch.float64))

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = norm.weight, norm.bias

        def forward(self, x: Tensor) -> Tensor:
            rows = x.movedim(1, -1).reshape(-1, shape[1])
            deviation = (rows.var(0, correction=0).max() + 1e-2).sqrt()
            rows = self.weight * (rows - rows.mean(0)) / deviation + self.bias
            return rows.reshape(x.movedim(1, -1).shape).movedim(-1, 1)

    expected = BATCH_NORMS[dims](shape[1], dtype=torch.float64)
    largest = torch.ones((), dtype=torch.float64)
    for x in batches(shape):
        torch.testing.assert_close(train_step(norm, x), train_step(Plain(), x))
        expected(x)
        largest = 0.9 * largest + 0.1 * x.movedim(1, -1).reshape(-1, shape[1]).var(0).max()
    torch.testing.assert_close(norm.running_mean, expected.running_mean)
    torch.testing.assert_close(norm.running_var, largest.expand(shape[1]))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dims", "shape"), SHAPES)
def test_center_norm_takes_off_the_mean_alone(
    dims: int, shape: tuple[int, ...], bias: bool, momentum: float | None
) -> None:
    norm = filled(CenterNorm(shape[1], momentum=momentum, bias=bias, dtype=torch.float64))
    theirs = BATCH_NORMS[dims](shape[1], momentum=momentum, dtype=torch.float64)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    wide = (1, -1, *[1] * (len(shape) - 2))
    for x in batches(shape):
        y = norm(x)
        theirs(x)
        own = norm.bias if bias else torch.zeros(shape[1], dtype=torch.float64)
        torch.testing.assert_close(y.mean(axes), own)
        torch.testing.assert_close(y.std(axes), x.std(axes))
    state = theirs.state_dict()
    torch.testing.assert_close(norm.running_mean, state["running_mean"])
    assert norm.num_batches_tracked == state["num_batches_tracked"] == 3
    expected = x - norm.running_mean.view(wide) + own.view(wide)
    torch.testing.assert_close(norm.eval()(x), expected)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("track", [True, False])
def test_gradients_are_those_of_differences(kind: Any, track: bool) -> None:
    norm = filled(kind(3, track_running_stats=track, dtype=torch.float64))
    names = [name for name, _ in norm.named_parameters()]

    def function(x: Tensor, *values: Tensor) -> Any:
        return torch.func.functional_call(norm, dict(zip(names, values, strict=True)), (x,))

    x = batches((4, 3, 2))[0].requires_grad_()
    assert torch.autograd.gradcheck(function, (x, *norm.parameters()))
    norm.eval()
    assert torch.autograd.gradcheck(function, (x, *norm.parameters()))


@pytest.mark.parametrize("kind", NORMS)
def test_without_running_statistics_batches_count_in_evaluation_too(kind: Any) -> None:
    norm = filled(kind(3, track_running_stats=False))
    x = batches((4, 3, 5), dtype=torch.float32)[0]
    torch.testing.assert_close(norm.eval()(x), norm.train()(x))
    assert not list(norm.buffers())
    frozen = kind(3)
    frozen.track_running_stats = False
    frozen(x)
    assert frozen.num_batches_tracked == 0 and not frozen.running_mean.any()


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("all_half", [True, False])
def test_half_precision_sums_in_single_precision(
    kind: Any, training: bool, dtype: torch.dtype, all_half: bool
) -> None:
    norm = filled(kind(3)).train(training)
    x = batches((64, 3, 8, 8), dtype=torch.float32)[0].to(dtype)
    norm = norm.to(dtype) if all_half else norm
    exact = copy.deepcopy(norm).double()
    y, expected = norm(x), exact(x.double())
    assert y.dtype == dtype
    rounding = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), expected, rtol=rounding, atol=rounding * 20)
    y.float().sum().backward()
    assert all(parameter.grad is not None for parameter in norm.parameters())
    kept = torch.finfo(dtype if all_half else torch.float32).eps
    torch.testing.assert_close(
        norm.running_mean.double(), exact.running_mean, rtol=4 * kept, atol=1e-5
    )


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_channels_last_stays_channels_last(kind: Any, training: bool) -> None:
    norm = kind(3).train(training)
    x = torch.randn(2, 3, 4, 5)
    y = copy.deepcopy(norm)(x.contiguous(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, norm(x).contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_compiled_it_computes_the_same(kind: Any, momentum: float | None) -> None:
    plain = filled(kind(3, momentum=momentum))
    compiled = copy.deepcopy(plain)
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for x in batches((4, 3, 5), dtype=torch.float32):
        torch.testing.assert_close(run(x), plain(x))
    torch.testing.assert_close(dict(compiled.state_dict()), dict(plain.state_dict()))
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", NORMS)
def test_function_transforms_work_as_for_batch_norm(kind: Any) -> None:
    norm = filled(kind(3, track_running_stats=False))
    values = dict(norm.named_parameters())
    xs = torch.stack(batches((4, 3, 5), dtype=torch.float32))

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(norm, values, (x,)).sin().sum()

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, xs)
    for index, x in enumerate(xs):
        alone = torch.autograd.grad(loss(values, x), list(values.values()))
        for name, expected in zip(values, alone, strict=True):
            torch.testing.assert_close(together[name][index], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", NORMS)
def test_copies_and_files(kind: Any) -> None:
    norm = filled(kind(3, momentum=0.3, dims=2))
    x = torch.randn(2, 3, 4, 5)
    norm(x)
    file = io.BytesIO()
    torch.save(norm.state_dict(), file)
    file.seek(0)
    loaded = kind(3, momentum=0.3, dims=2)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm)), loaded):
        assert repr(other) == repr(norm)
        assert torch.equal(other(x), copy.deepcopy(norm)(x))
        assert torch.equal(other.eval()(x), copy.deepcopy(other).eval()(x))


def test_states_are_exchanged_with_batch_norm() -> None:
    theirs, ours = filled(nn.BatchNorm2d(3)), ScalarBatchNorm(3)
    x = torch.randn(4, 3, 5, 5) * torch.tensor([1.0, 5.0, 0.1]).view(3, 1, 1)
    theirs(x)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    ours.train()(x)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_statistics_can_be_averaged_anew_as_torch_does() -> None:
    norm = filled(ScalarBatchNorm(3))
    data = batches((8, 3, 5), count=4, dtype=torch.float32)
    torch.optim.swa_utils.update_bn(data, norm)
    largest = torch.stack([x.transpose(0, 1).flatten(1).var(1).max() for x in data]).mean()
    torch.testing.assert_close(norm.running_var, largest.expand(3))


@pytest.mark.parametrize("kind", NORMS)
def test_resetting_forgets(kind: Any) -> None:
    norm, fresh = filled(kind(3)), kind(3)
    norm(torch.randn(4, 3))
    norm.reset_parameters()
    torch.testing.assert_close(dict(norm.state_dict()), dict(fresh.state_dict()))


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize(
    ("dims", "shape", "told"),
    [
        (None, (3,), r"two or more axes.*got shape \(3,\)"),
        (1, (2, 3, 4, 4), r"2 or 3 axes.*got shape \(2, 3, 4, 4\)"),
        (2, (3, 4, 4), r"inputs of 4 axes"),
        (3, (2, 3, 4, 4), r"inputs of 5 axes"),
        (None, (2, 4), r"made for 3 channels.*got shape \(2, 4\)"),
        (2, (1, 3, 1, 1), r"more than one value a channel while training"),
        (2, (0, 3, 2, 2), r"more than one value a channel while training"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    kind: Any, dims: int | None, shape: tuple[int, ...], told: str
) -> None:
    norm = kind(3, dims=dims)
    with pytest.raises(ValueError, match=told):
        norm(torch.zeros(shape))
    assert norm.num_batches_tracked == 0 and not norm.running_mean.any()


@pytest.mark.parametrize("kind", NORMS)
def test_dims_that_do_not_exist_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"dims must be 1, 2 or 3.*got 4"):
        kind(3, dims=4)
