"""Spectral norms under control in other people's training loops.

Each module needs the package of its name, and nothing here is imported by `spectralclip` itself:

- `spectralclip.integrations.lightning`: a callback for Lightning's Trainer.
- `spectralclip.integrations.transformers`: a callback for the Trainer of `transformers`.
- `spectralclip.integrations.accelerate`: `attach_accelerated`, for loops written with Accelerate.
- `spectralclip.integrations.tensorboard`: norms as curves and histograms.
"""

from spectralclip.integrations._callback import NormCallback as NormCallback
