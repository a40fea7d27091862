"""Spectral norms in other people's training loops, dashboards, adapters and functions.

Nothing here is imported by `spectralclip` itself. Trainers, each of which needs its package:

- `spectralclip.integrations.lightning`: a callback for Lightning's Trainer.
- `spectralclip.integrations.transformers`: a callback for the Trainer of `transformers`.
- `spectralclip.integrations.accelerate`: `attach_accelerated`, for loops written with Accelerate.

Dashboards, to each of which `NormLogger` writes the same numbers under the same names:

- `spectralclip.integrations.csv`: lines of a text file.
- `spectralclip.integrations.tensorboard`: curves and histograms.
- `spectralclip.integrations.wandb`: a run of Weights & Biases.
- `spectralclip.integrations.accelerate`: the trackers of an Accelerator.

`HeadLogger` writes the norms of attention heads there, also where nothing holds them.

LoRA-like adapters:

- `spectralclip.integrations.adapters`: those of peft, diffusers, kohya or your own models.

Functions that estimate norms:

- `spectralclip.integrations.conformance`: 200 layers with certified norms, to hold them against.
"""

from spectralclip.integrations._callback import NormCallback as NormCallback
from spectralclip.integrations._dashboard import NormLogger as NormLogger
from spectralclip.integrations._dashboard import NormRecord as NormRecord
from spectralclip.integrations._dashboard import NormWriter as NormWriter
from spectralclip.integrations._heads import HeadLogger as HeadLogger
