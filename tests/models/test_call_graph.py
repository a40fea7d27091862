"""Which layers follow each other: as `torch.fx` sees it where a model traces, and beyond."""

from __future__ import annotations

import random
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from call_graph_cases import SMALL_IMAGES, Model, conv, names, norm, resnet
from cases import train_batch_norm
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import spectralclip as sc
from oracle import singular_values
from spectralclip import find_layers, skipped_layers

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)  # torch's own use of it
    from torch.fx.experimental.optimization import matches_module_pattern


# --- Against torch.fx ------------------------------------------------------------------------

LAYERS = (nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.BatchNorm1d)
BETWEEN = (nn.AvgPool2d, nn.Flatten, nn.Upsample, nn.PixelShuffle, nn.AdaptiveAvgPool2d)


class Leaves(fx.Tracer):
    """Traces down to torch's own modules."""

    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        return not list(m.children())


def fx_graph(model: nn.Module) -> fx.Graph:
    graph = Leaves().trace(model)
    graph.lint()
    return graph


def fx_chains(model: nn.Module, pairs_only: bool = False) -> set[str]:
    """The compositions that are seen in the graph, for models that use each module once."""
    modules, after = dict(model.named_modules()), {}
    graph = fx_graph(model)
    parts = [name for name, module in modules.items() if isinstance(module, LAYERS + BETWEEN)]
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    assert all(calls[name] < 2 for name in parts)
    for node in graph.nodes:
        if pairs_only:
            for pattern in ((nn.Conv2d, nn.BatchNorm2d), (nn.Linear, nn.BatchNorm1d)):
                if matches_module_pattern(pattern, node, modules) and len(node.args[0].users) == 1:
                    after[node.args[0].target] = node.target
        elif node.op == "call_module" and isinstance(modules[node.target], LAYERS + BETWEEN):
            (source,) = node.all_input_nodes
            known = modules.get(source.target) if source.op == "call_module" else None
            if isinstance(known, LAYERS + BETWEEN) and len(source.users) == 1:
                after[source.target] = node.target
    found = set()
    for first in set(after) - set(after.values()):
        chain = [first]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        while chain and isinstance(modules[chain[0]], BETWEEN):
            chain.pop(0)
        while chain and isinstance(modules[chain[-1]], BETWEEN):
            chain.pop()
        if len(chain) > 1:
            found.add("+".join(chain))
    return found


class PreActivation(nn.Module):
    """Norms in front: only bn2 directly reads a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.conv1, self.bn2, self.conv2 = norm(), conv(), norm(), conv()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.bn1(x)))
        return x + self.conv2(F.relu(self.bn2(y)))


class Dense(nn.Module):
    """As in a DenseNet, norms read what has been put together."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.bn1, self.conv1 = conv(), norm(), conv()
        self.bn2, self.conv2 = nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv0(x)
        y = self.conv1(self.bn1(x).relu())
        return self.conv2(self.bn2(torch.cat([x, y], 1)).relu())


class MobileBlock(nn.Module):
    """Pointwise, depthwise and pointwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(2, 6, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.act = nn.ReLU6(inplace=True)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.project = nn.Conv2d(6, 2, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.depthwise(self.act(self.bn1(self.expand(x)))))
        return x + self.bn3(self.project(y))


class Tail(nn.Module):
    """Ends with pooling and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.pool = conv(), norm(), nn.AvgPool2d(2)
        self.flat, self.dense1, self.bn1 = nn.Flatten(), nn.Linear(18, 7), nn.BatchNorm1d(7)
        self.dense2 = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense2(self.bn1(self.dense1(self.flat(self.pool(self.bn(self.conv(x)))))))


TRACED = {
    "resnet": (resnet, 6, 6),
    "pre-activation": (PreActivation, 1, 1),
    "dense": (Dense, 0, 0),
    "mobile": (MobileBlock, 3, 2),
    "tail": (Tail, 2, 1),
}


@pytest.mark.parametrize("kind", TRACED)
def test_compositions_are_those_of_the_graph(kind: str) -> None:
    make, pairs, chains = TRACED[kind]
    model = make()
    for compose, count in (("conv_bn", pairs), ("chains", chains)):
        found = {name for name in names(model, compose=compose) if "+" in name}
        assert found == fx_chains(model, pairs_only=compose == "conv_bn")
        assert len(found) == count
    parts = [part for name in names(model, compose="chains") for part in name.split("+")]
    single = names(model, compose="none")
    assert [part for part in parts if part in single] == single  # each layer once


