"""A whole Forebay as people run it: `forebay up` in processes of its own, looked at through its admin API, asked through the `openai` client.

And a real vLLM on the CPU, for the tests that stand it behind such a Forebay.

Everything that such a Forebay has started is remembered, so that a test can say that nothing is left, and so that a test
that failed leaves nothing either. Nothing here measures time: every wait polls a condition and is generous.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import openai
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")
FOREBAY = (sys.executable, "-m", "forebay.cli.main")
ROOT = Path(__file__).resolve().parents[2]
VLLM = ROOT / ".venv-vllm"
VLLM_START_S = 600.0
"""A start takes 30 s on quiet cores, and minutes on busy ones."""
VLLM_OPTIONS = "--dtype float32 --enforce-eager --max-model-len 2048 --block-size 32"
VLLM_PLACES = {"--max-num-seqs": "4", "--kv-cache-memory-bytes": str(4096 * 6144)}
"""Unless a test says otherwise: KV of 4,096 tokens of 6,144 bytes."""
WAIT_S = 45.0
POLL_S = 0.05
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _fetch(url: str, body: Any = None) -> Any:
    """GET, or POST ``body`` as JSON; the decoded answer."""
    data = None if body is None else json.dumps(body).encode()
    with _DIRECT.open(urllib.request.Request(url, data, {"content-type": "application/json"}), timeout=20) as answer:
        return json.loads(answer.read() or b"null")


def _sums(url: str, *names: str) -> list[float]:
    """Of a page of metrics, what each of these families adds up to."""
    with _DIRECT.open(f"{url}/metrics", timeout=10) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    return [sum(sample.value for sample in families[name].samples if not sample.name.endswith("_created")) for name in names]


def _wait_until(look: Callable[[], T], what: str, seconds: float = WAIT_S) -> T:
    """The first true answer of ``look``; refused connections are no answer."""
    give_up_s = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            if found := look():
                return found
            last = found
        except OSError as error:
            last = error
        assert time.monotonic() < give_up_s, f"{what}: not within {seconds:g} s; last {last!r}"
        time.sleep(POLL_S)


async def _wait_until_async(look: Callable[[], T], what: str, seconds: float = WAIT_S) -> T:
    """The same beside streams that are being read."""
    give_up_s = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if found := await asyncio.to_thread(look):
                return found
        assert time.monotonic() < give_up_s, f"{what}: not within {seconds:g} s"
        await asyncio.sleep(POLL_S)


@dataclass
class Stream:
    """One streamed answer as its client saw it."""

    asked: int
    chunks: int = 0
    finish: str | None = None
    usage_tokens: int | None = None
    error: str = ""

    @property
    def whole(self) -> bool:
        """Every token that was asked for, a finish, a usage and no error."""
        return (self.chunks, self.finish, self.usage_tokens, self.error) == (self.asked, "length", self.asked, "")


class Up:
    """`forebay up`. ``config`` is a file, or the text of one."""

    def __init__(self, folder: Path, config: Path | str, *options: str, state: Path | None = None) -> None:
        self.folder = folder
        self.state = state or folder / "state"
        self.ready_file = folder / "ready.json"
        self.output = folder / "up.log"
        if isinstance(config, str):
            (folder / "forebay.yaml").write_text(config)
            config = folder / "forebay.yaml"
        command = [*FOREBAY, "up", "-c", str(config), "--ready-file", str(self.ready_file), "--state", str(self.state), *options]
        # A temporary folder of its own: what this one announces there is nobody else's, and the other way round.
        self.environment = {**os.environ, "TMPDIR": str(folder)}
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
        self._seen: dict[int, psutil.Process] = {}
        self.gateway = self.admin = ""

    # -- looking ------------------------------------------------------------------------------------------------------

    def until_ready(self) -> "Up":
        """Wait for the ready file."""

        def ready() -> dict[str, Any] | None:
            self.census()
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.logs()}"
            return json.loads(self.ready_file.read_text()) if self.ready_file.exists() else None

        said = _wait_until(ready, "the ready file")
        assert set(said) - {"gateways"} == {"gateway", "admin", "pid"}
        assert said["pid"] == self.process.pid
        self.gateway, self.admin = said["gateway"], said["admin"]
        return self

    def status(self) -> Any:
        """The admin API's status."""
        self.census()
        return _fetch(f"{self.admin}/v1/status")

    def pool(self) -> Any:
        """The first pool's status."""
        return self.status()["pools"][0]

    def explain(self) -> Any:
        """Why the first pool is what it is."""
        return _fetch(f"{self.admin}/v1/explain")[0]

    def events(self) -> list[Any]:
        """What happened, oldest first."""
        return _fetch(f"{self.admin}/v1/events?limit=1000")

    def ready(self, count: int, what: str = "") -> Any:
        """Wait until exactly ``count`` replicas are there, all ready; the pool."""

        def look() -> Any:
            pool = self.pool()
            return pool if pool["replicas"] == {"ready": count} else None

        try:
            return _wait_until(look, f"{count} ready replicas {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.explain(), indent=1)}\n{self.logs()}") from None

    def child(self, name: str) -> psutil.Process:
        """The process of the ``controller`` or the ``gateway``."""
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if f"forebay.app.{name}_main" in process.cmdline():
                    return process
        raise ProcessLookupError(f"no {name} runs")

    def shims(self) -> dict[str, psutil.Process]:
        """The shim of each replica's engine, by replica."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "--replica" in words and str(self.state / "logs") in words:
                    found[words[words.index("--replica") + 1]] = process
        return found

    def engines(self) -> dict[str, psutil.Process]:
        """The engine of each replica that has one."""
        found = {}
        for name, shim in self.shims().items():
            with contextlib.suppress(psutil.Error):
                for process in shim.children():
                    found[name] = process
        return found

    def census(self) -> None:
        """Remember every process that it has."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                self._seen.setdefault(process.pid, process)

    def left(self) -> list[str]:
        """What still runs of all that was ever seen, and of all that carries this state folder's name."""
        found = []
        for process in [*self._seen.values(), *psutil.process_iter()]:
            with contextlib.suppress(psutil.Error):
                mine = process.pid in self._seen or (process.pid != os.getpid() and str(self.state) in process.cmdline())
                if mine and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.name()} {process.cmdline()[:4]}")
        return sorted(set(found))

    def logs(self) -> str:
        """All that it has written, for a failure's message."""
        files = [self.output, *sorted((self.state / "logs").glob("*.log"))]
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files if file.exists())

    # -- ending -------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float = WAIT_S) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended within {seconds:g} s\n{self.logs()}") from None

    def close(self) -> None:
        """However the test went: nothing is left."""
        self.census()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        give_up_s = time.monotonic() + 15.0
        while self.left() and time.monotonic() < give_up_s:
            time.sleep(POLL_S)
        for process in self._seen.values():
            with contextlib.suppress(psutil.Error):
                if process.is_running():
                    process.kill()

    # -- asking -------------------------------------------------------------------------------------------------------

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another verb, started in the same place by the same user."""
        command = [*FOREBAY, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=self.folder, env=self.environment)

    async def begun(self, client: openai.AsyncOpenAI, count: int, tokens: int) -> list["asyncio.Task[Stream]"]:
        """``count`` streams of ``tokens`` tokens, each of which has had its first content."""
        events = [asyncio.Event() for _ in range(count)]
        streams = [asyncio.create_task(self.stream(client, tokens, event)) for event in events]
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(event.wait() for event in events))
        return streams

    async def stream(self, client: openai.AsyncOpenAI, tokens: int, begun: asyncio.Event | None = None, **more: Any) -> Stream:
        """One streamed answer of ``tokens`` tokens, to its end; ``begun`` is set by its first content, or its end."""
        seen = Stream(tokens)
        try:
            answer = await client.chat.completions.create(
                model="llama-3.1-8b",
                messages=[{"role": "user", "content": "Count."}],
                max_tokens=tokens,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
                **more,
            )
            async for chunk in answer:
                if chunk.usage is not None:
                    seen.usage_tokens = chunk.usage.completion_tokens
                for choice in chunk.choices:
                    seen.chunks += bool(choice.delta.content)
                    seen.finish = choice.finish_reason or seen.finish
                if begun is not None and seen.chunks:
                    begun.set()
        except Exception as error:  # the transport's own errors come as they are, and depend on the client's version
            seen.error = f"{type(error).__name__}: {error}"
        if begun is not None:
            begun.set()
        return seen

    def client(self, key: str = "sk-demo-interactive") -> openai.AsyncOpenAI:
        """An asynchronous client that never tries again by itself."""
        return openai.AsyncOpenAI(api_key=key, base_url=f"{self.gateway}/v1", max_retries=0, timeout=WAIT_S)


UpFactory = Callable[..., Up]


@pytest.fixture(scope="module")
def up_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpFactory]:
    """Makes an `Up` that lives as long as a file's tests."""
    made: list[Up] = []

    def make(config: Path | str, *options: str, state: Path | None = None) -> Up:
        made.append(Up(tmp_path_factory.mktemp("up"), config, *options, state=state))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpFactory]:
    """Makes an `Up` that ends with its test."""
    made: list[Up] = []

    def make(config: Path | str, *options: str, state: Path | None = None) -> Up:
        folder = tmp_path / f"up-{len(made)}"
        folder.mkdir()
        made.append(Up(folder, config, *options, state=state))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def real_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Starts a vLLM with the tiny model, options and variables of its own added, and gives its address; it lives as long as a file's tests."""
    if not any(VLLM.glob(".installed-*")):
        pytest.skip("no real vLLM is installed: `make test-vllm` installs it and runs this")
    made: list[subprocess.Popen[bytes]] = []

    def make(*options: str, **variables: str) -> str:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = str(taken.getsockname()[1])
        words = [
            str(VLLM / "bin" / "vllm"),
            "serve",
            str(VLLM / "tiny"),
            "--served-model-name",
            "tiny",
            "--host",
            "127.0.0.1",
            "--port",
            port,
        ]
        places = [word for option, value in VLLM_PLACES.items() if option not in options for word in (option, value)]
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        output = tmp_path_factory.mktemp("vllm") / "vllm.log"
        with output.open("wb") as log:
            command = [*words, *VLLM_OPTIONS.split(), *places, *options]
            environment = {**os.environ, **quiet, **variables}
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True)
        made.append(process)
        url = f"http://127.0.0.1:{port}"

        def healthy() -> bool:
            assert process.poll() is None, f"vLLM ended with {process.returncode}:\n{output.read_text(errors='replace')[-3000:]}"
            with _DIRECT.open(f"{url}/health", timeout=5) as answer:
                return bool(answer.status == 200)

        _wait_until(healthy, "vLLM", VLLM_START_S)
        return url

    yield make
    for process in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # its engine core is another process of the group
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """Waits for the first true answer of a function."""
    return _wait_until


@pytest.fixture(scope="session")
def wait_until_async() -> Callable[..., Any]:
    """The same beside streams that are being read."""
    return _wait_until_async


@pytest.fixture(scope="session")
def fetch() -> Callable[..., Any]:
    """GETs a URL, or POSTs a value, as JSON."""
    return _fetch


@pytest.fixture(scope="session")
def sums() -> Callable[..., list[float]]:
    """Of an address' page of metrics, what each of the named families adds up to."""
    return _sums
