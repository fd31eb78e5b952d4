"""What hostile clients ask and hostile engines answer, drawn from a seed: mostly right, with absurd values, hurt bytes and odd cuts."""

import json
import random
from typing import Any

from forebay.testing.fake_engine import Seen

BIG = (2**31, 2**53, 2**63, 2**64, 2**70, 10**400, -(10**400))
ABSURD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 1.0, 5.5, -2.5, 1e308, "", "x", "5", "true", "NaN", [], {}, [1], [None], [[]], {"a": 1}, "é\u2028\0", ["x"] * 2000, *BIG,
)  # fmt: skip
FIELDS = (
    *(
        "model",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "service_tier",
        "stream_options",
        "stop",
        "messages",
    ),
    *("return_token_ids", "include_stop_str_in_output", "prompt", "input", "min_tokens", "temperature", "tools", "previous_response_id"),
)
PATHS = (
    *["/v1/chat/completions"] * 8, *["/v1/completions"] * 4, "/v1/responses", "/v1/responses", "/v1/messages", "/v1/messages", "/v1/embeddings", "/v1/rerank",
    "/v1/audio/speech", "/tokenize",
)  # fmt: skip
HEADERS = (
    *("x-stainless-read-timeout: 2", "x-stainless-read-timeout: nan", "x-stainless-read-timeout: 1e400", "x-forebay-deadline: -1"),
    *("x-forebay-deadline: 700", "x-forebay-deadline: 999999999999", "x-request-id: mine", "x-request-id: \udcff", "connection: close"),
    *("x-forebay-hop: abc", "x-forebay-hop-waited: 99999999999999999999", "x-forebay-hop-late: 1", "traceparent: " + "0" * 3000),
)
NUMBERS = (b"null", b"-1", b"1.5", b'"3"', b"1e400", b"9" * 30, b"9" * 400, b"9" * 5000, b"[]", b"{}", b"true", b"007", b"2147483648")
SPLICES = (
    b"\r\n", b"\n\n", b"\n", b"\r\n\r\n", b"0\r\n\r\n", b"\0", b"\xff\xfe", b'"', b"\\", b"\\u", b"{", b"}", b"[", b"data: ", b"data: [DONE]\n\n", b": ping\n\n",
    b'data: {"error":{"message":"no","code":%b}}\n\n', b'"finish_reason":"abort"', b'"finish_reason":"stop"', b"f" * 20 + b"\r\n", b"-1\r\n", b"transfer-encoding: chunked\r\n",
    b"content-length: 5\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", b"x: " + b"y" * 70_000 + b"\r\n", b"[" * 3000, b"z" * 5000,
)  # fmt: skip
TAILS = (
    b',"model":"llama"}', b',"model":7}', b',"stream":true,"stream":false}', b',"stre\\u0061m":true}', b',"stream_options":null}', b',"stream_options":{}}',
    b',"stream_options":{"include_usage":1}}', b',"return_token_ids":null}', b',"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b"} ", b"}\0", b"}}", b"", b',"a":NaN}',
    b',"a":"\xff"}', b',"stop":"' + b"s" * 90_000 + b'"}', b',"n":1.0}', b',"n":"2"}', b',"max_tokens":"5","max_tokens":7}',
)  # fmt: skip
CODES = (b"400", b"404", b"422", b"419", b"450", b"499", b"429", b"500", b"503", b"999", b"-1", b'"400"', b"null", b"1e3", b"9" * 40)