@dataclass(frozen=True)
class Step:
    """One line of a program: what it calls, with the results of which lines."""

    call: str | Callable[..., Tensor]
    args: tuple[int, ...]


class Program(nn.Module):
    """A random program of modules and functions on images of one size."""

    FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
        F.relu,
        lambda x: F.relu(x, inplace=True),
        lambda x: x * 2,
        lambda x: x.transpose(2, 3),
        lambda x: x.detach(),
        lambda x: x.data,
        torch.add,
        lambda x, y: torch.cat([x, y])[: x.shape[0]],
        lambda x, y: x.mul_(y),
    )
    MODULES: tuple[Callable[[], nn.Module], ...] = (
        *(conv, lambda: conv(1), norm, norm),
        *(lambda: nn.AvgPool2d(3, 1, 1), lambda: nn.Upsample((6, 6)), nn.ReLU),
    )

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.steps = []
        self.outputs = draw.choice([1, 1, 1, 2])
        for index in range(draw.randint(4, 14)):
            # Mostly the line before, else there would be next to no chains.
            args = [index if draw.random() < 0.8 else draw.randint(0, index) for _ in "ab"]
            if draw.random() < 0.75:
                self.add_module(f"m{index}", draw.choice(self.MODULES)())
                self.steps.append(Step(f"m{index}", (args[0],)))
            else:
                function = draw.choice(self.FUNCTIONS)
                count = 2 if self.FUNCTIONS.index(function) > 5 else 1
                self.steps.append(Step(function, tuple(args[:count])))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x + 0]
        for step in self.steps:
            call = getattr(self, step.call) if isinstance(step.call, str) else step.call
            values.append(call(*(values[index] for index in step.args)))
        return tuple(values[-self.outputs :])


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_random_programs(start: int) -> None:
    lengths: Counter[int] = Counter()
    for seed in range(start, start + 50):
        torch.manual_seed(seed)
        model = Program(seed)
        if not any(isinstance(module, LAYERS) for module in model.modules()):
            continue
        for compose in ("conv_bn", "chains"):
            found = {name for name in names(model, compose=compose) if "+" in name}
            assert found == fx_chains(model, pairs_only=compose == "conv_bn"), f"{seed}, {compose}"
            lengths.update(name.count("+") + 1 for name in found)
    assert lengths[2] > 20 and lengths[3] > 5 and sum(lengths.values()) > 50


# --- What a composition computes -------------------------------------------------------------


