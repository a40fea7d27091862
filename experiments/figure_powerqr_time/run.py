"""One run: all methods one after the other, on the same layer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from scipy.sparse.linalg import svds as arpack
from torch import Tensor, nn

from experiments.experiment import Config, Context, Result
from experiments.measuring.stopwatch import Stopwatch
from spectralclip import ConvergenceWarning, PowerQR, Spectrum, as_operator, svds
from spectralclip.methods import virmaux_svds

POWER_QR = "PowerQR"
REPEATED = "k power methods"
DEFLATED = "k power methods with deflation"
OURS = "svds"
OURS_PLAIN = "svds by forward and backward"
NAMES = (REPEATED, DEFLATED, POWER_QR, OURS, OURS_PLAIN)
# The power method is to do all its iterations, as PowerQR does.
NEVER = 1e-30
FINEST = 1e-6  # what single precision can tell
LADDER = 3.0  # from one tolerance that is tried to the next


def run(config: Config, context: Context) -> Result:
    """Seconds, vectors sent through the layer and accuracy of each method, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            # That few iterations are not enough is what the figure shows.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return _compare(config, context)
    finally:
        torch.set_num_threads(threads)


def _compare(config: Config, context: Context) -> Result:
    layer, shape = make_layer(config), (config["channels"], config["side"], config["side"])
    k, steps = config["k"], config["iterations"]
    context.say(0.0, "true values")
    true = true_values(layer, shape, k)
    # PowerQR and the power method go through the layer's own forward and backward, as in the
    # paper: neither is to gain by the way in which the layer is applied.
    plain = as_operator(layer, shape, explicit=False)
    runs: dict[str, Callable[[int, int], Sequence[Spectrum]]] = {
        POWER_QR: lambda count, steps: [svds(plain, shape, count, solver=PowerQR(steps))],
        REPEATED: lambda count, steps: [
            virmaux_svds(layer, shape, 1, power_iterations=steps, tol=NEVER) for _ in range(count)
        ],
        DEFLATED: lambda count, steps: [
            virmaux_svds(layer, shape, count, power_iterations=steps, tol=NEVER)
        ],
    }
    watch, found = Stopwatch(), dict[str, Sequence[Spectrum]]()
    repeats, ladder = int(config.get("repeats", 1)), float(config.get("ladder", LADDER))
    for place, (name, method) in enumerate(runs.items()):
        context.say((1 + place) / 5, name)
        method(1, 1)  # what the first call alone has to do
        found[name] = watch.time(name, partial(method, k, steps), repeats)
    errors = {name: _error(found[name][0].S, true) for name in (POWER_QR, DEFLATED)}
    wanted, attempts = max(min(errors.values()), FINEST), dict[str, int]()
    for name, applied in ((OURS, layer), (OURS_PLAIN, plain)):
        context.say(4 / 5, name)
        solve = partial(svds, applied, shape)
        tol, attempts[name] = _as_accurate(solve, true, wanted, ladder)
        ours = watch.time(name, partial(solve, k, tol=tol), repeats)
        errors[name], found[name] = _error(ours.S, true), [ours]
    num_matvecs = {name: sum(one.num_matvecs for one in each) for name, each in found.items()}
    result = {"num_matvecs": num_matvecs, "errors": errors, "attempts": attempts, "threads": 1}
    return {"result": result, "timing": watch.summary(threads=1)}


def _as_accurate(
    solve: Callable[..., Spectrum], true: Tensor, wanted: float, ladder: float
) -> tuple[float, int]:
    """The tolerance with which ours is as accurate: the error wanted, or less if need be.

    Returns:
        The tolerance, and after how many attempts it was found.
    """
    tol, attempts = wanted, 1
    while _error(solve(len(true), tol=tol).S, true) > wanted and tol >= FINEST:
        tol, attempts = tol / ladder, attempts + 1
    return tol, attempts


def make_layer(config: Config) -> nn.Conv2d:
    """A convolution with taps from a normal distribution, as large as those of a new layer."""
    width, kernel = config["channels"], config["kernel"]
    with torch.device("meta"):  # initial weights would come from the global generator
        layer = nn.Conv2d(width, width, kernel, padding=kernel // 2, bias=False)
    generator = torch.Generator("cpu").manual_seed(config["seed"])
    weight = torch.randn(width, width, kernel, kernel, generator=generator)
    layer.weight = nn.Parameter(weight / (kernel * width**0.5), requires_grad=False)
    return layer


def true_values(layer: nn.Module, shape: tuple[int, ...], k: int) -> Tensor:
    """By ARPACK in float64."""
    operator = as_operator(copy.deepcopy(layer).double(), shape).to_scipy()
    generator = torch.Generator("cpu").manual_seed(0)
    start = torch.randn(operator.shape[1], dtype=torch.float64, generator=generator).numpy()
    basis = min(max(2 * k + 1, 40), operator.shape[1] - 1)
    values = arpack(operator, k, ncv=basis, v0=start, tol=1e-4, return_singular_vectors=False)
    return torch.from_numpy(values.copy()).sort(descending=True).values


def _error(values: Tensor, true: Tensor) -> float:
    """The largest relative error of the values."""
    return float(((values.double() - true) / true).abs().max())
