"""The clipping step never makes a host wait: it is a function of tensors, of fixed length.

There is no accelerator here, but what makes one wait can be proved without it. On the meta device
tensors have no values, so that reading one raises. A graph without breaks holds no decision of the
host. And every operation that is called stands in a list of those that do not synchronize on CUDA.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import LowRank
from seeds import seeded
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spectralclip import attach, find_layers
from spectralclip._models import head_layers
from spectralclip._training.engine.build import stages_of
from spectralclip._training.engine.stage import Stage
from spectralclip.methods import SpectralClip


def conv(mode: str = "zeros", stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Conv2d(4, 6 * groups, 3, stride, 1, groups=groups, padding_mode=mode)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 12), nn.Linear(12, 12)),
    "1x1": lambda: nn.Sequential(nn.Conv2d(4, 6, 1)),
    "zeros": lambda: nn.Sequential(conv(), nn.Conv2d(6, 6, 3, 2, 1)),
    "circular": lambda: nn.Sequential(conv("circular")),
    "grouped": lambda: nn.Sequential(conv(groups=2)),
    "reflect": lambda: nn.Sequential(conv("reflect")),
    "replicate": lambda: nn.Sequential(conv("replicate", 2)),
    "conv+BN": lambda: nn.Sequential(conv(), nn.BatchNorm2d(6)),
    "BN": lambda: nn.Sequential(nn.BatchNorm2d(4)),
    "custom": lambda: nn.Sequential(nn.Flatten(), LowRank(256, 3, 6)),
    "heads": lambda: nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(64, 4, 8)),
}
EACH = pytest.mark.parametrize("name", MODELS)
X = torch.zeros(1, 4, 8, 8)


def built(name: str) -> list[Stage]:
    """The stages of a model, warm, with bounds below the norms of its layers."""
    with seeded(0):
        model = MODELS[name]().eval()
    composed = "conv_bn" if name == "conv+BN" else "none"
    found = head_layers(model, X) if name == "heads" else find_layers(model, X, composed)
    stages = stages_of(found, 0.01, 2, 0)
    for stage in stages:
        stage.bounds.fill_(0.3)
        stage.is_active.fill_(True)
        stage.warm_up(2)
    return stages


def to_meta(thing: Any, seen: set[int] | None = None) -> Any:
    """Everything that a stage holds, moved to the meta device in place."""
    seen = set() if seen is None else seen
    if isinstance(thing, Tensor):
        return thing.to("meta")
    if isinstance(thing, nn.Module):
        return thing.to("meta")
    if isinstance(thing, dict):
        return {key: to_meta(value, seen) for key, value in thing.items()}
    if hasattr(thing, "_fields"):
        return type(thing)(*(to_meta(value, seen) for value in thing))
    if isinstance(thing, (list, tuple)):
        return type(thing)(to_meta(value, seen) for value in thing)
    if type(thing).__module__.startswith("spectralclip") and id(thing) not in seen:
        seen.add(id(thing))
        for key, value in list(vars(thing).items()):
            object.__setattr__(thing, key, to_meta(value, seen))
    return thing


@EACH
def test_the_step_runs_where_tensors_have_no_values(name: str) -> None:
    stages = built(name)
    with torch.no_grad():
        expected = [[value.shape for value in stage.run()] for stage in stages]
        to_meta(stages)
        for stage, shapes in zip(stages, expected, strict=True):
            values = stage.run()
            assert [value.shape for value in values] == shapes
            assert all(value.is_meta for value in values)


@pytest.mark.slow
@EACH
def test_the_step_is_one_graph_and_does_the_same(name: str) -> None:
    torch._dynamo.reset()
    plain, compiled = built(name), built(name)
    with torch.no_grad():
        for one, other in zip(plain, compiled, strict=True):
            run = torch.compile(other.run, fullgraph=True, dynamic=False, backend="aot_eager")
            for _ in range(2):
                for a, b in zip(one.run(), run(), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# What a step may call: elementwise operations, reductions, products, views, copies on the device,
# and linear algebra that does not report its errors to the host.
SAFE = set(
    """
