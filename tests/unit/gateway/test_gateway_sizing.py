"""Prompts are sized by the model's tokenizer where there is one; images and audio by what they cost, never by their base64."""

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway import counting as counting_module
from forebay.gateway.counting import EXACT_CHARS_MAX
from forebay.gateway.media import CODED_BYTES_PER_S, UNKNOWN_AUDIO_S, WAV_BYTES_PER_S, media_of
from forebay.gateway.sizing import Sizing
from forebay.spec.types import EngineKind, Estimate, Model, Pool, Spec, Tier

PIXELS = base64.b64encode(b"\x89PNG" + bytes(range(256)) * 400).decode()


def chat(*parts):
    return json.dumps({"model": "llama", "messages": [{"role": "user", "content": list(parts)}]}).encode()


def text(words):
    return {"type": "text", "text": words}


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def audio(data, form):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": form}}


class Letters:
    """A tokenizer of one token a letter."""

    def __init__(self):
        self.asked = []

    def count(self, words):
        self.asked.append(words)
        return len(words)


def sizing(**cost):
    made = Sizing(Estimate(**cost))
    made.counter = Letters()
    return made


def test_plain_text_is_not_looked_into():
    body = chat(text("an image and some audio, if you please"))
    assert Sizing(Estimate()).look(body) is None


@pytest.mark.parametrize("spaces", [True, False])
def test_images_cost_what_they_are_configured_to_and_their_bytes_are_no_text(spaces):
    parts = [text("what is this?"), image(f"data:image/png;base64,{PIXELS}"), image("https://example.com/cat.png"), text("and this?")]
    value = {"model": "llama", "messages": [{"role": "user", "content": parts}]}
    body = json.dumps(value).encode() if spaces else msgspec.json.encode(value)
    sized = Sizing(Estimate(image_tokens=576)).look(body)
    assert sized.media_tokens == 2 * 576
    assert sized.text_bytes == len(body) - len(PIXELS)


def test_every_apis_form_of_an_image_is_known():
    anthropic = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXELS}}
    responses = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXELS}"}
    for part in (anthropic, responses, image(f"data:image/jpeg;base64,{PIXELS}")):
        media = media_of(chat(text("x"), part, part))
        assert (media.images, media.payload_bytes, media.audio_s) == (2, 2 * len(PIXELS), 0.0)


def test_audio_costs_by_its_length():
    wav, mp3 = b"RIFF" + bytes(int(4 * WAV_BYTES_PER_S)), bytes(int(10 * CODED_BYTES_PER_S))
    media = media_of(chat(audio(wav, "wav"), text("?"), audio(mp3, "mp3")))
    assert media.audio_s == pytest.approx(14.0, rel=0.01)
    assert media.images == 0
    by_uri = {"type": "audio_url", "audio_url": {"url": "data:audio/mp3;base64," + base64.b64encode(mp3).decode()}}
    assert media_of(chat(by_uri)).audio_s == pytest.approx(10.0, rel=0.01)
    assert media_of(chat({"type": "audio_url", "audio_url": {"url": "https://example.com/a.mp3"}})).audio_s == UNKNOWN_AUDIO_S
    assert Sizing(Estimate(audio_tokens_per_s=10.0)).look(chat(audio(mp3, "mp3"))).media_tokens == pytest.approx(100, abs=1)


@given(st.lists(st.sampled_from([b"base64", b";base64,", b'"data":"', b'"', b'_url"', b"input_audio", b"UklG", b"\\", b"x" * 40, b"{}"])))
def test_whatever_the_bytes_are_the_payload_is_part_of_them(pieces):
    body = b"".join(pieces)
    media = media_of(body)
    assert 0 <= media.payload_bytes <= len(body)
    assert media.audio_s >= 0.0


def test_texts_are_counted_in_every_form():
    for value, letters, messages in (
        ({"messages": [{"role": "user", "content": "abcd"}, {"role": "assistant", "content": "ef"}]}, len("abcd\nef"), 2),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "abcd"}]}], "system": "sys"}, len("abcd\nsys"), 1),
        ({"prompt": "abcdef"}, 6, 1),
        ({"prompt": ["abc", "de"]}, len("abc\nde"), 1),
        ({"prompt": [1, 2, 3]}, 3, 1),
        ({"prompt": [[1, 2], [3]]}, 3, 1),
        ({"input": "abc", "instructions": "be kind"}, len("be kind\nabc"), 1),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "abc"}]}, {"type": "reasoning"}]}, 3, 2),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, len('a\n[{"type":"function"}]'), 1),
    ):
        sized = sizing().look(msgspec.json.encode(value))
        assert (sized.counted_tokens, sized.messages) == (letters, messages), value


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"messages":7}', b'{"messages":[{"content":{"a":1}}]}', b"\xff", b'{"query":"x"}'])
def test_a_body_of_another_form_is_estimated_by_its_bytes(body):
    assert sizing().look(body).counted_tokens is None