class Recorder(fx.Interpreter):
    """Keeps what each module reads and makes."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_module":
            (read,) = (self.env[node] for node in n.all_input_nodes)
            self.seen[n.target] = (read.clone(), result.clone())
        return result

    def record(self, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        self.seen: dict[Any, tuple[Tensor, Tensor]] = {}
        with torch.no_grad():
            self.run(x)
        return self.seen


@pytest.mark.parametrize("compose", ["conv_bn", "chains"])
@pytest.mark.parametrize("kind", TRACED)
def test_a_composition_is_what_the_model_computes(kind: str, compose: Any) -> None:
    """On the differences of two passes, where offsets cancel."""
    model = TRACED[kind][0]().double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            train_batch_norm(module)
    recorder = Recorder(fx.GraphModule(model, fx_graph(model)))
    passes = [recorder.record(torch.randn(2, 2, 6, 6, dtype=torch.double)) for _ in "ab"]
    for layer in find_layers(model, SMALL_IMAGES.double(), compose).values():
        parts = layer.name.split("+")
        read, made = (
            passes[0][part][side] - passes[1][part][side]
            for part, side in ((parts[0], 0), (parts[-1], 1))
        )
        op = sc.as_operator(layer.modules, layer.in_shapes[0])
        torch.testing.assert_close(op.matvec(read), made)
        values = singular_values(list(layer.modules), layer.in_shapes[0])
        norm = sc.spectral_norm(layer.modules, layer.in_shapes[0], tol=1e-6)
        assert float(norm) == pytest.approx(values[0], rel=1e-4)


def test_pairs_have_the_norm_of_the_fused_convolution() -> None:
    model = resnet().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            train_batch_norm(module)
    for layer in find_layers(model, SMALL_IMAGES).values():
        if len(layer.modules) == 2:
            fused = fuse_conv_bn_eval(*layer.modules)
            expected = float(sc.spectral_norm(fused, layer.in_shapes[0], tol=1e-5))
            found = float(sc.spectral_norm(layer.modules, layer.in_shapes[0], tol=1e-5))
            assert found == pytest.approx(expected, rel=1e-4)


# --- Readers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "paired"),
    [
        (lambda m, x: m.bn(m.conv(x)), True),
        (lambda m, x: m.bn(input=m.conv(input=x)), True),
        (lambda m, x: m.bn(F.dropout(m.conv(x), 0.5, m.training)), True),
        (lambda m, x: m.bn(m.conv(x).contiguous().to(torch.float32)), True),
        (lambda m, x: m.bn(m.conv(x)).relu_(), True),
        (lambda m, x: [m.conv(x).shape, m.bn(m.conv(x))], False),
        (lambda m, x: m.bn(m.conv(x).relu_()), False),
        (lambda m, x: m.bn(m.conv(x)[:]), False),
        (lambda m, x: m.bn(x) + m.conv(x), False),
    ],
)
def test_what_reads_the_output(run: Callable[..., Any], paired: bool) -> None:
    model = Model(run, conv=conv(), bn=norm())
    assert sorted(names(model)) == (["conv+bn"] if paired else ["bn", "conv"])


def outputs() -> Iterator[tuple[str, Callable[[nn.Module, Tensor, Tensor], Any]]]:
    """Second readers of the convolution's output y beside the norm's output z."""

    @dataclass
    class Result:
        logits: Tensor
        features: Tensor

    @torch.compiler.disable
    def plain(y: Tensor, z: Tensor) -> Tensor:
        return y + z

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            return 2 * y

    yield "residual", lambda m, y, z: y + z
    yield "in place", lambda m, y, z: z.add_(y)
    yield "indexed", lambda m, y, z: z + y[:, :1]
    yield "detached", lambda m, y, z: z + y.detach()
    yield "data", lambda m, y, z: z + y.data
    yield "item", lambda m, y, z: z * y.sum().item()
    yield "tuple", lambda m, y, z: (z, y)
    yield "dict", lambda m, y, z: {"out": z, "nested": [{"features": y}]}
    yield "dataclass", lambda m, y, z: Result(z, y)
    yield "concatenated", lambda m, y, z: torch.cat([y, z])
    yield "another module", lambda m, y, z: z + m.other(y)
    yield "keyword", lambda m, y, z: z + m.other(input=y)
    yield "the norm again", lambda m, y, z: z + m.bn(y)
    yield "no layer", lambda m, y, z: z + m.act(y)
    yield "two inputs", lambda m, y, z: m.both(y, z)
    yield "function", lambda m, y, z: plain(y, z)
    yield "autograd", lambda m, y, z: z + Doubled.apply(y)
    yield "vmap", lambda m, y, z: torch.vmap(torch.add)(y, z)
    yield "overwritten", lambda m, y, z: (y.zero_(), z)[1]


SECOND = dict(outputs())


@pytest.mark.parametrize("second", SECOND)
def test_a_second_reader_is_seen(second: str) -> None:
    """The bound of the pair says nothing of what else is done with the convolution's output."""

    def run(m: Any, x: Tensor) -> Any:
        y = m.conv(x)
        return SECOND[second](m, y, m.bn(y))

    model = Model(
        run, conv=conv(), bn=norm(), other=conv(), act=nn.Sigmoid(), both=nn.Bilinear(6, 6, 6)
    )
    for compose in ("conv_bn", "chains"):
        assert {"conv", "bn"} <= set(names(model, compose=compose))
    # The user may know better, where each output is read once.
    if second != "the norm again":
        assert "conv+bn" in names(model, pairs=[("conv", "bn")])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_parts() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        return m.bn(y) + (m.script(y) if m.reads else m.script(x))

    scripted = torch.jit.script(nn.Sequential(conv(), nn.ReLU()))
    model = Model(run, conv=conv(), bn=norm(), script=scripted)
    for reads, expected in ((True, ["conv", "bn"]), (False, ["conv+bn"])):
        model.reads = reads
        assert names(model) == expected
        assert list(skipped_layers(model, SMALL_IMAGES)) == ["script"]
    whole = torch.jit.script(nn.Sequential(conv(), norm()))
    assert names(whole) == []
    assert list(skipped_layers(whole, SMALL_IMAGES)) == [""]