def asked(chance: random.Random, path: str) -> dict[str, Any]:
    """A body, mostly right."""
    body: dict[str, Any] = {"model": chance.choice(("llama", "llama", "llama", "alias", "tiny", "nobody"))}
    if "completions" in path or path == "/v1/messages":
        body |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path or "messages" in path else {"prompt": "hi"}
    else:
        body |= {"input": "hi"}
    if path == "/v1/responses" and chance.random() < 0.6:
        body |= {"background": chance.choice((True, True, True, "true", 1, "yes")), "request_id": chance.choice((None, "resp_1", "a/b", 7))}
    body |= {"stream": True} if chance.random() < 0.7 else {}
    body |= {"max_tokens": chance.randrange(1, 200)} if chance.random() < 0.5 else {}
    body |= {"stream_options": {"include_usage": True}} if chance.random() < 0.3 else {}
    for _ in range(chance.choice((0, 0, 0, 0, 1, 1, 2, 3))):
        body[chance.choice(FIELDS)] = chance.choice(ABSURD)
    if chance.random() < 0.05:
        del body["model"]
    if chance.random() < 0.05:
        body["service_tier"] = chance.choice(("batch", "flex", "interactive", "auto"))
    if chance.random() < 0.05:
        body["pad"] = "x" * chance.choice((70_000, 110_000, 250_000))
    return body


def token(chance: random.Random, path: str, number: int, ids: bool, running: bool) -> bytes:
    """One event of content."""
    if path == "/v1/responses":
        return (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"w","sequence_number":%d}\n\n' % number
        )
    if path == "/v1/messages":
        return b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"w"}}\n\n'
    text = chance.choice((b"word ", b"a", b"\\u00e9", b"\xc3\xa9", b"\xff")) if chance.random() < 0.1 else b"word "
    content = b'"delta":{"content":"%b"}' % text if "chat" in path else b'"text":"%b"' % text
    more = (
        b',"token_ids":[%b]'
        % (chance.choice((b"x", b'"5"', b"-4", b"007", b"9" * 5000)) if chance.random() < 0.02 else b"%d" % (100 + number))
        if ids
        else b""
    )
    usage = (
        b',"usage":{"prompt_tokens":5,"total_tokens":%d,"completion_tokens":%b}' % (5 + number, odd(chance, b"%d" % number))
        if running
        else b""
    )
    return (
        b'data: {"id":"c1","object":"o","created":1,"model":"llama","choices":[{"index":0,%b,"logprobs":null,"finish_reason":null%b}]%b}\n\n'
        % (content, more, usage)
    )


def odd(chance: random.Random, number: bytes) -> bytes:
    """A number, or sometimes what is none."""
    return chance.choice(NUMBERS) if chance.random() < 0.06 else number


