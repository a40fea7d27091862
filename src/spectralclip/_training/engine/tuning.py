"""The numbers that steer a `SpectralClip` step, one frozen dataclass for each part of it.

They were chosen together, on trainings of the networks in the tests and benchmarks: the true norm
stays within 1.01 times the bound, at the least work. Where one was measured by itself, it says so.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class _Layer:
    """Which way suits a layer."""

    # Times the bound: larger layers, as after a spike of gradients, are scaled first. In float32 a
    # projection of values up to r times the bound leaves an error of r^2 * 1e-6: 3e-4 for 16.
    spike: float = 16
    stacked: int = 2**16  # numbers of a kernel up to which layers of one shape share a tensor
    decomposed: int = 512  # smaller side up to which a matrix is decomposed at each step
    wide: int = 16  # vectors that follow a matrix beyond that
    far: float = 0.9  # share of the bound below which one full vector is enough,
    refreshed: int = 16  # and all are refreshed after so many steps


@dataclass(frozen=True)
class _Dense:
    """Layers whose singular values are all known."""

    margin: float = 0.995  # share of the bound to which larger values are brought
    most_projected: int = 8  # clipped values along which the momentum is projected
    small: int = 64  # side up to which a norm below the bound is exact; beyond it, by
    width: int = 4  # vectors and
    power_steps: int = 2  # power steps


@dataclass(frozen=True)
class _Vectors:
    """Layers that full vectors follow."""

    width: int = 4  # vectors
    near: float = 0.997  # share of the target above which values make cuts
    rounds: int = 4  # refreshes after one step, at most,
    warm_up: int = 4  # and more of them at the beginning
    almost: float = 1.004  # multiple of the target above which a value is refreshed again
    windows: int = 12  # along a side, in which vectors that cling to a border are seen in full


@dataclass(frozen=True)
class _Modes:
    """Layers that Fourier modes follow."""

    width: int = 2  # vectors at each frequency
    cuts: int = 24  # cuts at once
    near: float = 0.997  # share of the target above which values make cuts
    rounds: int = 5  # refreshes after one step, at most
    almost: float = 1.008  # multiple of the target above which a value is refreshed again
    margin: float = 0.996  # share of the target to which larger values are brought
    warm_up: int = 30  # refreshes at the beginning, until the largest value gains no more than
    warm: float = 1e-3  # this share


@dataclass(frozen=True)
class _Costly:
    """What differs for layers of which a refresh takes long."""

    ample: float = 6e6  # multiply-adds above which a refresh takes some of the frequencies only:
    least: int = 14  # at least so many,
    least_share: float = 1 / 3  # at least this share of them,
    overlooked: float = 0.96  # and all whose values may have come up to this share of the target
    rounds: int = 2
    cuts: int = 8
    almost: float = 1.015
    margins: tuple[float, float] = (0.02, 0.06)  # room below the target, so that a layer may rest


@dataclass(frozen=True)
class _Rest:
    """When Fourier modes are left for a step, and when they begin anew."""

    longest: int = 2  # steps from one refresh to the next
    expected: float = 1.01  # multiple of the target that a norm may be expected to reach meanwhile,
    expected_costly: float = 1.02  # and of costly layers
    close: float = 0.97  # share of the target below which the norm is to be known at each step
    leap: float = 1.5  # times the last stride: so far weights may move in a step at rest
    strange: float = 30  # times the last stride: weights that move farther have been replaced
    calm: float = 0.015  # growth in a step up to which weights are calm
    wild: float = 0.03  # growth in a step above which one refresh is not enough


@dataclass(frozen=True)
class _Frequencies:
    """Where on the torus of frequencies the modes are."""

    cells_a_step: int = 8  # cells along an axis, for each step that a symbol's phase can make
    most_cells: tuple[int, int, int] = (16, 10, 5)  # along an axis, by the number of axes
    climbing: int = 2  # frequencies climb at every second refresh
    heading: int = 2  # calm weights' changes are followed at every second refresh
    sampled: int = 2**15  # numbers of a kernel that are read to see how far it has moved


@dataclass(frozen=True)
class _Check:
    """Checks of a layer's norm itself."""

    # Lanczos steps. From random starts, over eleven layers of all paddings with 12 seeds, values
    # were too low by at most 5.4 % after 8 steps, 3.9 % after 12, 0.7 % after 16, 0.5 % after 20.
    # A replicate layer of random weights was missed by 2 % after 16.
    steps: int = 24
    surprise: float = 0.005  # an estimate that is off by more is no ground for trust,
    far: float = 0.9  # unless the norm is below this share of the bound
    trust: float = 0.005  # movement of the weights that each right estimate lets pass unchecked,
    most_trust: float = 0.05  # and the most of it
    sampled: int = 2**12  # numbers of a tensor that are read to see its movement
    settled: float = 5e-4  # a vector is followed until its value gains no more than this share,
    rounds: int = 3  # in so many rounds at most


@dataclass(frozen=True)
class _Growth:
    """How a target gives way to growth that goes unseen, and how estimates are calibrated."""

    first: float = 0.01  # growth that is supposed before anything has been seen
    unseen: float = 0.9  # share of a growth that may go unseen,
    most_unseen: float = 0.1  # and how far a target may be lowered for that
    calming: float = 0.9  # what is left of a growth after each step,
    forgiving: float = 0.98  # and over a longer time
    # A target is approached by at most this share of the weights' own movement: projections move
    # a layer no farther than the optimizer does. With 1, steps of Lion were up to 4 times as long
    # as without a bound; with 0.5, 2.4 times.
    glide: float = 0.5
    ratios: tuple[float, float] = (0.8, 1.25)  # a norm over its estimate is between these
    forgetting: float = 0.2  # share by which a calibration comes down after each check


LAYER, DENSE, VECTORS, MODES = _Layer(), _Dense(), _Vectors(), _Modes()
COSTLY, REST, FREQUENCIES = _Costly(), _Rest(), _Frequencies()
CHECK, GROWTH = _Check(), _Growth()
