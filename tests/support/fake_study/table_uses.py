from __future__ import annotations

from fake_study.adding import experiment

EXPERIMENT = experiment("table_uses", lambda scale: [], uses=["figure_fine"])
