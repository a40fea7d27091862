"""`python -m spectralclip`, and the entry point of the command `spectralclip`."""

from __future__ import annotations

import os
import sys

from spectralclip._common import needed


def main() -> int:
    """Run the command line, or say what has to be installed for it."""
    # Torch is imported by now, but oneDNN reads its settings when it is first used.
    os.environ.update(needed())
    try:
        from spectralclip import cli
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        print(
            f"error: the command line needs the package {error.name}, which is not installed: "
            'pip install "spectralclip[cli]"',
            file=sys.stderr,
        )
        return 2
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
