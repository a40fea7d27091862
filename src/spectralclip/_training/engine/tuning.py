"""The numbers that steer a `SpectralClip` step, one frozen dataclass for each part of it.

They were chosen together, on trainings of the networks in the tests and benchmarks: the true norm
stays within 1.01 times the bound, at the least work. Where one was measured by itself, it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class _Layer:
    """Which way suits a layer."""

    # Times the bound: a larger layer, as after a spike in the gradients, is scaled to the
    # bound before anything else. In float32 a projection of values up to r times the bound
    # leaves an error of about r^2 * 1e-6 of the bound, which is 3e-4 for 16.
    spike: float = 16
    # Kernels of at most so many numbers are put together into one tensor.
    stacked: int = 2**16
    # Matrices are decomposed at each step up to this size of their smaller side.
    decomposed: int = 512
    # So many vectors follow a matrix beyond that.
    wide: int = 16
    # Below this share of the bound one full vector is enough.
    far: float = 0.9
    # Steps after which all vectors of such a layer are refreshed.
    refreshed: int = 16


@final
@dataclass(frozen=True)
class _Dense:
    """Layers whose singular values are all known."""

    # What is above the bound is brought to this share of it, so that it is not above again at
    # each step.
    margin: float = 0.995
    # The momentum is projected along so many of the clipped values.
    most_projected: int = 8
    # Up to this side a norm below the bound is computed exactly.
    small: int = 64
    # Beyond it, by power steps on so many vectors.
    width: int = 4
    # So many of them.
    power_steps: int = 2


@final
@dataclass(frozen=True)
class _Vectors:
    """Layers that full vectors follow."""

    # Vectors.
    width: int = 4
    # Values above this share of the target make cuts.
    near: float = 0.997
    # Refreshes after one step, at most.
    rounds: int = 4
    # More of them at the beginning.
    warm_up: int = 4
    # A value above this multiple of its target is refreshed again.
    almost: float = 1.004
    # Vectors that cling to a border need at most so many windows to be seen in full.
    windows: int = 12


@final
@dataclass(frozen=True)
class _Modes:
    """Layers that Fourier modes follow."""

    # Vectors at each frequency.
    width: int = 2
    # The most cuts at once, of values above the share `near` of the target.
    cuts: int = 24
    near: float = 0.997
    # Refreshes after one step, at most.
    rounds: int = 5
    # A value above this multiple of its target is refreshed again.
    almost: float = 1.008
    # What is above its target is brought to this share of it.
    margin: float = 0.996
    # Refreshes at the beginning, at most: until the largest value gains no more than the share
    # `warm` of itself.
    warm_up: int = 30
    warm: float = 1e-3


@final
@dataclass(frozen=True)
class _Costly:
    """What differs for layers of which a refresh takes long."""

    # Multiply-adds above which a refresh takes some of the frequencies only.
    ample: float = 6e6
    # So many of them at least, and at least the share `least_share`.
    least: int = 14
    least_share: float = 1 / 3
    # Values that may have come up to this share of the target are not left out.
    overlooked: float = 0.96
    # As for `Modes`, and so are `cuts` and `almost`.
    rounds: int = 2
    cuts: int = 8
    almost: float = 1.015
    # The least and the most by which a layer is brought below its target, so that it may rest
    # for some steps.
    margins: tuple[float, float] = (0.02, 0.06)


@final
@dataclass(frozen=True)
class _Rest:
    """When Fourier modes are left for a step, and when they begin anew."""

    # Steps from one refresh to the next, at most.
    longest: int = 2
    # Times the target: so large may a norm be expected to become meanwhile.
    expected: float = 1.01
    # The same for costly layers.
    expected_costly: float = 1.02
    # Below this share of the target the norm is to be known at each step.
    close: float = 0.97
    # Times the last stride: so far the weights may move in a step at rest.
    leap: float = 1.5
    # Times the last stride: weights that move farther have been replaced.
    strange: float = 30
    # The growth in a step up to which weights are calm.
    calm: float = 0.015
    # The growth above which one refresh is not enough.
    wild: float = 0.03


@final
@dataclass(frozen=True)
class _Frequencies:
    """Where on the torus of frequencies to look."""

    # Cells along an axis, for each step that a symbol's phase can make.
    cells_a_step: int = 8
    # The most along an axis, by the number of axes.
    most_cells: tuple[int, int, int] = (16, 10, 5)
    # Frequencies climb at each refresh of this number.
    climbing: int = 2
    # The direction of the weights' changes is followed at each refresh of this number, if they
    # are calm.
    heading: int = 2
    # Numbers of a kernel that are read to see how far it has moved, at least.
    sampled: int = 2**15


@final
@dataclass(frozen=True)
class _Check:
    """Checks of a layer's norm itself."""

    # Lanczos steps. From random starts, over eleven layers of all paddings with 12 seeds each,
    # the value was too low by at most 5.4 % after 8 steps, 3.9 % after 12, 0.7 % after 16 and
    # 0.5 % after 20.
    steps: int = 16
    # An estimate that is off by more is no ground for trust, unless the norm is below the
    # share `far` of the bound.
    surprise: float = 0.005
    far: float = 0.9
    # How far weights may move without a check, as a share of their size: so much more after
    # each check that found the estimate right.
    trust: float = 0.005
    # The most of it.
    most_trust: float = 0.05
    # Numbers of a tensor that are read to see its movement.
    sampled: int = 2**12
    # A vector is followed until its value gains no more than this share.
    settled: float = 5e-4
    # In so many rounds at most.
    rounds: int = 3


@final
@dataclass(frozen=True)
class _Growth:
    """How a target gives way to growth that goes unseen, and how estimates are calibrated."""

    # The growth that is supposed before anything has been seen.
    first: float = 0.01
    # The share of a growth that may go unseen.
    unseen: float = 0.9
    # How far a target may be lowered for that.
    most_unseen: float = 0.1
    # What is left of a growth after each step.
    calming: float = 0.9
    # The same over a longer time.
    forgiving: float = 0.98
    # A target is approached by at most this share of the weights' own movement: a layer within
    # its bound is not moved farther by a projection than by the optimizer. With 1, steps of
    # Lion were up to 4 times as long as without a bound; with 0.5, 2.4 times.
    glide: float = 0.5
    # A norm over its estimate is taken to be between these.
    ratios: tuple[float, float] = (0.8, 1.25)
    # The share by which a calibration comes down after each check.
    forgetting: float = 0.2


LAYER, DENSE, VECTORS, MODES = _Layer(), _Dense(), _Vectors(), _Modes()
COSTLY, REST, FREQUENCIES = _Costly(), _Rest(), _Frequencies()
CHECK, GROWTH = _Check(), _Growth()
