"""One training loop for all methods, from a configuration to a result of plain values.

The result depends on the configuration alone. Order, augmentation and attacks draw from generators
made from the seed and the epoch, never from a state that runs on, so that a run which was killed
goes on from its last epoch and ends with the same result: bit for bit on the CPU, and as near as
its kernels repeat themselves on a GPU. The same code, threads and processes are needed for it.
"""

from experiments.training.config import TrainConfig, recipe
from experiments.training.loop import TrainingDiverged, steps, surroundings, train

__all__ = ["TrainConfig", "TrainingDiverged", "recipe", "steps", "surroundings", "train"]
