"""The constants of the clipping step, each with the measurement that chose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Tuning:
    """What the step is made of.

    Measured on the small convnet with SGD and Adam (true norms at every step), on convolutions of
    256 channels that grow by 1 % a step in random directions, and on dense layers of 128 units.

    Attributes:
        cells: Frequencies along an axis, by the number of axes, of kernels of three taps; in
            proportion of longer ones. A 5x5 kernel under Adam reached 1.029 times the bound with
            three fifths of them, a 7x7 one 1.039 with two. With two axes, the largest norm of 256
            channels that grow by 0.2 % a step was 1.038 times the bound with 4, 1.016 with 6, 1.009
            with 8, 0.991 with 10; that of ResNet-18 of width 16 in its first hundred steps, read
            at every second, 1.040 with 8, 1.015 with 10, and 1.003 with 12, which take half as
            many products again.
        cuts: Values that are brought down at once, of each kernel. 32 made no difference.
        rounds: Steps of the solver that finds how far each cut goes. 8 and 24 made no difference.
        block: Vectors that follow a matrix; matrices of smaller sides are clipped exactly.
        calm: What is left of a growth after each step. It lowers the target, since what grows fast
            has grown further than is seen.
        most: By how much at most, and by how much values may be above the bound to be cut: what
            is further above is scaled first.
        far: Times a bound that is new, or the bound of a matrix: what is further above is scaled.
        unseen: Which share of the norm of weights that were replaced one refresh may not show.
            ResNet-18 with a learning rate of 0.1, whose norms grow up to fivefold in a step,
            showed 0.65 to 0.75 of them.
    """

    cells: tuple[int, ...] = (16, 10, 6)
    cuts: int = 16
    rounds: int = 6
    block: int = 32
    calm: float = 0.9
    most: float = 0.03
    far: float = 1.5
    unseen: float = 0.4


TUNING = Tuning()
