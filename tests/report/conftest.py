from __future__ import annotations

from typing import Any

import pytest
import report_documents as documents


@pytest.fixture(scope="module", params=["audit", "comparison", "nasty", "holes"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    made: dict[str, Any] = getattr(documents, request.param)()
    return made