def events(chance: random.Random, path: str, body: dict[str, Any], count: int) -> list[bytes]:
    """The events of a whole answer."""
    ids, running = bool(body.get("return_token_ids")), bool((body.get("stream_options") or {}).get("continuous_usage_stats"))
    told: list[bytes] = []
    if path == "/v1/responses":
        told.append(
            b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_%d","background":%b},"sequence_number":0}\n\n'
            % (chance.randrange(99), chance.choice((b"true", b"true", b"false", b"7")) if body.get("background") else b"false")
        )
    elif path == "/v1/messages":
        told.append(
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":%b,"output_tokens":1}}}\n\n'
            % odd(chance, b"7")
        )
    else:
        prompt = b',"prompt_token_ids":[1,2,3]' if ids else b""
        told.append(
            b'data: {"id":"c1","object":"o","created":%b,"model":"llama","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]%b}\n\n'
            % (odd(chance, b"1"), prompt)
        )
    told += [token(chance, path, number, ids, running) for number in range(count)]
    if chance.random() < 0.1:
        told.insert(chance.randrange(len(told) + 1), b'data: {"error":{"message":"no","type":null,"code":%b}}\n\n' % chance.choice(CODES))
    if path == "/v1/responses":
        told.append(
            b'event: x\ndata: {"type":"response.completed","response":{"id":"r","usage":{"input_tokens":%b,"output_tokens":%b}},"sequence_number":%b}\n\n'
            % (odd(chance, b"7"), odd(chance, b"4"), odd(chance, b"9"))
        )
    elif path == "/v1/messages":
        told.append(b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":%b}}\n\n' % odd(chance, b"7"))
        told.append(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    else:
        told.append(
            b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % chance.choice((b"stop", b"stop", b"length", b"abort"))
        )
        usage = b'{"prompt_tokens":%b,"completion_tokens":%b,"prompt_tokens_details":{"cached_tokens":%b}}' % tuple(
            odd(chance, each) for each in (b"7", b"4", b"2")
        )
        told += [b'data: {"choices":[],"usage":%b}\n\n' % usage] if body.get("stream_options") else []
        told += [b"data: [DONE]\n\n"] if chance.random() < 0.95 else []
    return told


def kept(chance: random.Random, path: str) -> bytes:
    """A response as it stands: told at once, or when it is asked for."""
    runs = chance.random() < (0.7 if path == "/v1/responses" else 0.4)
    status = chance.choice(
        (b"queued", b"in_progress") if runs else (b"completed", b"incomplete", b"failed", b"cancelled", b"odd", b"", b"\xff")
    )
    usage = b'{"input_tokens":%b,"output_tokens":%b}' % (odd(chance, b"7"), odd(chance, b"4")) if chance.random() < 0.6 else b"null"
    name = chance.choice((b"resp_%d" % chance.randrange(9), b"resp_%d" % chance.randrange(9), b"a/b", b""))
    return b'{"id":"%b","status":"%b","background":true,"error":%b,"usage":%b}' % (
        name,
        status,
        chance.choice((b"null", b"7", b"{}")),
        usage,
    )


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Hurt in one or two places."""
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            splice = chance.choice(SPLICES)
            data = data[:at] + (splice % chance.choice(CODES) if b"%b" in splice else splice) + data[at:]
        elif kind == 1:
            data = data[:at] + data[at + chance.randrange(1, 40) :]
        elif kind == 2:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 3:
            other = min(len(data), at + chance.randrange(200))
            data = data[:at] + data[at:other] * 2 + data[other:]
        else:
            data = data[:at]
    return data


def answer(chance: random.Random, seen: Seen) -> list[bytes]:
    """What an engine writes, in pieces."""
    path = seen.line.split(b" ")[1].decode("latin-1").partition("?")[0]
    try:
        body = json.loads(seen.body)
    except (ValueError, RecursionError):
        body = {}
    if not isinstance(body, dict):
        body = {}
    extra = chance.choice((b"", b"", b"", b"connection: close\r\n", b"x-a: " + b"b" * 3000 + b"\r\n", b"retry-after: soon\r\n"))
    early = chance.choice((b"", b"", b"", b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"))
    version = b"HTTP/1.0" if chance.random() < 0.03 else b"HTTP/1.1"
    if body.get("stream") in (True, "true") and chance.random() < 0.9:
        told = events(chance, path, body, chance.choice((0, 1, 3, 10, 60, 150)))
        head = early + b"%b 200 OK\r\ncontent-type: text/event-stream\r\n%btransfer-encoding: chunked\r\n\r\n" % (version, extra)
        parts = [head, *(b"%x\r\n%b\r\n" % (len(each), each) for each in told), b"0\r\n\r\n"]
    else:
        status = chance.choice((200, 200, 200, 200, 400, 404, 413, 422, 429, 499, 500, 503, 299, 777))
        usage = tuple(odd(chance, each) for each in (b"7", b"4", b"2"))
        said = (
            b'{"id":"a","choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":%b,"completion_tokens":%b,"prompt_tokens_details":{"cached_tokens":%b}}}'
            % usage
        )
        said = kept(chance, path) if path.startswith("/v1/responses") else said
        if chance.random() < 0.05:
            said = said[:1] + b'"pad":"' + b"x" * chance.choice((70_000, 1_100_000)) + b'",' + said[1:]
        if status != 200 and chance.random() < 0.8:
            said = b'{"error":{"message":"no","type":null,"param":null,"code":%b}}' % chance.choice(CODES)
        length = chance.choice((len(said), len(said), len(said), len(said), len(said), 0, len(said) + 5, 10**30, 3))
        parts = [
            early + b"%b %d OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (version, status, extra, length, said)
        ]
    if chance.random() < 0.25:
        parts = [mutated(chance, b"".join(parts))]
    if chance.random() < 0.5:
        data, parts = b"".join(parts), []
        while data:
            size = chance.choice((1, 7, 50, 300, 2000, 100_000))
            parts.append(data[:size])
            data = data[size:]
            if len(parts) > 200:
                parts.append(data)
                break
    return parts
