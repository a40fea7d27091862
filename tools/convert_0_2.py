"""Rename keys and labels of stored results of version 0.1; numbers stay as they are.

`python tools/convert_0_2.py [FOLDER ...]`, by default the results of the study and of the
benchmarks. What has the new names already is left alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "results", ROOT / "benchmarks" / "results")
KEYS = {"applications": "num_matvecs"}  # vectors sent through a layer or its transpose
LABELS = {"rtol 1e-3": "tol 1e-3"}  # of what was asked for


def renamed(value: Any) -> Any:
    """The same document with the new keys, in the same order."""
    if isinstance(value, dict):
        return {KEYS.get(key, key): renamed(one) for key, one in value.items()}
    if isinstance(value, list):
        return [renamed(one) for one in value]
    return LABELS.get(value, value) if isinstance(value, str) else value


def main() -> None:
    for folder in map(Path, sys.argv[1:] or FOLDERS):
        for path in sorted(folder.rglob("*.json")):
            text = path.read_text()
            new = json.dumps(renamed(json.loads(text)), indent=1, allow_nan=False) + "\n"
            if new != text and any(f'"{key}"' in text for key in (*KEYS, *LABELS)):
                path.write_text(new)
                print(path)


if __name__ == "__main__":
    main()
