"""Large bodies are read without the inside of their long strings: what is read of them is the same."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway import body as body_module
from forebay.gateway.ask import Ask
from forebay.gateway.body import RUN_BYTES, THIN_BYTES_MIN, decode, thinned

plainly = msgspec.json.Decoder(Ask, strict=False).decode
PROMPT = "word " * (2 * THIN_BYTES_MIN // 5)


def body(content, **more):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **more}).encode()


def test_a_long_prompt_is_hardly_looked_at():
    asked = body(PROMPT, max_tokens=7, stream=True)
    assert len(thinned(asked)) < 2 * RUN_BYTES
    assert decode(asked) == plainly(asked)


RUN = 128
PIECES = st.sampled_from(
    ["word " * RUN, ", 7]" * RUN, " 1, 2" * RUN, 'say "hi"', "\\", "\n", "\u00e9\U0001f600" * RUN, ":,]}" * RUN, "x" * RUN, '"']
)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, 2]),
    st.permutations(["messages", "model", "prompt", "stop", "max_tokens"]),
    st.sampled_from([None, "x", "x" * 3 * RUN, ["a", "\n" * RUN]]),
)
def test_whatever_is_in_it_the_same_is_read(texts, ascii_only, indent, order, stop):
    """In small, so that many can be tried."""
    messages = [{"role": "user", "content": text} for text in texts]
    fields = {"messages": messages, "model": "m", "prompt": list(range(RUN)), "stop": stop, "max_tokens": 9}
    asked = json.dumps({name: fields[name] for name in order}, ensure_ascii=ascii_only, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_module, "RUN_BYTES", RUN)
        patch.setattr(body_module, "THIN_BYTES_MIN", 0)
        assert decode(asked) == plainly(asked)
        assert plainly(thinned(asked)).max_tokens == 9


@pytest.mark.parametrize("order", [("model", "prompt", "max_tokens"), ("prompt", "max_tokens", "model"), ("model", "max_tokens", "prompt")])
def test_a_long_prompt_of_token_ids_is_hardly_looked_at_wherever_it_stands(order):
    """As the last field it was searched for its end anew every 8 KiB: 1.6 s for 4 million ids."""
    fields = {"model": "m", "prompt": list(range(2 * THIN_BYTES_MIN)), "max_tokens": 3}
    asked = json.dumps({name: fields[name] for name in order}).encode()
    assert len(thinned(asked)) < 3 * RUN_BYTES
    assert decode(asked) == plainly(asked)


def test_lists_of_lists_are_left_whole():
    asked = json.dumps({"model": "m", "prompt": [list(range(100))] * 1000, "max_tokens": 3}).encode()
    assert thinned(asked) is asked
    assert decode(asked) == plainly(asked)


@pytest.mark.parametrize("broken", [b"", b'"', b'{"model":"m","max_tokens":"many"', b"}"])
def test_what_is_wrong_is_said_of_the_body_itself(broken):
    asked = broken + body(PROMPT)
    with pytest.raises(msgspec.DecodeError) as plain:
        plainly(asked + b"]")
    error = decode(asked + b"]")
    assert str(plain.value) in error.message
