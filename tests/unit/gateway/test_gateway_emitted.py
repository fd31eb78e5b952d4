"""The log of what a client has, as token ids: exactly its text, or not at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reads import taking

from forebay.gateway.asking import IDS_BODY_BYTES_MAX, Wants, asking
from forebay.gateway.body import decode
from forebay.gateway.continuing import plan
from forebay.gateway.emitted import PROMPT_IDS_BYTES_MAX, STOP_CHARS_MAX, STOPS_MAX, Emitted, Stops
from forebay.gateway.events import decode_event, without_ids, without_usage
from forebay.gateway.retries import RETRY_BURST, RETRY_SHARE, HeldIds, RetryBudget
from forebay.gateway.told import ToldStream
from forebay.spec.types import EngineKind


def _event(text="x", ids=(1,), prompt=None, finish=None, **delta):
    choice = {"index": 0, "delta": {"content": text, **delta}, "logprobs": None, "finish_reason": finish, "token_ids": list(ids)}
    return {"id": "chatcmpl-1", "created": 5, "model": "m", "choices": [choice], "prompt_token_ids": prompt}


def _log(*events, stops=None):
    emitted = Emitted(stops)
    for event in events:
        emitted.note(decode_event(json.dumps(event).encode()))
    return emitted


ROLE = _event("", (), [7, 8, 9])


def test_ids_of_prompt_and_tokens_are_kept():
    emitted = _log(ROLE, _event("a", (4,)), _event("b", (5,)))
    assert emitted.keep() == 2
    assert (emitted.prompt_ids, bytes(emitted.ids), emitted.prompt_tokens) == (b"7, 8, 9", b"4,5,", 3)


def test_half_a_character_is_generated_anew():
    """vLLM holds back the text of a token that ends within a character: it has shown nothing, so it is forgotten."""
    emitted = _log(ROLE, _event("a", (4,)), _event("", (5,)), _event("", (6,)))
    assert emitted.tokens == 3
    assert emitted.keep() == 1
    assert bytes(emitted.ids) == b"4,"


def test_half_a_character_that_was_completed_is_kept():
    assert _log(ROLE, _event("a", (4,)), _event("", (5,)), _event("é", (6,))).keep() == 3


def test_several_tokens_in_an_event_may_hide_half_a_character_at_its_end():
    assert _log(ROLE, _event("ab", (4, 5))).keep() == "part of its text may have been held back"
    assert _log(ROLE, _event("ab", (4, 5)), _event("c", (6,))).keep() == 3


def test_reasoning_under_way_is_not_continued_and_an_answer_after_it_is():
    thinking = (ROLE, _event(None, (1,), reasoning="hm"), _event(None, (2,), reasoning_content="so"))
    assert _log(*thinking).keep() == "it is reasoning"
    assert _log(*thinking, _event("yes", (3,))).keep() == 3


def test_a_tool_call_is_not_continued():
    assert _log(ROLE, _event(None, (1,), tool_calls=[{"index": 0}]), _event("x", (2,))).keep() == "it calls tools"


def test_an_engine_that_tells_no_ids():
    events = [{"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}]
    assert _log(*events).keep() == "its engine tells no token ids"


def test_a_prompt_too_long_to_be_kept_is_still_counted():
    emitted = _log(_event("", (), [1] * PROMPT_IDS_BYTES_MAX), _event("a", (4,)))
    assert emitted.keep() == "its prompt is too long"
    assert emitted.prompt_tokens == PROMPT_IDS_BYTES_MAX
    assert emitted.tokens == 1


def test_a_stop_string_that_may_have_begun_is_not_continued():
    stops = Stops(["END"], in_output=True)
    assert _log(ROLE, _event("the E", (1,)), stops=stops).keep() == "it ends with the beginning of a stop string"
    assert _log(ROLE, _event("the E", (1,)), _event("x", (2,)), stops=Stops(["END"], in_output=True)).keep() == 2


def _held_back(texts, stop):
    """What vLLM sends: all but the last ``len(stop) - 1`` characters."""
    held = len(stop) - 1
    whole, out = "", 0
    for number, text in enumerate(texts):
        whole += text
        end = max(out, len(whole) - held)
        yield _event(whole[out:end], (number,))
        out = end


def test_text_held_back_for_a_stop_string_goes_on_where_what_is_out_ends_with_a_token():
    # After "abc" + "de", with two characters held back, "abc" is out: the second token is generated anew.
    assert _log(ROLE, *_held_back(["abc", "de"], "STO"), stops=Stops(["STO"], in_output=False)).keep() == 1
    assert (
        _log(ROLE, *_held_back(["abc", "d"], "STO"), stops=Stops(["STO"], in_output=False)).keep() == "text was held back for a stop string"
    )


def test_the_text_that_was_held_back_goes_out_first_if_an_engine_tells_it():
    emitted = _log(ROLE, *_held_back(["abc", "d"], "STO"), stops=Stops(["STO"], in_output=False))
    assert emitted.unsure() == b"0,1,"
    assert emitted.told("abcd") == "cd"
    assert emitted.keep() == 2
    emitted = _log(ROLE, *_held_back(["abc", "dxS"], "STO"), stops=Stops(["STO"], in_output=False))
    assert emitted.unsure() == b"0,1,"
    assert emitted.told("abcdxS") == "xS"
    assert emitted.keep() == "it ends with the beginning of a stop string"


@pytest.mark.parametrize("text", ["abcd\ufffd", "aXcd", "abcde", ""])
def test_text_that_is_not_that_of_which_the_beginning_is_out_proves_nothing(text):
    emitted = _log(ROLE, *_held_back(["abc", "d"], "STO"), stops=Stops(["STO"], in_output=False))
    assert emitted.told(text) == ""
    assert emitted.keep() == "text was held back for a stop string"


def test_several_tokens_are_sure_once_their_text_is_told():
    emitted = _log(ROLE, _event("ab", (4, 5)))
    assert emitted.unsure() == b"4,5,"
    assert emitted.told("ab\ufffd") == ""
    assert emitted.keep() == "part of its text may have been held back"
    assert emitted.told("ab") == ""
    assert (emitted.unsure(), emitted.keep()) == (b"", 2)


def test_a_second_cut_does_not_go_by_the_tokens_that_the_first_one_forgot():
    stops = Stops(["STO"], in_output=False)
    emitted = _log(ROLE, *_held_back(["abc", "de"], "STO"), stops=stops)
    assert emitted.keep() == 1
    assert emitted.keep() == 1  # nothing new came
    emitted.note(decode_event(json.dumps(_event("", (7,))).encode()))
    emitted.note(decode_event(json.dumps(_event("xy", (8,))).encode()))  # "xyzw" is there, two of it held back
    assert emitted.keep() == "text was held back for a stop string"
    emitted.note(decode_event(json.dumps(_event("zw", (9,))).encode()))
    assert emitted.keep() == 3
    assert bytes(emitted.ids) == b"0,7,8,"


@given(st.lists(st.text("abc", min_size=0, max_size=4), min_size=1, max_size=12), st.text("xyz", min_size=1, max_size=5))
def test_what_is_kept_is_exactly_what_is_out(texts, stop):
    events = list(_held_back(texts, stop))
    emitted = _log(ROLE, *events, stops=Stops([stop], in_output=False))
    kept = emitted.keep()
    if isinstance(kept, int):
        out = "".join(event["choices"][0]["delta"]["content"] for event in events)
        assert "".join(texts[:kept]) == out
        assert bytes(emitted.ids) == b"".join(b"%d," % number for number in range(kept))


# -- what is asked -----------------------------------------------------------------------------------------------------------------

VLLM, LLAMACPP = EngineKind("attach"), EngineKind("attach", metrics="llamacpp")


def _asking(body, engine=VLLM):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent, wants = asking(decode(raw), raw, engine)
    return json.loads(sent), wants


def test_usage_and_ids_are_asked_for_in_the_clients_name():
    body = {"model": "m", "stream": True}
    assert _asking(body) == ({**body, "stream_options": {"include_usage": True}, "return_token_ids": True}, Wants(usage=True, ids=True))
    assert _asking(body, LLAMACPP) == ({**body, "stream_options": {"include_usage": True}}, Wants(usage=True))


@pytest.mark.parametrize("more", [b"", b" ", b"\n", b',"x":"\\"stream_options\\"}"'])
def test_the_body_stays_as_it_came_but_for_what_is_added(more):
    raw = b'{ "model":"m",  "made_up": [1.50]%b}' % (more if more.strip() else b"")
    sent, _ = asking(decode(raw), raw, VLLM)
    assert sent.startswith(raw[:-1])
    assert json.loads(sent)["return_token_ids"] is True


def test_what_the_client_said_of_streams_is_kept_and_no_key_is_there_twice():
    said = {"model": "m", "stream_options": {"include_usage": False, "other": 1}, "return_token_ids": None}
    sent, wants = _asking(said)
    assert sent["stream_options"] == {"include_usage": True, "other": 1}
    assert sent["return_token_ids"] is True
    assert wants == Wants(usage=True, ids=True)
    raw = b'{"model":"m","stream_options":null}'
    body, _ = asking(decode(raw), raw, LLAMACPP)
    assert body.count(b"stream_options") == 1


def test_a_client_that_asked_for_it_all_gets_its_body_sent_as_it_is():
    raw = b'{"model":"m", "stream_options":{"include_usage": true}, "return_token_ids": true}'
    assert asking(decode(raw), raw, VLLM) == (raw, Wants())


def test_of_a_long_prompt_running_usage_is_asked_for_instead_of_ids():
    sent, wants = _asking({"model": "m", "prompt": "x" * IDS_BODY_BYTES_MAX})
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "return_token_ids" not in sent
    assert wants == Wants(usage=True, running_usage=True)


# -- what is taken out ---------------------------------------------------------------------------------------------------------------


def test_what_only_looks_like_a_field_is_text():
    event = b'data: {"choices":[{"delta":{"content":"\\"token_ids\\":[1],\\"usage\\":{}"},"token_ids":[1, 2]}],"usage":{"a":{"b":1},"c":2}}'
    assert without_ids(event) == event.replace(b"[1, 2]", b"null")
    assert without_usage(event) == event.replace(b',"usage":{"a":{"b":1},"c":2}', b"")


def _wire(text, ids, more=b""):
    return (
        b'data: {"id":"c","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null,"token_ids":%b}]%b}\n\n'
        % (
            text,
            ids,
            more,
        )
    )


@given(st.lists(st.tuples(st.text(max_size=5), st.lists(st.integers(0, 200_000), min_size=1, max_size=2)), min_size=1, max_size=12))
def test_the_fast_way_and_the_slow_way_are_one(tokens):
    """Whatever the texts: what goes out is the events without their ids, and the log has them all."""
    out, slow = [], Emitted()
    emitted = Emitted()
    stream = ToldStream(True, True, Wants(usage=True, ids=True), emitted)
    stream.report_at = 1000
    data = taking(stream.attach(out.append, lambda *read: out.append(stream.feed(*read)), lambda: None))
    bodies = [_wire(b"go", b"[5]")] + [
        _wire(json.dumps(text)[1:-1].encode(), json.dumps(ids, separators=(",", ":")).encode()) for text, ids in tokens
    ]
    for body in bodies:
        data(b"%x\r\n%b\r\n" % (len(body), body), body, True, False)
        slow.note(decode_event(body[6:]))
    expected = b"".join(b"%x\r\n%b\r\n" % (len(without_ids(body)), without_ids(body)) for body in bodies)
    assert b"".join(out) == expected
    assert (emitted.ids, emitted.pending, emitted.tokens) == (slow.ids, slow.pending, slow.tokens)
    assert emitted.keep() == slow.keep() or emitted.missing == slow.missing


_USUAL = _wire(b"word", b"[77]")
_TRAPS = [
    _USUAL.replace(b"[77]", b'[78]}],"usage":{"prompt_tokens":1},"choices":[{"finish_reason":null,"token_ids":[79]'),
    _USUAL.replace(b"word", b"a\n\ndata: [DONE]\n\nb"),
    _USUAL.replace(b"word", b'say \\"hi\\"'),
    _USUAL.replace(b"word", b"\\\\"),
    _USUAL.replace(b"word", b'\\"},\\"finish_reason\\":null,\\"token_ids\\":[9]'),
    _USUAL.replace(b"null,", b'"stop",'),
    _USUAL.replace(b"null,", b'"abort",'),
    _USUAL + _wire(b"two", b"[5]"),
    _USUAL + _wire(b'say \\"three\\"', b"[6]") + _wire(b"four", b"[7]"),
    _USUAL + _wire(b"", b"[5]") + _USUAL,
    _USUAL + b": ping\n\n" + _USUAL,
    _USUAL[:-1],
    _USUAL[:50],
    _USUAL[50:],
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b'data: {"error":{"message":"no"}}\n\n',
    b": ping\n\n",
    b"data: [DONE]\n\n",
    b"\n",
    b"",
]


def _through(pieces, attached):
    """What a client gets of these reads, and what is noted: by the fast way where it may be, or each looked at."""
    out, emitted = [], Emitted()
    stream = ToldStream(True, True, Wants(usage=True, ids=True), emitted)
    stream.report_at = 1000

    def slowly(wire, body, whole, last):
        out.append(stream.feed(wire, body, whole, last))

    data = taking(stream.attach(out.append, slowly, lambda: None)) if attached else slowly
    for body in pieces[:-1]:
        data(b"%x\r\n%b\r\n" % (len(body), body), body, True, False)
    body = pieces[-1]
    data(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), body, True, True)
    return (
        b"".join(out),
        bytes(emitted.ids),
        bytes(emitted.pending),
        emitted.tokens,
        stream.events,
        stream.trouble,
        stream.usage,
        stream.done,
    )


@given(st.lists(st.one_of(st.just(_USUAL), st.sampled_from(_TRAPS)), max_size=16))
def test_no_trap_tells_the_fast_way_from_the_slow_way(pieces):
    pieces = [_wire(b"first", b"[1]"), _wire(b"second", b"[2]"), *pieces]
    assert _through(pieces, True) == _through(pieces, False)


def test_several_usual_events_in_one_read_are_not_looked_at():
    """As on a busy machine: they are cut in one pass, be there a quotation mark in a text or not."""
    slow, out = [], []
    stream = ToldStream(True, True, Wants(usage=True, ids=True), Emitted())
    stream.report_at = 1000
    data = taking(stream.attach(out.append, lambda *read: (slow.append(read), out.append(stream.feed(*read))), lambda: None))
    events = [_wire(b"one", b"[1]"), _wire(b"two", b"[2]"), _wire(b'say \\"three\\"', b"[3]"), _wire(b"four", b"[4]")]
    for body in (events[0], b"".join(events[1:]), b"".join(events)):
        data(b"%x\r\n%b\r\n" % (len(body), body), body, True, False)
    assert len(slow) == 1
    shown = [without_ids(event) for event in events]
    bodies = [shown[0], b"".join(shown[1:]), b"".join(shown)]
    assert b"".join(out) == b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)
    assert stream.emitted.ids == b"1,2,3,4,1,2,3,4,"
    assert stream.events == stream.emitted.tokens == 8


def test_the_usual_event_takes_the_fast_way():
    slow = []
    stream = ToldStream(True, True, Wants(usage=True, ids=True), Emitted())
    stream.report_at = 1000
    data = taking(stream.attach(lambda _: None, lambda *read: (slow.append(read), stream.feed(*read)), lambda: None))
    for number in range(20):
        body = _wire(b"t%d" % number, b"[%d]" % number)
        data(b"%x\r\n%b\r\n" % (len(body), body), body, True, False)
    assert len(slow) == 1
    assert stream.events == stream.emitted.tokens == 20


def test_running_usage_is_taken_out_and_the_last_is_what_counts():
    def usage(tokens):
        return b',"usage":{"prompt_tokens":9,"total_tokens":%d,"completion_tokens":%d}' % (9 + tokens, tokens)

    out = []
    stream = ToldStream(True, True, Wants(usage=True, running_usage=True), Emitted())
    stream.report_at = 1000
    data = taking(stream.attach(out.append, lambda *read: out.append(stream.feed(*read)), lambda: None))
    for number in range(1, 6):
        body = _wire(b"t%d" % number, b"null", usage(number))
        data(b"%x\r\n%b\r\n" % (len(body), body), body, True, False)
    shown = b"".join(out)
    assert b"usage" not in shown
    assert shown.count(b"t5") == 1
    counted = stream.counted()
    assert (counted.prompt_tokens, counted.output_tokens, counted.exact) == (9, 5, True)


# -- bounds --------------------------------------------------------------------------------------------------------------------------


def test_second_tries_are_a_share_of_requests_in_the_long_run():
    budget = RetryBudget()
    assert sum(budget.take() for _ in range(RETRY_BURST + 10)) == RETRY_BURST
    taken = 0
    for _ in range(1000):
        budget.arrived_total += 1
        taken += budget.take()
    assert taken == pytest.approx(1000 * RETRY_SHARE, abs=1)


def test_ids_are_held_within_a_bound():
    held = HeldIds(100)
    assert held.grow(60)
    assert not held.grow(60)
    assert held.held_bytes == 60


def test_a_plan_needs_to_know_how_much_may_come():
    raw = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
    assert plan(raw, b"/v1/chat/completions", decode(raw), None) == "neither max_tokens nor the model's context is known"
    made = plan(raw, b"/v1/chat/completions", decode(raw), 100)
    emitted = _log(_event("", (), list(range(50))), *[_event("x", (1,)) for _ in range(50)])
    assert made.left(emitted, 50) == 0
    assert json.loads(made.body(emitted, 20))["max_tokens"] == 30


@pytest.mark.parametrize("strings", [["x" * (STOP_CHARS_MAX + 1)], ["x"] * (STOPS_MAX + 1)], ids=["long", "many"])
def test_an_answer_is_not_continued_where_its_stop_strings_are_too_much_to_follow(strings):
    """Whether it ends inside one is asked with each beginning of each: of one of 8 MB that would never have ended."""
    stops = Stops(strings, in_output=True)
    assert not stops.straddled
    assert _log(ROLE, _event("a", (1,)), _event("b", (2,)), stops=stops).keep() == stops.unfollowed
    assert "64 stop strings" in stops.unfollowed
    assert not Stops(["x" * STOP_CHARS_MAX] * STOPS_MAX, in_output=True).unfollowed
