"""What to say where an optional package is missing."""

from __future__ import annotations


def missing(package: str, error: ImportError) -> ImportError:
    """The error to raise where `package` could not be imported, to be chained to the first one."""
    return ImportError(
        f"spectralclip.integrations.{package} needs the package {package!r}, which could not be "
        f'imported ({error}): pip install "spectralclip[integrations]"',
        name=package,
    )
