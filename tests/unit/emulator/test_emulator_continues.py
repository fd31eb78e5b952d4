"""Token ids: what is told of them, and that another engine goes on exactly where one stopped."""

import asyncio

import pytest

CHAT = {"messages": [{"role": "user", "content": "a prompt of some length"}], "max_tokens": 40, "stream": True}
OPTIONS = {"include_usage": True}


def _ids(answer):
    return [token for chunk in answer.chunks for choice in chunk["choices"] for token in choice.get("token_ids") or []]


def _text(answer):
    return "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for chunk in answer.chunks
        for choice in chunk["choices"]
    )


async def _post(world, path, body):
    client = await world.connect()
    return await client.request("POST", path, body)


@pytest.mark.parametrize("cut", [1, 17, 39])
def test_an_answer_goes_on_from_token_ids_as_if_never_stopped(serve, cut):
    async def main(world):
        whole = await _post(world, "/v1/chat/completions", {**CHAT, "return_token_ids": True})
        prompt = whole.chunks[0]["prompt_token_ids"]
        ids = _ids(whole)
        rest = await _post(
            world,
            "/v1/completions",
            {"prompt": [*prompt, *ids[:cut]], "max_tokens": 40 - cut, "stream": True, "return_token_ids": True},
        )
        return whole, ids, rest

    whole, ids, rest = serve(main)
    assert len(ids) == 40
    assert ids[cut:] == _ids(rest)
    assert _text(whole).endswith(_text(rest))
    assert rest.chunks[0]["choices"][0]["prompt_token_ids"][-cut:] == ids[:cut]


def test_nothing_is_told_that_was_not_asked_for(serve):
    async def main(world):
        return await _post(world, "/v1/chat/completions", CHAT)

    answer = serve(main)
    assert answer.chunks[0]["prompt_token_ids"] is None
    assert _ids(answer) == []
    assert all(chunk.get("usage") is None for chunk in answer.chunks)


def test_running_usage_is_on_every_event(serve):
    async def main(world):
        return await _post(world, "/v1/chat/completions", {**CHAT, "stream_options": {**OPTIONS, "continuous_usage_stats": True}})

    answer = serve(main)
    assert [chunk["usage"]["completion_tokens"] for chunk in answer.chunks] == [*range(41), 40]


def test_several_tokens_in_an_event_on_command(serve):
    async def main(world):
        await world.fault(kind="merge", tokens=7)
        return await _post(world, "/v1/chat/completions", {**CHAT, "return_token_ids": True})

    counts = [len(choice["token_ids"]) for chunk in serve(main).chunks[1:] for choice in chunk["choices"]]
    assert sum(counts) == 40
    assert max(counts) == 7


def test_an_abort_on_command_is_polite_and_the_engine_lives(serve):
    async def main(world):
        asked = asyncio.create_task(world.chat(200))
        await asyncio.sleep(0.2)
        await world.fault(kind="abort")
        return await asked, await world.chat(3)

    aborted, after = serve(main)
    assert aborted.finish == ["abort"]
    assert aborted.events[-1][1] == "[DONE]"
    assert after.finish == ["length"]


def test_a_cut_on_command_spares_the_engine(serve):
    async def main(world):
        asked = asyncio.create_task(world.chat(200))
        await asyncio.sleep(0.2)
        await world.fault(kind="cut")
        return await asked, await world.chat(3)

    cut, after = serve(main)
    assert not cut.complete
    assert cut.finish == []
    assert after.finish == ["length"]


def test_a_connection_is_closed_after_a_stream_on_command_though_it_was_promised(serve):
    async def main(world):
        await world.fault(kind="close")
        client = await world.connect()
        answer = await client.chat(3)
        return answer, await client.reader.read()

    answer, rest = serve(main)
    assert answer.complete
    assert "connection" not in answer.headers
    assert rest == b""