_foreach_abs _foreach_max
_unsafe_view abs add addcdiv addcmul addmm alias amax baddbmm baddbmm_ bitwise_and bitwise_not
bitwise_or bmm cat clamp clamp_min clone constant_pad_nd convolution convolution_backward cos
detach diagonal div eq expand gather gt le lerp linalg_cholesky_ex linalg_solve_triangular
linalg_vector_norm logical_and logical_not lt masked_fill maximum minimum mm mul mul_ nan_to_num
ne neg new_empty new_zeros ones_like permute pow reciprocal reflection_pad2d
reflection_pad2d_backward relu relu_ replication_pad2d replication_pad2d_backward rsqrt rsub
select select_backward slice slice_backward split_with_sizes sqrt stack sub sum t topk transpose
unbind unsqueeze view where zeros_like
""".split()  # noqa: SIM905
)


class Recorder(TorchDispatchMode):
    """Counts what is called, and refuses what would make a host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name in SAFE, f"{func} may make a host wait"
        self.calls[name] += 1
        return func(*args, **(kwargs or {}))


@EACH
def test_no_operation_of_the_step_synchronizes(name: str) -> None:
    for stage in built(name):
        counts = []
        for _ in range(3):
            with torch.no_grad(), Recorder() as recorder:
                stage.run()
            counts.append(recorder.calls)
        assert counts[0] == counts[1] == counts[2], "the same at every step"
        assert sum(counts[0].values()) > 20


def operations(depth: int) -> int:
    with seeded(0):
        model = nn.Sequential(*[nn.Conv2d(4, 4, 3, padding=1) for _ in range(depth)])
    (stage,) = stages_of(find_layers(model, X), 0.01, 2, 0)
    stage.warm_up(1)
    with torch.no_grad(), Recorder() as recorder:
        stage.run()
    views = ("detach", "view", "unbind", "select", "slice", "expand", "unsqueeze", "transpose")
    return sum(count for name, count in recorder.calls.items() if name not in views)


def test_the_number_of_operations_depends_on_shapes_and_not_on_layers() -> None:
    assert operations(2) == operations(6)


def test_other_groups_change_no_bit_of_a_group() -> None:
    def run(with_others: bool) -> Tensor:
        with seeded(0):
            first = nn.Conv2d(4, 4, 3, padding=1)
            others = [nn.Conv2d(4, 5, 3, padding=1), nn.Conv2d(5, 3, 1)] if with_others else []
        model = nn.Sequential(first, *others)
        attachment = attach(model, None, X, method=SpectralClip(), max_norm=0.5)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            with torch.no_grad():
                first.weight.add_(0.05 * torch.randn(first.weight.shape, generator=generator))
            attachment.step()
        return first.weight.detach()

    assert torch.equal(run(False), run(True))


@pytest.mark.parametrize("name", ["dense", "zeros", "reflect", "conv+BN"])
def test_a_layer_below_its_target_stays_bit_for_bit(name: str) -> None:
    with seeded(0):
        model = MODELS[name]()
    method = SpectralClip(compose="conv_bn" if name == "conv+BN" else "none")
    probe = attach(copy.deepcopy(model), None, X, method=method, max_norm=1e3)
    probe.step()
    bound = max(probe.norms().values()) / 0.97
    attachment = attach(model, None, X, method=method, max_norm=bound)
    before = copy.deepcopy(model.state_dict())
    for _ in range(3):
        attachment.step()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_lost_layer_of_a_group_leaves_the_others_exact() -> None:
    def run(lost: bool) -> list[Tensor]:
        with seeded(0):
            model = nn.Sequential(*[nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)])
        attachment = attach(model, None, X, method=SpectralClip(check_every=0), max_norm=0.4)
        attachment.step()
        if lost:
            model[1].weight.data[0, 0, 0, 0] = torch.nan
        generator = torch.Generator().manual_seed(1)
        for _ in range(4):
            for index in (0, 2):
                noise = torch.randn(model[index].weight.shape, generator=generator)
                model[index].weight.data.add_(0.05 * noise)
            attachment.step()
        return [model[0].weight.detach(), model[2].weight.detach()]

    with pytest.warns(UserWarning, match="'1'"):
        lost = run(True)
    assert all(torch.equal(a, b) for a, b in zip(lost, run(False), strict=True))