def test_of_a_long_prompt_only_samples_are_counted():
    sizes = sizing()
    sized = sizes.look(msgspec.json.encode({"prompt": "ab" * 500_000}))
    assert sized.counted_tokens == 1_000_000
    assert sum(map(len, sizes.counter.asked)) == EXACT_CHARS_MAX


IDS = list(range(30_000))


@pytest.mark.parametrize("spaces", [False, True])
@pytest.mark.parametrize("prompt", [IDS, [IDS[:10_000], IDS[:20_000]], [[number, number] for number in range(15_000)]])
def test_many_token_ids_are_counted_without_being_decoded(prompt, spaces, monkeypatch):
    """4 million of them held the loop for 0.6 s."""
    decoded = []
    monkeypatch.setattr(counting_module, "_decode_prompt", lambda raw: decoded.append(len(raw)))
    for value in ({"prompt": prompt}, {"prompt": prompt, "model": "m", "stop": ["]"]}, {"model": "prompt", "prompt": prompt}):
        body = json.dumps(value).encode() if spaces else msgspec.json.encode(value)
        assert sizing().look(body).counted_tokens == 30_000
    assert max(decoded) <= counting_module.LIST_BYTES_MAX


def test_what_is_not_ids_alone_is_counted_as_text_or_estimated_by_its_bytes():
    texts = ["ab" * 50_000, 'say "x"' * 1000]
    assert sizing().look(msgspec.json.encode({"prompt": texts})).counted_tokens == len("\n".join(texts))
    for prompt in (["a", *IDS], [*IDS, "a"], ["a"] * 30_000, [[77_777] * 30_000, "a", [[]]], {"a": IDS}):
        assert sizing().look(msgspec.json.encode({"prompt": prompt})).counted_tokens is None, prompt[:1]
    inside = {"messages": [{"role": "user", "content": "abcd", "prompt": IDS}]}
    assert sizing().look(msgspec.json.encode(inside)).counted_tokens in {None, 4}


def pool_spec(**cost):
    tiers = (Tier("interactive", rank=0, ttft_s=1.0, longest_wait_s=30.0),)
    return Spec((Pool("chat", "llama", EngineKind("attach"), estimate=Estimate(**cost)),), (Model("llama", 8192),), tiers)


def counting(prompt_tokens):
    async def script(_, answer):
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 7, "total_tokens": prompt_tokens + 7}
        answer.json(200, {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage})

    return script


def test_a_counted_prompt_is_estimated_to_the_token_once_its_template_is_known(world):
    async def test(front):
        pool = front.gateway.desk.pools["chat"]
        pool.sizing.counter = Letters()
        ask = {"model": "llama", "messages": [{"role": "user", "content": "x" * 300}]}
        first = front.counts().arrived_prompt_tokens
        for _ in range(120):
            await front.ask(ask)
            first, before = front.counts().arrived_prompt_tokens, first
        assert first - before == 312

    world(test, counting(312), spec=pool_spec())


def test_an_image_teaches_nothing_of_text_and_takes_what_it_is_configured_to(world):
    """A picture of 100 kB was taken for 30,000 tokens of prompt, and made the learned bytes per token worse for everybody."""

    async def test(front):
        ask = {"model": "llama", "messages": [{"role": "user", "content": [text("?"), image(f"data:image/png;base64,{PIXELS}")]}]}
        await front.ask(ask)
        assert 600 <= front.counts().arrived_prompt_tokens <= 700
        for _ in range(20):
            await front.ask(ask)
        plain = front.gateway.desk.estimator.shape("anonymous", "llama", 3500, None, 1, 8192)
        assert plain.prompt_tokens == 1000
        assert plain.output_tokens < 100, "lengths of answers are learned"

    world(test, counting(620), spec=pool_spec(image_tokens=576))


def test_how_wrong_estimates_were_is_told_by_model(world):
    async def test(front):
        for _ in range(4):
            await front.ask({"model": "llama", "messages": [{"role": "user", "content": "x" * 300}]})
        (errors,) = [pool.errors for pool in front.gateway.desk.pools.values()]
        assert [sum(part) for part in errors.counts] == [4, 4]
        page = front.gateway._pages._registry
        samples = {
            (sample.name, sample.labels.get("part"), sample.labels.get("le")): sample.value
            for family in page.collect()
            for sample in family.samples
            if sample.name.startswith("forebay_shape_error")
        }
        assert samples["forebay_shape_error_count", "prompt", None] == 4
        assert samples["forebay_shape_error_bucket", "output", "10.0"] < 4, "256 were expected at first, and 7 came"

    world(test, counting(100), spec=pool_spec())


def test_many_small_payloads_are_found_in_one_pass_over_the_body():
    """Each was followed by a search through all of the rest: a body of 8 MB held the gateway for minutes."""

    class Counting(bytes):
        read_bytes = 0

        def find(self, what, at=0, *rest):
            found = super().find(what, at, *rest)
            Counting.read_bytes += (len(self) if found < 0 else found) - at
            return found

    body = Counting(b'{"input_audio":[' + b'{"data":"AA"},' * 2000 + b"]}")
    found = media_of(body)
    assert found.payload_bytes == 4000
    assert Counting.read_bytes <= 2 * len(body)
