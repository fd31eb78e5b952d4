"""Images and audio inside a request's JSON: how many, how long, and which bytes of the body are theirs and no text.

They come as base64, which would count as a hundred thousand tokens of text. Nothing is decoded or parsed: a payload is from its mark to
the next quote. What is mistaken for one only changes an estimate.
"""

import re

import msgspec

from forebay.native.pure import AUDIO

WAV_BYTES_PER_S = 32_000.0
"""16 bit at 16 kHz, which speech models take."""
CODED_BYTES_PER_S = 16_000.0
"""Of MP3 and the like at 128 kbit/s."""
UNKNOWN_AUDIO_S = 30.0
"""Of audio that is named by a URL."""
PAYLOADS_MAX = 4096
"""Looked for in one body, which takes some milliseconds; what comes after them is taken for text."""
_HEAD_BYTES = 64
_AUDIO_BEFORE_BYTES = 256
"""So far before its payload an audio part says that it is one."""
_URI = b";base64,"
_DATA = re.compile(rb'"data"\s*:\s*"')
_IMAGES = re.compile(rb'"(?:image_url|video_url)"\s*:|"type"\s*:\s*"image"')
_AUDIO_URLS = re.compile(rb'"audio_url"\s*:')
_WAV = b"UklG"
"""The base64 of ``RIF``, with which WAV begins."""


class Media(msgspec.Struct, frozen=True):
    """What a body has beside text."""

    images: int
    """Videos count as one."""
    audio_s: float
    payload_bytes: int


def media_of(body: bytes) -> Media:
    """What ``body`` has."""
    payload_bytes = audio = 0
    audio_s = 0.0
    text: list[bytes] = []
    at, uri = 0, body.find(_URI)
    for _ in range(PAYLOADS_MAX):
        if 0 <= uri < at:  # not looked for from every payload on: where there is none, that reads all of the rest each time
            uri = body.find(_URI, at)
        begin = _begin(body, at, uri)
        if begin < 0:
            break
        end = body.find(b'"', begin)
        end = end if end >= 0 else len(body)
        text.append(body[at:begin])
        size = end - begin
        payload_bytes += size
        before = body[max(at, begin - _AUDIO_BEFORE_BYTES) : begin]
        if b"data:audio/" in before[-_HEAD_BYTES:] or AUDIO in before:
            audio += 1
            per_s = WAV_BYTES_PER_S if body.startswith(_WAV, begin) else CODED_BYTES_PER_S
            audio_s += size * 0.75 / per_s
        at = end
    text.append(body[at:])
    rest = b"".join(text)
    named = len(_AUDIO_URLS.findall(rest))
    told_by_url = max(0, named - rest.count(b"data:audio/"))
    return Media(len(_IMAGES.findall(rest)), audio_s + UNKNOWN_AUDIO_S * told_by_url, payload_bytes)


def _begin(body: bytes, at: int, uri: int) -> int:
    """Where the next base64 payload from ``at`` on begins, ``uri`` being where the next data URI says so; negative: there is none."""
    data = _DATA.search(body, at, uri if uri >= 0 else len(body))
    if data is not None:
        return data.end()
    return uri + len(_URI) if uri >= 0 else -1
