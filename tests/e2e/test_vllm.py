"""`forebay up` over two real vLLM replicas on the CPU: `make test-vllm`, some minutes, and no part of `make test`.

One story is played once, with `examples/vllm-cpu.yaml` as it ships: a start, clients, a load that goes past the gateway,
a second replica, a drain under streams, an end under streams. Each promise is a test of its own over what was seen.
Nothing here asks for speed: every wait polls a condition, and the machine may be busy.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from forebay.app import config

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "vllm-cpu.yaml"
VLLM = ROOT / ".venv-vllm"
FOREBAY = (sys.executable, "-m", "forebay.cli.main")
MODEL = "tiny"
CHAT = "/v1/chat/completions"
START_S = 600.0
"""A start takes 40 s on quiet cores and was seen to take 155 s on busy ones."""
SOON_S = 120.0
STREAM_TOKENS = 800
"""Four of them on one engine leave its KV below the scale-out threshold."""
LAST_TOKENS = 1500
"""Long enough to be under way still when SIGTERM comes."""
PAST_THE_GATEWAY = 16
PAST_TOKENS = 700
"""So many requests of so many tokens are kept in flight at an engine with four places. On a starved machine clients may stand
still for seconds, and the queue must outlast that."""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.skipif(not any(VLLM.glob(".installed-*")), reason="no real vLLM is installed: `make test-vllm` installs it and runs this"),
]


@dataclass
class Stream:
    """One streamed answer, as its client saw it."""

    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    token_ids: int = 0
    finish: str | None = None
    usage_tokens: int | None = None
    error: str = ""

    def whole(self, tokens: int) -> bool:
        return (self.token_ids, self.finish, self.usage_tokens, self.error) == (tokens, "length", tokens, "")


@dataclass
class Story:
    """What was seen."""

    seen: dict[str, Any] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of vLLM and of the emulator, by occasion."""
    streams: list[Stream] = field(default_factory=list)
    last_streams: list[Stream] = field(default_factory=list)


# -- a running Forebay ---------------------------------------------------------------------------------------------------


def shared_memory() -> set[str]:
    """Names of the blocks that Python processes share: vLLM's are 400 MB an engine, and outlive a process that is killed."""
    return {path.name for path in Path("/dev/shm").glob("psm_*")}


class Up:
    """`forebay up` as a process, with everything that it has started."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.ready_file = folder / "ready.json"
        self.output = folder / "up.log"
        self.shared_memory = shared_memory()
        self.begun_s = time.monotonic()
        command = [*FOREBAY, "up", "-c", str(EXAMPLE), "--ready-file", str(self.ready_file), "--state", str(self.state)]
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.descendants: dict[int, psutil.Process] = {}

    def census(self) -> None:
        """Remember every process below."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                self.descendants.setdefault(process.pid, process)

    def left(self) -> list[str]:
        """What still runs of all that was ever seen."""
        found = []
        for process in self.descendants.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.name()}")
        return found

    async def until(self, what: str, seconds: float, look: Callable[[], Awaitable[Any]]) -> Any:
        """The first true answer of ``look``."""
        give_up_s = time.monotonic() + seconds
        while not (found := await look()):
            self.census()
            assert self.process.poll() is None, f"{what}: forebay up has ended with {self.process.returncode}{self.logs()}"
            assert time.monotonic() < give_up_s, f"{what}: not within {seconds:.0f} s{self.logs()}"
            await asyncio.sleep(1.0)
        return found

    def logs(self) -> str:
        files = [self.output, *sorted((self.state / "logs").glob("*.log"))]
        return "".join(f"\n== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]) for path in files)

    @property
    def gateway(self) -> str:
        return json.loads(self.ready_file.read_bytes())["gateway"]

    async def admin(self, path: str) -> Any:
        return json.loads(await fetch(json.loads(self.ready_file.read_bytes())["admin"] + path))

    async def replicas(self, state: str = "") -> list[dict[str, Any]]:
        """As `forebay status` shows them."""
        detail = (await self.admin("/v1/status"))["pools"][0]["detail"]
        return [replica for replica in detail if state in ("", replica["state"])]

    async def explain(self, *arguments: str) -> Any:
        """`forebay explain --json -`, as people run it."""
        command = [*FOREBAY, "explain", "--json", "-", "--state", str(self.state), *arguments]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=SOON_S, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)[0]

    async def scaled_s(self, words: str) -> float | None:
        """Unix time of the decision ``words``, such as ``1 → 2``."""
        events = await self.admin("/v1/events?limit=1000")
        return next((event["wall_s"] for event in events if event["kind"] == "scale" and event["message"].startswith(words)), None)

    def end(self) -> None:
        """Whatever happened before, nothing is left."""
        self.census()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        self.process.kill()
        self.process.wait()
        for process in self.descendants.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


