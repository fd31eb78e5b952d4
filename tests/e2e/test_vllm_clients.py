"""The official clients of OpenAI and Anthropic against a real vLLM behind the gateway: `make test-vllm`, and no part of `make test`.

One engine is started and attached, with tools and its store of responses on. The tiny model's words mean nothing, so what is
looked at is what the clients' own types make of the answers, and that the usage is vLLM's.
"""

import anthropic
import openai
import pytest

KEY = "sk-of-a-client-0123456789"
OPTIONS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
CONFIG = """
models: {{tiny: {{context: 2048}}}}
teams: {{search: {{keys: [{{key: {key}, tier: interactive}}]}}}}
pools:
  chat: {{model: tiny, attach: ["{url}"]}}
gateway: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
"""
MESSAGES = [{"role": "user", "content": "Hello there"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    },
}
LONG = {"extra_body": {"ignore_eos": True}}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
]


def chats(client):
    """Whole, in two choices, as a stream."""
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, **LONG)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 8)
    both = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, n=2, **LONG)
    assert [(each.index, each.finish_reason) for each in both.choices] == [(0, "length"), (1, "length")]
    assert both.usage.completion_tokens == 16
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, n=2, **options, **LONG))
    ends = {each.index: each.finish_reason for chunk in chunks for each in chunk.choices if each.finish_reason}
    assert ends == {0: "length", 1: "length"}
    assert [chunk.usage.completion_tokens for chunk in chunks if not chunk.choices] == [16]
    (text,) = client.completions.create(model="tiny", prompt="def f(x):", max_tokens=5, **LONG).choices
    assert text.finish_reason == "length"


def called(client):
    """What the engine calls a tool with, asked whole and as a stream."""
    chosen = {"type": "function", "function": {"name": "weather"}}
    asked = {"model": "tiny", "messages": MESSAGES, "tools": [WEATHER], "tool_choice": chosen, "max_tokens": 40, "temperature": 0}
    (whole,) = client.chat.completions.create(**asked).choices[0].message.tool_calls
    name, arguments = "", ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        for each in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            name += each.function.name or ""
            arguments += each.function.arguments or ""
    return (whole.function.name, whole.function.arguments), (name, arguments)


def tools(client, direct):
    """The same as past the gateway: what this model says makes no sense, and is no sure JSON."""
    through, past = called(client), called(direct)
    assert through == past
    assert through[0][0] == through[1][0] == "weather"
    asked = {"model": "tiny", "messages": MESSAGES, "tools": [WEATHER], "max_tokens": 8}
    assert client.chat.completions.create(**asked, tool_choice="auto", **LONG).choices[0].finish_reason == "length"


def responses(client):
    """Created, asked for again, gone on from, streamed."""
    made = client.responses.create(model="tiny", input="Hello there", max_output_tokens=16)
    assert (made.object, made.usage.output_tokens > 0) == ("response", True)
    assert client.responses.retrieve(made.id).id == made.id
    more = client.responses.create(model="tiny", input="And more", previous_response_id=made.id, max_output_tokens=16)
    assert more.previous_response_id == made.id
    assert more.usage.input_tokens > made.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none")
    kinds = [event.type for event in client.responses.create(model="tiny", input="Hello", max_output_tokens=16, stream=True)]
    assert kinds[0] == "response.created"
    assert kinds[-1] in {"response.completed", "response.incomplete"}


def messages(client):
    """Whole and as a stream."""
    whole = client.messages.create(model="tiny", messages=MESSAGES, max_tokens=8)
    assert (whole.type, whole.role, whole.usage.output_tokens > 0) == ("message", "assistant", True)
    with client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=8) as stream:
        last = stream.get_final_message()
    assert last.stop_reason in {"max_tokens", "end_turn"}
    assert client.messages.count_tokens(model="tiny", messages=MESSAGES).input_tokens > 0
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="another", messages=MESSAGES, max_tokens=8)


def test_the_official_clients_are_served_by_a_real_vllm(up, real_vllm):
    vllm = real_vllm(*OPTIONS, VLLM_ENABLE_RESPONSES_API_STORE="1")
    fleet = up(CONFIG.format(url=vllm, key=KEY)).until_ready()
    fleet.ready(1)
    url = fleet.gateway
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
        chats(client)
        with openai.OpenAI(base_url=f"{vllm}/v1", api_key="none", max_retries=0, timeout=120) as direct:
            tools(client, direct)
        responses(client)
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=120) as client:
        messages(client)
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="sk-wrong", max_retries=0, timeout=120) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
