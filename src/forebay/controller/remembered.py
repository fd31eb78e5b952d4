"""Reads back what an earlier controller saved, from a disk that may have been damaged in between.

SQLite notices a torn page but not a flipped byte inside a value. What can't be believed is forgotten: a total that begins
anew costs little, a controller that ends at the same byte on every start scales nothing any more.
"""

from typing import TypeVar

import msgspec

from forebay.ports import Store

T = TypeVar("T")
NUMBER_DIGITS_MAX = 18


def remembered(store: Store, key: str, kind: type[T]) -> T | None:
    """The JSON value at ``key``, or None where there is none that is a ``kind``."""
    saved = store.get(key)
    try:
        return msgspec.json.decode(saved, type=kind) if saved else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def remembered_number(store: Store, key: str) -> int:
    """The count at ``key``, or 0 where there is none."""
    saved = store.get(key) or b""
    return int(saved) if saved.isdigit() and len(saved) <= NUMBER_DIGITS_MAX else 0
