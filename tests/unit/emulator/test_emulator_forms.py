"""The emulator's endpoints besides chat and completions: the same work, in each one's own form."""

import asyncio
import json

import pytest

from forebay.emulator.behaviour import Behaviour
from forebay.emulator.engine_server import EngineServer
from forebay.emulator.forms import FORMS
from forebay.emulator.kept import KEPT_MAX
from forebay.testing.clock import LoopClock
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

TEXT = "x" * 400
FORM = b'--B\r\ncontent-disposition: form-data; name="model"\r\n\r\ntiny\r\n--B\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--B--\r\n'


def ask(serve, *asked, method="POST"):
    """The answers to one request after the other, on one engine."""

    async def main(world):
        client = await world.connect()
        answers = [await client.request(method if body is not None else "GET", path, body) for path, body in asked]
        return answers, await world.metrics()

    return serve(main)


def typed(response):
    return [
        (name.removeprefix("event: "), json.loads(data)) for name, _, data in (event.partition("\ndata: ") for _, event in response.events)
    ]


def test_a_response_whole_and_kept(serve):
    (answer, again, other), metrics = ask(
        serve, ("/v1/responses", {"input": TEXT, "max_output_tokens": 5}), ("/v1/responses/none", None), ("/v1/responses/none/cancel", {})
    )
    assert answer.json["usage"]["input_tokens"] == 100
    assert answer.json["usage"]["output_tokens"] == len(answer.json["output"][0]["content"][0]["text"].split()) == 5
    assert (again.status, other.status) == (404, 404)
    assert metrics["vllm:generation_tokens_total"] == 5


def test_a_kept_response_is_told_again(serve):
    async def main(world):
        client = await world.connect()
        told = (
            await client.request("POST", "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]})
        ).json
        assert (await client.request("GET", f"/v1/responses/{told['id']}")).json == told
        for number in range(KEPT_MAX):
            world.engine._generation.kept.put(str(number), b"{}", [])
        await client.request("POST", "/v1/responses", {"input": "a", "max_output_tokens": 1})
        assert (await client.request("GET", f"/v1/responses/{told['id']}")).status == 404

    serve(main)


def test_a_response_in_the_background_goes_on_and_is_told_when_asked(serve):
    """As vLLM was seen to: ``queued`` until it is whole, and no usage of what was cancelled."""

    async def main(world):
        client = await world.connect()
        asked = {"input": TEXT, "max_output_tokens": 40, "background": True}
        told = (await client.request("POST", "/v1/responses", asked)).json
        assert (told["status"], told["background"], told["usage"]) == ("queued", True, None)
        assert len(world.engine._generation.live) == 1
        kept, cancelled = f"/v1/responses/{told['id']}", (await client.request("POST", "/v1/responses", asked)).json["id"]
        assert (await client.request("GET", kept)).json == told
        answer = await client.request("POST", f"/v1/responses/{cancelled}/cancel", {})
        assert (answer.status, answer.json["status"], answer.json["usage"]) == (200, "cancelled", None)
        await asyncio.sleep(4.0)
        done = (await client.request("GET", kept)).json
        assert (done["status"], done["usage"]["output_tokens"]) == ("completed", 40)
        assert (await client.request("GET", f"/v1/responses/{cancelled}")).json["status"] == "cancelled"
        again = await client.request("POST", f"{kept}/cancel", {})
        assert (again.status, again.json["error"]["message"]) == (400, "Cannot cancel a synchronous response.")
        for previous, said in ((told["id"], True), (cancelled, False)):
            on = await client.request("POST", "/v1/responses", {"input": "a", "max_output_tokens": 1, "previous_response_id": previous})
            assert (on.json["usage"]["input_tokens"] > 100 + 40) is said, "what was said, and what was answered if it was"
        unkept = await client.request("POST", "/v1/responses", {**asked, "store": False})
        assert (unkept.status, unkept.json["error"]["param"]) == (400, "background")
        assert not world.engine._generation.live

    serve(main)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stream_in_the_background_ends_in_the_store_whoever_reads(serve, leaves):
    async def main(world):
        client = await world.connect()
        asked = {"input": TEXT, "max_output_tokens": 40, "background": True, "stream": True}
        if leaves:
            client.send("POST", "/v1/responses", asked)
            await asyncio.sleep(0.5)
            client.close()
        else:
            assert typed(await client.request("POST", "/v1/responses", asked))[-1][0] == "response.completed"
        await asyncio.sleep(4.0)
        (body,) = world.engine._generation.kept._bodies.values()
        assert (json.loads(body)["status"], json.loads(body)["usage"]["output_tokens"]) == ("completed", 40)
        assert not world.engine._generation.live

    serve(main)


def test_a_response_goes_on_from_one_that_this_engine_keeps_and_from_no_other(serve):
    """It was taken for the beginning of a conversation, wherever it was sent."""

    async def main(world):
        client = await world.connect()
        first = (await client.request("POST", "/v1/responses", {"input": TEXT, "max_output_tokens": 20})).json
        asked = {"input": TEXT, "max_output_tokens": 5, "previous_response_id": first["id"]}
        second = (await client.request("POST", "/v1/responses", asked)).json
        said = len(first["output"][0]["content"][0]["text"])
        assert 200 + said // 4 <= second["usage"]["input_tokens"] <= 201 + said // 4
        third = (await client.request("POST", "/v1/responses", {**asked, "previous_response_id": second["id"]})).json
        assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] + 100, "all that was said before is prompt"
        for stream in (False, True):
            lost = await client.request("POST", "/v1/responses", {**asked, "previous_response_id": "resp_x", "stream": stream})
            assert (lost.status, lost.json["error"]["message"]) == (404, "Response with id 'resp_x' not found.")

    serve(main)


