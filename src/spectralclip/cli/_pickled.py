"""What a pickle would import, told without running it."""

from __future__ import annotations

import pickletools
import re
import zipfile
from typing import Any, BinaryIO

# Tensors and plain containers are made of these; `torch.load(weights_only=True)` allows them.
_HARMLESS = re.compile(
    r"torch\._utils\._rebuild_\w+|torch\.(\w+Storage|Size|device|\w*float\w*|\w*int\w*|bool)"
    r"|torch\.(storage|serialization|nn\.parameter)\.\w+|collections\.OrderedDict"
)
_TEXT = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING")
_KEEP = ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT")
_FETCH = ("BINGET", "LONG_BINGET", "GET")


def wanted_globals(file: BinaryIO) -> list[str]:
    """The names that a pickled checkpoint imports, those of tensors and containers left out.

    The opcodes are read, none is executed. A damaged file gives the names up to the damage.
    """
    names: list[str] = []
    try:
        for opcode, argument, strings in _opcodes(_pickle_in(file)):
            if opcode in ("GLOBAL", "INST"):
                names.append(str(argument).replace(" ", "."))
            elif opcode == "STACK_GLOBAL" and len(strings) >= 2:
                names.append(".".join(strings[-2:]))
    except Exception:
        pass  # whatever is wrong with the file, somebody else has said so already
    return [name for name in dict.fromkeys(names) if not _HARMLESS.fullmatch(name)]


def _pickle_in(file: BinaryIO) -> bytes:
    if not zipfile.is_zipfile(file):
        file.seek(0)
        return file.read()
    with zipfile.ZipFile(file) as archive:
        member = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return archive.read(member)


def _opcodes(data: bytes) -> Any:
    """Each opcode with its argument, and the strings that were put on the stack before it."""
    strings: list[str] = []
    memo: dict[int, str] = {}
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _TEXT:
            strings.append(str(argument))
        elif opcode.name in _KEEP and strings:
            memo[len(memo) if argument is None else int(argument)] = strings[-1]
        elif opcode.name in _FETCH and isinstance(argument, int) and argument in memo:
            strings.append(memo[argument])
        yield opcode.name, argument, strings