def test_control_flow_that_cannot_be_traced() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y = m.conv1(x)
        while y.norm() < 100:  # how often depends on the values
            y = F.relu(m.bn(m.conv2(2 * y + 1)))
        return y if bool(y.isnan().any()) else m.last(y)

    model = Model(run, conv1=conv(), conv2=conv(), bn=norm(), last=conv())
    with pytest.raises(fx.proxy.TraceError):
        fx.symbolic_trace(model)
    found = find_layers(model, SMALL_IMAGES)
    assert list(found) == ["conv1", "conv2+bn", "last"]
    assert found["conv2+bn"].uses > 1


# --- Modules used several times --------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        # One pair, used at two sizes.
        (lambda m, x: m.bn(m.conv(m.bn(m.conv(x))[..., ::2])), {"conv+bn": 2}),
        (lambda m, x: m.bn(m.conv(x)) + m.bn(m.conv(2 * x)), {"conv+bn": 2}),
        # Both outputs at once, read in the other order.
        (lambda m, x: [m.bn(y) for y in (m.conv(x), m.conv(2 * x))[::-1]], {"conv+bn": 2}),
        # A shared norm.
        (lambda m, x: m.bn(m.conv(x)) + m.bn(m.other(x)), {"conv": 1, "bn": 2, "other": 1}),
        # A shared convolution.
        (lambda m, x: m.bn(m.conv(x)) + m.bn2(m.conv(x)), {"conv": 2, "bn": 1, "bn2": 1}),
        # Once with the norm, once without.
        (lambda m, x: m.bn(m.conv(x)) + m.conv(x).relu(), {"conv": 2, "bn": 1}),
        (lambda m, x: m.bn(m.conv(x)) + m.bn(x), {"conv": 1, "bn": 2}),
        (lambda m, x: m.bn(m.bn(m.conv(x))), {"conv": 1, "bn": 2}),
        # The norm reads one output twice, the other never.
        (lambda m, x: (m.conv(x), [m.bn(y) for y in [m.conv(x)] * 2])[1], {"conv": 2, "bn": 2}),
    ],
)
def test_each_output_to_the_same_norm_and_nothing_else(
    run: Callable[..., Any], expected: dict[str, int]
) -> None:
    model = Model(run, conv=conv(), bn=norm(), other=conv(), bn2=norm())
    for compose in ("conv_bn", "chains"):
        found = find_layers(model, SMALL_IMAGES, compose)
        assert {name: layer.uses for name, layer in found.items()} == expected


# --- Ways to run a model ---------------------------------------------------------------------


def test_a_module_that_fails_and_is_replaced() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        try:
            return m.wrong(y)
        except RuntimeError:
            return m.bn(y)

    model = Model(run, conv=conv(), wrong=nn.Conv2d(5, 5, 1), bn=norm())
    assert names(model) == ["conv", "bn"]  # another one was given what the convolution made
    assert skipped_layers(model, SMALL_IMAGES) == {"wrong": "not used in the forward pass"}


def test_hooks_are_part_of_their_module() -> None:
    model = nn.Sequential(conv(), norm())
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.abs()))
    model[1].register_forward_pre_hook(lambda module, args: seen.append(args[0].abs()))
    assert names(model) == ["0+1"]
    model[0].register_forward_hook(lambda module, args, output: output.relu())
    assert names(model) == ["1"]


def test_parameters_behind_properties_and_inside_layers() -> None:
    """What a layer does inside with its input and its parameters is its own business."""

    class Folded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + 0 * x) + 0 * x

    model = nn.Sequential(nn.Linear(4, 4), Folded(4, 4), nn.utils.spectral_norm(nn.Linear(4, 4)))
    assert names(model, torch.ones(2, 4), "chains") == ["0+1+2"]

    class Adapted(nn.Linear):
        def __init__(self, adapter: nn.Module) -> None:
            super().__init__(4, 4)
            self.adapter = adapter

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.adapter(x)

    inner = nn.Linear(4, 4)  # which has a name of its own, too
    model = Model(
        lambda m, x: m.adapted(m.first(x)),
        inner=inner,
        first=nn.Linear(4, 4),
        adapted=Adapted(inner),
    )
    assert names(model, torch.ones(2, 4), "chains") == ["first+adapted", "inner"]


def test_outputs_are_not_kept_alive() -> None:
    """Else a pass would need the memory of all activations at once."""
    made: list[weakref.ref[Tensor]] = []

    def run(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = layer(x)
            made.append(weakref.ref(x))
        assert [one() is not None for one in made] == [False] * 7 + [True]
        return x

    model = Model(run, layers=nn.ModuleList(conv() for _ in range(8)))
    assert names(model, compose="chains") == ["+".join(f"layers.{i}" for i in range(8))]
