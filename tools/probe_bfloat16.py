"""Print the environment variables that products in bfloat16 need on this machine, as NAME=value.

On most machines that is nothing. See `src/spectralclip/_common/amx.py`, which says when and why.
"""

import runpy
from pathlib import Path

AMX = Path(__file__).parents[1] / "src" / "spectralclip" / "_common" / "amx.py"

if __name__ == "__main__":
    print(*(f"{name}={value}" for name, value in runpy.run_path(str(AMX))["needed"]().items()))
