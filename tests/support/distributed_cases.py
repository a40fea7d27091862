"""A method with an exact, dense inside, and trainings of a small network by several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oracle import dense_norm
from spectralclip import as_operator
from spectralclip._models import Compose
from spectralclip._models.layers import find_layers
from spectralclip._training.attach import attach
from spectralclip._training.attachment import Attachment
from spectralclip._training.distributed.sharing import Sharing
from spectralclip._training.method import Method, MethodState
from spectralclip._training.spectral_clip import SpectralClip

BOUND, SHAPE = 0.7, (3, 8, 8)


OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.02),
}


class Scale(Method):
    """Scales a layer by its norm and by a memory of it, and takes the weight out of momentum."""

    def __init__(self, compose: Compose = "none", divides: bool = True, breaks: str = "") -> None:
        self.held_as_one, self.division, self.breaks = compose, divides, breaks

    @property
    def compose(self) -> Compose:
        return self.held_as_one

    @property
    def divides(self) -> bool:
        return self.division

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return Scaling(self, sharing)


class Scaling(MethodState):
    def __init__(self, method: Scale, sharing: Sharing) -> None:
        self.method, self.sharing, self.num_matvecs = method, sharing, 0
        self.memory = {name: torch.zeros(()) for name in sharing.mine()}
        self.latest: dict[str, float] = {}

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            if self.method.breaks == name:
                raise ValueError(f"{name} is broken")
            layer = self.sharing.mine()[name]
            operator = as_operator(list(layer.modules), layer.in_shapes[0], dtype=torch.float64)
            norm = float(torch.linalg.matrix_norm(operator.to_dense(), 2))
            self.num_matvecs += operator.shape[1]
            self.memory[name] = 0.9 * self.memory[name] + 0.1 * norm
            self.latest[name] = norm
            if norm > bound:
                weight = layer.modules[0].weight
                factor = bound / (norm + 0.1 * float(self.memory[name]))
                with torch.no_grad():
                    weight.mul_(factor)
                self.sharing.project_momenta([([weight], [weight.detach().clone()])])
                self.latest[name] = factor * norm

    def norms(self) -> dict[str, float]:
        return dict(self.latest)

    def layer_states(self) -> dict[str, Any]:
        return {name: {"memory": memory} for name, memory in self.memory.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        self.memory |= {n: states[n]["memory"] for n in self.memory if n in states}


def network(norm: bool = False) -> nn.Sequential:
    """A small network whose first layer has five rows, which two processes cannot halve."""
    torch.manual_seed(1)
    second = nn.Conv2d(5, 8, 3, stride=2, padding=1, padding_mode="circular")
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()),
        nn.Sequential(second, *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )


def wrapped(model: nn.Sequential, kind: str) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        return sharded(model)
    return model


def sharded(model: nn.Sequential, **options: Any) -> nn.Module:
    """In groups of their own: the first block, the second, and all the rest."""
    from torch.distributed.fsdp import fully_shard

    for block in (model[0], model[1], model):
        fully_shard(block, **options)
    return model


class Run:
    """A training that can be stopped and gone on with."""

    def __init__(
        self,
        kind: str,
        optimizer: str,
        method: Method | None = None,
        norm: bool = False,
        max_lipschitz: float | None = None,
    ) -> None:
        self.model = wrapped(network(norm), kind)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.attachment = attach(
            self.model,
            self.optimizer,
            torch.zeros(1, *SHAPE),
            method=Scale() if method is None else method,
            max_norm=BOUND if max_lipschitz is None else None,
            max_lipschitz=max_lipschitz,
        )

    @classmethod
    def of(cls, model: nn.Module, optimizer: Any, attachment: Attachment) -> Run:
        run = object.__new__(cls)
        run.model, run.optimizer, run.attachment = model, optimizer, attachment
        return run

    def train(self, first: int, last: int, *, apart: bool = False) -> Run:
        """Steps on random data, the same in every process or different."""
        for step in range(first, last):
            seed = step + (1000 * dist.get_rank() if apart else 0)
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(8, *SHAPE, generator=generator)
            self.optimizer.zero_grad()
            loss = (self.model(x) - x.mean((1, 2, 3))[:, None]).square().mean()
            loss.backward()
            self.optimizer.step()
        return self

    def weights(self) -> dict[str, Tensor]:
        """All that is trained and remembered, whole."""
        found = {name: whole(p) for name, p in bare(self.model).named_parameters()}
        for name, p in bare(self.model).named_parameters():
            state = self.optimizer.state[p]
            buffer = state.get("momentum_buffer", state.get("exp_avg"))
            found[f"momentum of {name}"] = whole(buffer)
        return found


def bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def whole(tensor: Tensor) -> Tensor:
    full = getattr(tensor.detach(), "full_tensor", None)
    return (full() if full is not None else tensor.detach()).clone()


def error_of(run: Any, *args: Any) -> str:
    """What it says when it fails, in each process."""
    try:
        run(*args)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def wrapped_dense(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


METHODS = [Scale(), SpectralClip()]


each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


def true_norms(weights: Mapping[str, Tensor]) -> dict[str, float]:
    model = network()
    model.load_state_dict({k: v for k, v in weights.items() if "momentum" not in k}, strict=False)
    layers = find_layers(model, torch.zeros(1, *SHAPE), "none")
    return {n: dense_norm(layer.modules[0], layer.in_shapes[0]) for n, layer in layers.items()}
