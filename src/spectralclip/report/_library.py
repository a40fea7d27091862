"""The charting library's own text, taken from the package that ships it."""

from __future__ import annotations

import base64
import functools
import gzip

# vega-embed brings Vega, Vega-Lite and the tooltips along as its attributes.
SNIPPET = "window.vegaEmbed = vegaEmbed;"


@functools.cache
def charting_library() -> str:
    """Vega-Embed, Vega-Lite and Vega as one script, packed; built once in a process."""
    try:
        import vl_convert
    except ImportError as error:
        raise missing("vl-convert-python", error) from error
    return packed(vl_convert.javascript_bundle(SNIPPET))


def packed(text: str) -> str:
    """`text` as gzip in base64: a third of the size, and nothing in it is markup."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def missing(package: str, error: ImportError) -> ImportError:
    """The error to raise where `package` could not be imported, to be chained to the first one."""
    return ImportError(
        f"The HTML report needs the package {package!r}, which could not be imported ({error}): "
        f'pip install "spectralclip[report]"',
        name=package,
    )
