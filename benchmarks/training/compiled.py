"""What torch's compiler makes of a step: the kernels that its code calls.

The code is that for a CPU. There one generated function may hold several loops, one after another,
each of which would be a kernel of its own on a GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

DEFINITION = re.compile(r"^(cpp_fused\w*) = async_compile", re.MULTILINE)
LOOP = re.compile(r"^    \{$", re.MULTILINE)  # a block at the first level of a function
GENERATED = re.compile(r"^\s*(cpp_fused\w*)\(", re.MULTILINE)
EXTERNAL = re.compile(r"\b(?:extern_kernels\.\w+|torch\.ops\.[\w.]+)\(")


@dataclass(frozen=True)
class Compiled:
    """Kernels in the compiled code.

    Attributes:
        functions: Calls of generated functions.
        loops: In these, one for each call: what a GPU would be given one by one.
        external: Calls of operations that are not generated, such as products.
    """

    functions: int
    loops: int
    external: int


def compiled_kernels(work: Callable[[], object]) -> Compiled:
    """Those of all code that is compiled on the way, which has to be called once by the work."""
    from torch._inductor.utils import fresh_cache, run_and_get_code

    with fresh_cache():  # what a run that was stopped has left in the usual one may be damaged
        _, codes = run_and_get_code(work)
    found = [kernels_in(code) for code in dict.fromkeys(codes)]
    return Compiled(
        sum(one.functions for one in found),
        sum(one.loops for one in found),
        sum(one.external for one in found),
    )


def kernels_in(code: str) -> Compiled:
    """The kernels that `call` of one generated file calls."""
    definitions, body = code.split("def call(")
    parts = DEFINITION.split(definitions)
    loops = {
        name: len(LOOP.findall(text)) for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    calls = Counter(GENERATED.findall(body))
    return Compiled(
        functions=calls.total(),
        loops=sum(times * loops[name] for name, times in calls.items()),
        external=len(EXTERNAL.findall(body)),
    )
