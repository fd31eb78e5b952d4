"""What a newcomer does first: `forebay up` with the quickstart, two keys, the `openai` client, `status`, `explain`, and Ctrl-C."""

import asyncio
import json
import signal
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("up quickstart")]
QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
MODEL = "llama-3.1-8b"
MESSAGES = [{"role": "user", "content": "Tell me of the river."}]


@pytest.fixture(scope="module")
def quickstart(up_module):
    return up_module(QUICKSTART).until_ready()


def sync_client(quickstart, key="sk-demo-interactive"):
    return openai.OpenAI(api_key=key, base_url=f"{quickstart.gateway}/v1", max_retries=0, timeout=45)


def test_it_says_where_it_is(quickstart):
    said = json.loads(quickstart.ready_file.read_text())
    assert said["gateway"].startswith("http://127.0.0.1:")
    assert said["admin"].startswith("http://127.0.0.1:")
    words = quickstart.output.read_text()
    assert "forebay: ready" in words
    assert said["gateway"] in words
    assert said["admin"] in words
    assert quickstart.ready(2)["desired"] == 2


@pytest.mark.parametrize("key", ["sk-demo-interactive", "sk-demo-batch"])
def test_both_keys_get_answers_with_their_usage(quickstart, key):
    with sync_client(quickstart, key) as client:
        whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=7, extra_body={"ignore_eos": True})
        assert whole.choices[0].finish_reason == "length"
        assert whole.choices[0].message.content
        assert whole.usage.completion_tokens == 7
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + 7
        text = client.completions.create(model=MODEL, prompt="Once", max_tokens=3, extra_body={"ignore_eos": True})
        assert text.usage.completion_tokens == 3


def test_a_stream_comes_in_pieces_and_ends(quickstart):
    with sync_client(quickstart) as client:
        chunks = list(
            client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=9, stream=True, extra_body={"ignore_eos": True})
        )
    pieces = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert len(pieces) == 9
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert all(chunk.usage is None for chunk in chunks), "nobody asked for it"


def test_many_streams_at_once(quickstart):
    async def main():
        async with quickstart.client() as one, quickstart.client("sk-demo-batch") as other:
            return await asyncio.gather(*(quickstart.stream(client, 20 + number) for number in range(10) for client in (one, other)))

    assert [stream for stream in asyncio.run(main()) if not stream.whole] == []


def test_the_models_are_listed(quickstart):
    with sync_client(quickstart) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


def test_a_wrong_key_and_an_unknown_model_are_the_clients_own_errors(quickstart):
    with sync_client(quickstart, "sk-wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert refused.value.status_code == 401
    with sync_client(quickstart) as client, pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert missing.value.code == "model_not_found"


def test_status_for_scripts(quickstart):
    done = quickstart.cli("status", "--state", str(quickstart.state), "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    status = json.loads(done.stdout)
    assert status["gateways"] == {"gateway-0": "ok"}
    (pool,) = status["pools"]
    assert (pool["pool"], pool["model"], pool["replicas"], pool["desired"]) == ("chat", MODEL, {"ready": 2}, 2)
    assert [row["state"] for row in pool["detail"]] == ["ready", "ready"]
    assert all(row["cold_start_s"] >= 1.0 and row["restarts"] == 0 for row in pool["detail"])
    assert pool["gpu_hours"] > 0


def test_status_for_people_finds_the_only_one_that_runs(quickstart):
    done = quickstart.cli("status")
    said = f"forebay: nothing runs in .forebay here; this is the only one on this machine: --state {quickstart.state}\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert "2 ready" in done.stdout
    assert "chat-1" in done.stdout


def test_explain_names_each_term_and_the_one_that_binds(quickstart):
    done = quickstart.cli("explain", "--state", str(quickstart.state), "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    (pool,) = json.loads(done.stdout)
    assert (pool["pool"], pool["desired"]) == ("chat", 2)
    for term in pool["terms"]:
        assert isinstance(term["name"], str)
        assert isinstance(term["replicas"], int)
        assert term["because"]
    binding = [term for term in pool["terms"] if term["binding"]]
    assert [term["name"] for term in binding] == ["min"]
    assert binding[0]["replicas"] == 2
    words = quickstart.cli("explain")
    assert "→" in words.stdout
    assert "never fewer than 2" in words.stdout


def test_explain_shows_what_was_decided_about_one_request(quickstart):
    with sync_client(quickstart) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=MESSAGES, max_tokens=7, extra_body={"ignore_eos": True}, extra_headers={"x-request-id": "asked-1"}
        )
    assert raw.headers["x-forebay-pool"] == "chat"
    asking = ("explain", "--request", "asked-1", "--state", str(quickstart.state), "--key")
    done = quickstart.cli(*asking, "sk-demo-interactive", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert (record["outcome"], record["output_tokens"], record["exact"]) == ("completed", 7, True)
    assert record["replica"] == raw.headers["x-forebay-replica"]
    assert "request asked-1: completed" in quickstart.cli(*asking, "sk-demo-interactive").stdout
    refused = quickstart.cli(*asking, "sk-wrong")
    assert refused.returncode == 2
    assert "--key" in refused.stderr


def test_explain_looks_back(quickstart, tmp_path):
    now = datetime.now(UTC)
    target = tmp_path / "then.json"
    done = quickstart.cli("explain", "--state", str(quickstart.state), "--at", now.isoformat(), "--pool", "chat", "--json", str(target))
    assert (done.returncode, done.stderr) == (0, "")
    (then,) = json.loads(target.read_text())
    assert then["desired"] == 2
    assert datetime.fromisoformat(then["at"]) <= now


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "yesterday"], "allowed: an ISO time such as"),
        (["--at", "2001-01-01"], "nothing was decided yet at 2001-01-01T00:00:00Z"),
        (["--pool", "nope"], "pool: found 'nope'; allowed: chat"),
    ],
)
def test_explain_says_what_it_can_not_explain(quickstart, words, said):
    done = quickstart.cli("explain", "--state", str(quickstart.state), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_its_metrics_are_prometheus_text(quickstart):
    def look():
        families = {}
        for address in (quickstart.gateway, quickstart.admin):
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{address}/metrics", timeout=20) as page:
                families |= {family.name: family for family in text_string_to_metric_families(page.read().decode())}
        return families, [sample.value for sample in families["forebay_replicas"].samples if sample.labels["state"] == "ready"]

    give_up_s = time.monotonic() + 30
    families, ready = look()
    while ready != [2.0] and time.monotonic() < give_up_s:  # on a busy machine a replica may be a moment from its first answer
        time.sleep(0.2)
        families, ready = look()
    assert ready == [2.0]
    assert sum(sample.value for sample in families["forebay_term_binding"].samples) == 1.0
    assert sum(sample.value for sample in families["forebay_gpu_seconds"].samples) > 0
    assert [
        sample for name, family in families.items() if "forebay" in name for sample in family.samples if sample.value != sample.value
    ] == []


def test_sigterm_lets_streams_end_and_leaves_nothing(quickstart):
    async def main():
        async with quickstart.client() as client:
            streams = await quickstart.begun(client, 4, 300)
            quickstart.census()
            quickstart.process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*streams)

    assert [stream for stream in asyncio.run(main()) if not stream.whole] == []
    assert quickstart.wait() == 0, quickstart.logs()
    assert quickstart.left() == []
    assert "forebay: stopping" in quickstart.output.read_text()
    assert quickstart.output.read_text().endswith("\nforebay: stopped\n")
    assert not (quickstart.state / "up.json").exists()
    gone = quickstart.cli("status")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "start one with `forebay up -c FILE`" in gone.stderr
