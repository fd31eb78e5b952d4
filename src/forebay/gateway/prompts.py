"""How many prompts stand in one list: each is a sequence of its own to the engine, and has ``n`` answers.

A list is counted by searches and never made into objects, since a body of 8 MB may have millions of items. What is in none of the forms
that engines know counts as one: they will say what is wrong with it.
"""

import re

import msgspec

_LISTED = re.compile(rb'[ \t\r\n]*\[[ \t\r\n]*(["\[])')


class _Listed(msgspec.Struct, array_like=True, gc=False):
    """A list of which nothing is read."""


_decode_lists = msgspec.json.Decoder(list[_Listed]).decode


def prompts_in(value: msgspec.Raw) -> int:
    """Prompts in ``value`` (JSON): a list of strings, or of lists of token ids; anything else is one."""
    match = _LISTED.match(memoryview(value))
    if match is None:
        return 1
    listed = bytes(value)
    if match[1] == b"[":
        return max(1, listed.count(b"[") - 1)
    if b"\\" in listed:
        # In a string a backslash escapes what follows it, from left to right: first other backslashes, then quotation marks.
        listed = listed.replace(rb"\\", b"").replace(rb"\"", b"")
    return max(1, listed.count(b'"') // 2)


def conversations_in(value: msgspec.Raw) -> int:
    """Conversations in ``value`` (JSON): a list of lists of messages; anything else is one."""
    match = _LISTED.match(memoryview(value))
    if match is None or match[1] != b"[":
        return 1
    try:
        return len(_decode_lists(value))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1
