"""LoRA-like adapters: low-rank updates `scale * B A` of a model's layers.

The norm and spectrum of an update come from its factors, exactly and without forming it. So do the
angles between updates, and the factors of a clipped one.
"""

from spectralclip.integrations.adapters.adapter import Adapter as Adapter
from spectralclip.integrations.adapters.adapter import from_tensors as from_tensors
from spectralclip.integrations.adapters.adapter import load as load
from spectralclip.integrations.adapters.live import from_model as from_model
from spectralclip.integrations.adapters.measures import BaseMeasures as BaseMeasures
from spectralclip.integrations.adapters.measures import Clash as Clash
from spectralclip.integrations.adapters.measures import UpdateMeasures as UpdateMeasures
from spectralclip.integrations.adapters.report import AdapterReport as AdapterReport
from spectralclip.integrations.adapters.report import report as report
from spectralclip.integrations.adapters.update import Update as Update
