"""What is asked of every request is answered alike by C and Python."""

import sys

import pytest
from both import BOTH, BUILT, needs_built
from hypothesis import given
from hypothesis import strategies as st

from forebay.native import pure

BEFORE, AFTER = b"POST / HTTP/1.1\r\ncontent-length: ", b"\r\nhost: a\r\n\r\n"
WORDS = [b"base64", b'_url"', b"input_audio"]
digits = st.one_of(st.integers(0, 40).map(lambda number: b"%d" % number), st.text("0159 ", max_size=12).map(str.encode))
bodies = st.one_of(st.binary(max_size=40), st.sampled_from([0, 9, 10, 11, 100, 4096]).map(lambda size: b"x" * size))


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 8191, 8192, 100_000])
def test_a_known_head_with_its_whole_body_is_framed(module, size):
    body = b"x" * size
    read = BEFORE + b"%d" % size + AFTER + body
    assert module.framed(read, BEFORE, AFTER) == body
    assert module.framed(read + b"y", BEFORE, AFTER) is None
    assert module.framed(read[:-1], BEFORE, AFTER) is None
    assert module.framed(b"G" + read[1:], BEFORE, AFTER) is None
    assert module.framed(BEFORE + b"0%d" % size + AFTER + body, BEFORE, AFTER) is None
    assert module.framed(read, BEFORE, b"0") is None


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("read", [b"", BEFORE, BEFORE + AFTER, BEFORE + b"3", BEFORE + b"00" + AFTER, BEFORE + b"4294967296" + AFTER])
def test_what_is_no_such_head_is_not_framed(module, read):
    assert module.framed(read, BEFORE, AFTER) is None


@needs_built
@given(st.sampled_from([BEFORE, b"", b"a"]), digits, st.sampled_from([AFTER, b"", b"\r", b"1"]), bodies, st.booleans())
def test_any_read_is_framed_alike(before, number, after, body, true):
    read = before + (b"%d" % len(body) if true else number) + after + body
    assert BUILT.framed(read, before, after) == pure.framed(read, before, after)
    assert BUILT.framed(body, before, after) == pure.framed(body, before, after)


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_media_is_found_wherever_it_stands(module, word):
    for before in (b"", b"_", b"6_6_", b"base6", b"input_", b"a" * 100):
        for after in (b"", b"_", b"4", b"_url", b"z" * 100):
            assert module.names_media(before + word + after)
            assert not module.names_media(before + word[:-1] + b"?" + after)
            assert not module.names_media(before + word[:-1])
    assert not module.names_media(b"")


@needs_built
@given(st.lists(st.sampled_from([*WORDS, b"_", b"6", b"64", b"base", b"_ur", b'l"', b"input", b"audio", b" "]), max_size=8).map(b"".join))
def test_any_body_names_media_alike(body):
    assert BUILT.names_media(body) is pure.names_media(body)


@needs_built
def test_references_are_given_back():
    read = bytes(bytearray(BEFORE + b"5" + AFTER + b"hello"))
    held = [read, BEFORE, AFTER]
    before = [sys.getrefcount(each) for each in held]
    for _ in range(100):
        BUILT.framed(read, BEFORE, AFTER)
        BUILT.framed(read, AFTER, BEFORE)
        BUILT.names_media(read)
    assert [sys.getrefcount(each) for each in held] == before


@needs_built
@pytest.mark.parametrize("wrong", [lambda: BUILT.framed(b"", b""), lambda: BUILT.framed(b"", 1, b""), lambda: BUILT.names_media("")])
def test_what_are_no_bytes_is_said(wrong):
    with pytest.raises(TypeError, match="takes bytes"):
        wrong()


JSON_SIGNS = st.lists(
    st.sampled_from([b'"', b"\\", b"[", b"]", b"{", b"}", b",", b"a", b'\\"', b'"a"', b"[1]", b'{"a":"b"}', b"\x00\xff"]), max_size=30
)


@needs_built
@given(JSON_SIGNS, st.integers(0, 12), st.integers(0, 3), st.booleans())
def test_what_is_nested_is_passed_over_alike(signs, at, deep, quoted):
    held = bytearray(b"".join(signs))
    at = min(at, len(held))
    assert BUILT.nested(held, at, deep, quoted) == pure.nested(held, at, deep, quoted)
    assert BUILT.string_end(held, at) == pure.string_end(held, at)


@pytest.mark.parametrize("module", BOTH)
@given(JSON_SIGNS, st.integers(1, 7))
def test_what_is_nested_is_passed_over_alike_wherever_it_is_cut(module, signs, step):
    body = b"".join(signs)
    held, at, deep, quoted, strings, lists = bytearray(), 0, 1, False, 0, 0
    for start in range(0, len(body), step):
        held += body[start : start + step]
        at, deep, quoted, more_strings, more_lists = module.nested(held, at, deep, quoted)
        strings, lists = strings + more_strings, lists + more_lists
        if not deep:
            break
    assert (at, deep, quoted, strings, lists) == module.nested(bytearray(body), 0, 1, False)


@pytest.mark.parametrize("module", BOTH)
def test_one_call_passes_over_all_that_is_nested(module):
    """A step of the interpreter for each of megabytes of brackets and strings kept all streams waiting for seconds."""
    for item, strings, lists in ((b'"a",', 1, 0), (b'"\\"",', 1, 0), (b"[1],", 0, 1), (b'{"a":["b"]},', 0, 0)):
        held = bytearray(item * 1000 + b"] ,")
        assert module.nested(held, 0, 1, False) == (len(held) - 2, 0, False, 1000 * strings, 1000 * lists)


@needs_built
@pytest.mark.parametrize(
    "call", [(bytearray(b"a"), 2, 1, False), (bytearray(b"a"), -1, 1, False), (b"a", 0, 1, False), (bytearray(), None, 1, False)]
)
def test_what_no_call_says_is_refused(call):
    with pytest.raises((TypeError, ValueError)):
        BUILT.nested(*call)
    with pytest.raises((TypeError, ValueError)):
        BUILT.string_end(*call[:2])
    with pytest.raises(TypeError):
        BUILT.nested(*call[:2])
