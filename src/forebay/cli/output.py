"""``--json PATH`` everywhere: ``-`` is stdout, anything else a file written whole or not at all."""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from forebay.domain.errors import BadInput


def write_json(value: Any, target: str) -> None:
    """Write ``value`` as indented JSON to ``target``; raises BadInput where it can't be written."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    if target == "-":
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    part = Path(f"{target}.part")
    try:
        part.write_bytes(text)
        os.replace(part, target)
    except OSError as error:
        raise BadInput(f"--json: can't write {target!r} ({error.strerror}); name a file in a folder that exists, or - for stdout") from None
