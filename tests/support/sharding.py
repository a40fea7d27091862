"""Which tests need `fully_shard` on CPUs."""

from __future__ import annotations

import pytest
import torch

SHARDS = pytest.mark.skipif(
    torch.__version__ < "2.7", reason="torch 2.6 does not run fully_shard on CPUs"
)
FSDP = pytest.param("fsdp", marks=SHARDS)