async def fetch(url: str, body: bytes | None = None, method: str | None = None) -> bytes:
    """The answer's body, whatever its status."""

    def read() -> bytes:
        request = urllib.request.Request(url, body, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SOON_S) as answer:
                return answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.read()

    return await asyncio.to_thread(read)


async def page(url: str) -> str:
    return (await fetch(url + "/metrics")).decode()


async def asked_for_its_models(url: str) -> bool:
    return 'handler="/v1/models"' in await page(url)


def gauge(text: str, name: str) -> float:
    return labelled(text, f"vllm:{name}", "engine=")


def labelled(text: str, name: str, label: str) -> float:
    """The first sample of ``name`` with ``label`` in it; 0 where there is none."""
    found = (float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}{{") and label in line)
    return next(found, 0.0)


async def page_under_load(url: str) -> str:
    """The page, if all places are taken and more than three requests wait; else nothing."""
    text = await page(url)
    return text if gauge(text, "num_requests_running") == 4 and gauge(text, "num_requests_waiting") > 3 else ""


# -- clients -------------------------------------------------------------------------------------------------------------


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=START_S)


def ask(tokens: int, **more: Any) -> dict[str, Any]:
    """Random weights rarely end by themselves, so the length is asked for."""
    extra = {"ignore_eos": True, "return_token_ids": True}
    return {"model": MODEL, "messages": [{"role": "user", "content": "Say something."}], "max_tokens": tokens, "extra_body": extra, **more}


async def streamed(openai: AsyncOpenAI, tokens: int, stream: Stream) -> Stream:
    """Read one streamed answer to its end; the engine tells each token's id, so tokens are counted and not events."""
    try:
        async with await openai.chat.completions.create(**ask(tokens, stream=True, stream_options={"include_usage": True})) as events:
            async for event in events:
                for choice in event.choices:
                    stream.token_ids += len((choice.model_extra or {}).get("token_ids") or ())
                    stream.finish = choice.finish_reason or stream.finish
                if event.usage is not None:
                    stream.usage_tokens = event.usage.completion_tokens
    except Exception as error:
        stream.error = f"{type(error).__name__}: {error}"
    stream.ended_s = time.monotonic()
    return stream


async def streaming(openai: AsyncOpenAI, enough: asyncio.Event, into: list[Stream]) -> None:
    """One client that asks anew each time most of its last answer is there, so that it is never without one; reads all to their ends."""
    tasks = []
    while not enough.is_set():
        stream = Stream()
        into.append(stream)
        tasks.append(asyncio.create_task(streamed(openai, STREAM_TOKENS, stream)))
        while not stream.ended_s and stream.token_ids < STREAM_TOKENS * 0.8:
            await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def load_past_the_gateway(url: str):
    """Keeps an engine's places taken and its queue long, straight at its own port."""
    enough = asyncio.Event()
    async with client(url) as direct:

        async def one() -> None:
            while not enough.is_set():
                await direct.chat.completions.create(**ask(PAST_TOKENS))

        tasks = [asyncio.create_task(one()) for _ in range(PAST_THE_GATEWAY)]
        try:
            yield
        finally:
            enough.set()
            await asyncio.gather(*tasks)


async def mixed(url: str) -> None:
    """A bit of everything that a client does, right and wrong."""
    messages = [{"role": "user", "content": "hello there"}]
    right: dict[str, Any] = {"model": MODEL, "ignore_eos": True}
    for path in ("/v1/models", "/version", "/load", "/health", "/ping", "/nowhere", CHAT):
        await fetch(url + path)
    bodies: tuple[tuple[str, dict[str, Any]], ...] = (
        (CHAT, {**right, "messages": messages, "max_tokens": 7}),
        (CHAT, {**right, "messages": messages, "max_tokens": 14, "stream": True}),
        (CHAT, {**right, "messages": messages, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}),
        ("/v1/completions", {**right, "prompt": "def f(x):", "max_tokens": 5}),
        (CHAT, {**right, "messages": messages, "max_tokens": 5000}),
        (CHAT, {**right, "model": "another", "messages": messages, "max_tokens": 5}),
    )
    for path, body in bodies:
        await fetch(url + path, json.dumps(body).encode())
    await fetch(url + CHAT, b'{"model"')


# -- the story -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def emulated(folder: Path) -> Iterator[str]:
    """The URL of an emulated engine with the example's profile."""
    profile = msgspec.json.encode(config.load(EXAMPLE).pools[0].profile).decode()
    ready = folder / "emulator.json"
    command = [sys.executable, "-m", "forebay.emulator", "--profile-json", profile, "--model", MODEL, "--ready-file", str(ready)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        give_up_s = time.monotonic() + SOON_S
        while not ready.exists():
            assert process.poll() is None, "the emulator did not start"
            assert time.monotonic() < give_up_s, "the emulator does not get ready"
            time.sleep(0.1)
        yield json.loads(ready.read_bytes())["urls"][0]
    finally:
        process.terminate()
        process.wait(30)


async def start(up: Up, story: Story) -> str:
    """The first replica's URL."""

    async def ready() -> bool:
        return up.ready_file.exists()

    await up.until("the first replica gets ready", START_S, ready)
    story.timings_s["first replica, from `forebay up` to accepted requests"] = time.monotonic() - up.begun_s
    story.seen["replicas at first"] = await up.replicas()
    return story.seen["replicas at first"][0]["url"]


async def talk(gateway: AsyncOpenAI, story: Story) -> None:
    whole = await gateway.chat.completions.create(**ask(40))
    story.seen["whole"] = (whole.choices[0].finish_reason, whole.usage and whole.usage.completion_tokens)
    story.seen["streamed"] = await streamed(gateway, 60, Stream())
    text, count = "", 0
    async with await gateway.chat.completions.create(**ask(25, stream=True)) as events:
        async for event in events:
            count += event.usage is not None
            text += "".join(choice.delta.content or "" for choice in event.choices)
    story.seen["streamed without usage"] = (text, count)
    story.seen["models"] = [model.id async for model in gateway.models.list()]


async def overload(up: Up, story: Story, engine: str, emulator: str) -> None:
    """Load past the gateway until a second replica is asked for; then wait for it."""

    async def both_ready() -> bool:
        return len(await up.replicas("ready")) == 2

    async with load_past_the_gateway(engine):
        begun_s = time.time()
        theirs = await up.until("four run and more wait", SOON_S, lambda: page_under_load(engine))
        decided_s = await up.until("the second replica is asked for", SOON_S, lambda: up.scaled_s("1 → 2"))
        story.seen["status under load"] = (await up.admin("/v1/status"))["pools"][0]
    story.timings_s["load past the gateway, to the decision"] = decided_s - begun_s
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(decided_s + 1))
    story.seen["explained"] = await up.explain("--at", moment)
    # The load has shown what it was there for. It ends here, since a loaded engine spins on both cores of a small machine, and
    # a start beside it took from two to more than six minutes; the example's calm is longer than a start on quiet cores.
    async with load_past_the_gateway(emulator):
        ours = await up.until("four run and more wait in the emulator", SOON_S, lambda: page_under_load(emulator))
    story.pages["under load"] = (theirs, ours)
    await up.until("the second replica gets ready", START_S, both_ready)
    story.timings_s["second replica, from the decision to ready"] = time.time() - decided_s
    story.seen["replicas at most"] = await up.replicas()


async def drain(up: Up, story: Story, gateway: AsyncOpenAI) -> None:
    """Streams on both replicas, again and again, until one of the two has left."""
    enough = asyncio.Event()
    # With two, the emptier replica has none now and then, just as it is chosen to leave.
    clients = [asyncio.create_task(streaming(gateway, enough, story.streams)) for _ in range(3)]
    permits: list[float] = []

    async def leaving() -> Any:
        return await up.replicas("draining")

    async def gone() -> bool:
        permits.append(labelled(await page(up.gateway), "forebay_permits", victim["id"]))
        return len(await up.replicas()) == 1

    try:
        begun_s = time.monotonic()
        victim = (await up.until("a replica drains", START_S, leaving))[0]
        drain_s = time.monotonic()
        story.timings_s["both ready and no queue, to the drain"] = drain_s - begun_s
        await up.until("the victim has left", START_S, gone)
        story.timings_s["drain, to the end of the victim's process"] = time.monotonic() - drain_s
    finally:
        enough.set()
        await asyncio.gather(*clients)
    story.seen["victim"] = (victim["id"], max(permits))
    story.seen["drained between"] = (drain_s, drain_s + story.timings_s["drain, to the end of the victim's process"])
    story.seen["replicas at last"] = await up.replicas()
    story.seen["events"] = await up.admin("/v1/events?limit=1000")


async def finish(up: Up, story: Story, gateway: AsyncOpenAI) -> None:
    """SIGTERM while streams run."""

    async def running() -> bool:
        return all(stream.token_ids or stream.error for stream in story.last_streams)

    story.last_streams = [Stream(), Stream()]
    last = [asyncio.create_task(streamed(gateway, LAST_TOKENS, stream)) for stream in story.last_streams]
    await up.until("the last streams run", SOON_S, running)
    up.census()
    story.seen["processes"] = [process.pid for process in up.descendants.values()]
    begun_s = time.monotonic()
    up.process.send_signal(signal.SIGTERM)
    story.seen["tokens at SIGTERM"] = [stream.token_ids for stream in story.last_streams]
    await asyncio.gather(*last)
    story.seen["exit code"] = await asyncio.to_thread(up.process.wait, START_S)
    story.timings_s["SIGTERM with two streams, to the exit"] = time.monotonic() - begun_s
    story.seen["left"] = [*up.left(), *sorted(shared_memory() - up.shared_memory)]
    story.seen["gateway log"] = (up.state / "logs" / "gateway.log").read_text()


async def play(up: Up, story: Story, emulator: str) -> None:
    engine = await start(up, story)
    await up.until("the engine was asked for its context", SOON_S, lambda: asked_for_its_models(engine))
    await fetch(emulator + "/v1/models")
    story.pages["idle"] = (await page(engine), await page(emulator))
    for url in (engine, emulator):
        await mixed(url)
    story.pages["after requests of every kind"] = (await page(engine), await page(emulator))
    async with client(up.gateway) as gateway:
        await talk(gateway, story)
        await overload(up, story, engine, emulator)
        await drain(up, story, gateway)
        await finish(up, story, gateway)


@pytest.fixture(scope="module")
def story(request, tmp_path_factory) -> Story:
    """The whole of it. FOREBAY_VLLM_PAGES names a folder in which vLLM's pages are kept."""
    if "vllm" not in request.config.option.markexpr:
        pytest.skip("takes minutes: `make test-vllm` runs it (pytest -m vllm)")
    folder = tmp_path_factory.mktemp("vllm")
    told = Story()
    up = Up(folder)
    try:
        with emulated(folder) as emulator:
            asyncio.run(play(up, told, emulator))
    finally:
        up.end()
        for what, seconds in told.timings_s.items():
            print(f"{what}: {seconds:.1f} s")
    keep = os.environ.get("FOREBAY_VLLM_PAGES")
    for occasion, (theirs, _) in told.pages.items() if keep else ():
        Path(keep or "", f"{occasion.replace(' ', '_')}.txt").write_text(theirs)
    return told


# -- the promises --------------------------------------------------------------------------------------------------------


def test_it_starts_with_one_replica_and_measures_its_start(story):
    (replica,) = story.seen["replicas at first"]
    assert replica["state"] == "ready"
    assert replica["restarts"] == 0
    assert 1 < replica["cold_start_s"] <= story.timings_s["first replica, from `forebay up` to accepted requests"]


def test_the_openai_client_is_served_through_the_gateway(story):
    assert story.seen["whole"] == ("length", 40)
    assert story.seen["streamed"].whole(60), story.seen["streamed"]
    text, usages = story.seen["streamed without usage"]
    assert text
    assert usages == 0
    assert story.seen["models"] == [MODEL]


def test_what_waits_past_the_gateway_starts_a_second_replica_and_explain_names_the_queue(story):
    explained = story.seen["explained"]
    (term,) = [term for term in explained["terms"] if term["binding"]]
    assert (term["name"], term["kind"], term["replicas"], explained["reason"]) == ("queue", "trigger", 2, "queue")
    assert term["numbers"]["waiting"] > 3
    assert "waiting" in term["because"]
    # None of it waited in a lane of the gateway: it was read from vLLM's own gauge.
    assert story.seen["status under load"]["waiting"] == 0
    assert sorted(replica["state"] for replica in story.seen["replicas at most"]) == ["ready", "ready"]
    assert len({replica["url"] for replica in story.seen["replicas at most"]}) == 2


def test_a_drain_ends_with_every_stream_complete(story):
    victim, streams = story.seen["victim"]
    assert streams >= 1, "no stream was on the victim, so its drain proves nothing"
    begun_s, ended_s = story.seen["drained between"]
    during = [stream for stream in story.streams if stream.began_s < ended_s and stream.ended_s > begun_s]
    assert len(during) >= 2
    assert [stream for stream in story.streams if not stream.whole(STREAM_TOKENS)] == []
    (survivor,) = story.seen["replicas at last"]
    assert survivor["state"] == "ready"
    assert survivor["id"] != victim
    kinds = {event["kind"] for event in story.seen["events"]}
    assert "drain_deadline" not in kinds
    assert "replica_draining" in kinds


def test_sigterm_lets_streams_end_and_leaves_nothing(story):
    assert len(story.last_streams) == 2
    assert all(0 < tokens < LAST_TOKENS for tokens in story.seen["tokens at SIGTERM"])
    assert [stream for stream in story.last_streams if not stream.whole(LAST_TOKENS)] == []
    assert story.seen["exit code"] == 0
    # Two services, and for each of two engines a shim, an API server, an engine core and a worker.
    assert len(story.seen["processes"]) >= 10
    assert story.seen["left"] == []
    assert "streams_truncated" not in story.seen["gateway log"]


# -- the emulator's page against vLLM's ------------------------------------------------------------------------------------

VALUES_OF_THEIR_OWN = {
    ("vllm:cache_config_info", "mamba_ssm_cache_dtype"): "vLLM's CPU platform sets it to float32 for every model; elsewhere it is auto",
    ("python_info", "version"): "each runs in its own interpreter",
    ("python_info", "minor"): "each runs in its own interpreter",
    ("python_info", "patchlevel"): "each runs in its own interpreter",
}
"""Labels whose values may differ, and why; their names may not."""

NUMBERS_OF_THEIR_OWN = {
    "process_": "each is its own process",
    "python_gc_": "each is its own process",
    "vllm:prompt_tokens": "the emulator has no tokenizer: it takes four bytes for a token",
    "vllm:prefix_cache_queries": "counts prompt tokens",
}
"""Samples (by the beginning of their names) whose numbers may differ after the same requests, and why. Times always may."""

TIMES = ("_created", "_sum", "_bucket")


def families(text: str) -> list[tuple[str, str, str]]:
    """(what, name, kind or help) of each comment, in order."""
    return [tuple(line.split(" ", 3)[1:]) for line in text.splitlines() if line.startswith("#")]


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Number by name and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            pairs = ((key, "" if (sample.name, key) in VALUES_OF_THEIR_OWN else value) for key, value in sample.labels.items())
            found[sample.name, tuple(sorted(pairs))] = sample.value
    return found


@pytest.mark.parametrize("occasion", ["idle", "after requests of every kind", "under load"])
def test_the_emulator_has_vllms_names_types_helps_and_labels(story, occasion):
    theirs, ours = story.pages[occasion]
    assert families(ours) == families(theirs)
    assert sorted(samples(theirs).keys() - samples(ours).keys()) == []
    assert sorted(samples(ours).keys() - samples(theirs).keys()) == []


@pytest.mark.parametrize("occasion", ["idle", "after requests of every kind"])
def test_the_emulator_counts_as_vllm_does(story, occasion):
    theirs, ours = map(samples, story.pages[occasion])
    own = tuple(NUMBERS_OF_THEIR_OWN)
    different = {
        key: (number, ours[key])
        for key, number in theirs.items()
        if number != ours[key] and not key[0].startswith(own) and not key[0].endswith(TIMES)
    }
    assert different == {}


def test_under_load_both_fill_their_places_and_let_the_rest_wait(story):
    for text in story.pages["under load"]:
        assert gauge(text, "num_requests_running") == 4
        assert gauge(text, "num_requests_waiting") > 3
        assert 0 < gauge(text, "kv_cache_usage_perc") < 1