def test_a_response_streams_a_token_an_event(serve):
    (answer,), _ = ask(serve, ("/v1/responses", {"input": TEXT, "max_output_tokens": 6, "stream": True}))
    events = typed(answer)
    assert answer.complete
    assert [data["type"] for _, data in events] == [name for name, _ in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [name for name, _ in events].count("response.output_text.delta") == 6
    text = "".join(data["delta"] for name, data in events if name.endswith("delta"))
    assert events[-1][1]["response"]["output"][0]["content"][0]["text"] == text


def test_a_message_whole_and_streamed(serve):
    asked = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4, "system": "x" * 40}
    (whole, stream, counted, wrong), _ = ask(
        serve,
        ("/v1/messages", asked),
        ("/v1/messages", {**asked, "stream": True}),
        ("/v1/messages/count_tokens", asked),
        ("/v1/messages", {"messages": []}),
    )
    assert whole.json["usage"] == {"input_tokens": 110, "output_tokens": 4}
    assert whole.json["stop_reason"] == "max_tokens"
    names = [name for name, _ in typed(stream)]
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert counted.json == {"input_tokens": 100}
    assert wrong.status == 400


@pytest.mark.parametrize(("fault", "last"), [("engine_dead", "error"), ("crash", None)])
def test_a_message_whose_engine_dies(serve, fault, last):
    async def main(world):
        client = await world.connect()
        client.send("POST", "/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 500, "stream": True})
        answer = await client.read(events_max=5)
        await world.fault(kind=fault)
        rest = await read_on(client)
        assert (last is not None and f"event: {last}" in rest) or (last is None and "message_stop" not in rest)
        assert len(answer.events) == 5

    async def read_on(client):
        got = b""
        try:
            while piece := await client.reader.read(65536):
                got += piece
        except ConnectionError:
            pass
        return got.decode()

    serve(main)


def test_pooled_answers(serve):
    (vectors, packed, ranks, scores, pooled), metrics = ask(
        serve,
        ("/v1/embeddings", {"input": [TEXT, "a"]}),
        ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c"]}),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
        ("/pooling", {"input": "a"}),
    )
    assert [len(row["embedding"]) for row in vectors.json["data"]] == [8, 8]
    assert vectors.json["usage"]["prompt_tokens"] == 101
    assert isinstance(packed.json["data"][0]["embedding"], str)
    assert [row["document"]["text"] for row in ranks.json["results"]] == ["b", "c"]
    assert len(scores.json["data"]) == 2
    assert len(pooled.json["data"][0]["data"]) == 8
    assert metrics["vllm:prompt_tokens_total"] >= 101


def test_sound_and_tokens(serve):
    (transcript, tokens), _ = ask(serve, ("/v1/audio/transcriptions", FORM), ("/tokenize", {"prompt": TEXT}))
    assert len(transcript.json["text"].split()) == 16
    assert tokens.json["count"] == 100


@pytest.mark.parametrize("path", sorted(FORMS))
def test_what_is_not_a_request_is_400(serve, path):
    (answer,), _ = ask(serve, (path, {"input": 5, "documents": 5, "messages": 5}))
    assert answer.status == (200 if "audio" in path else 400)


def test_an_engine_with_a_key_answers_below_v1_to_who_shows_it_as_vllm_does(profile):
    """Health and metrics are open, and so are its commands."""

    async def main():
        engine = EngineServer(profile, "tiny", LoopClock(), behaviour=Behaviour(api_keys=("sk-one", "sk-two")))
        port = await engine.start()
        client = await RawClient.connect(port)
        told = {}
        for path in ("/v1/models", "/health", "/metrics", "/emulator/fault", "/v1/nothing"):
            for shown in ("", "Bearer sk-one", "bearer sk-two", "Bearer sk-three", "Basic sk-one"):
                told[path, shown] = (await client.ask(path, headers={"authorization": shown} if shown else None)).status
        refused = await client.ask("/v1/chat/completions", {"model": "tiny", "messages": []})
        client.close()
        await engine.stop()
        return told, (refused.status, refused.json())

    told, refused = run(main)
    assert refused == (401, {"error": "Unauthorized"})
    good = {"Bearer sk-one", "bearer sk-two"}
    for (path, shown), status in told.items():
        if path.startswith("/v1/"):
            assert status == (401 if shown not in good else 404 if path == "/v1/nothing" else 200), (path, shown)
        else:
            assert status == 200
