"""The fleet's small parts: command lines, ports, environment, logs, exit words, health answers, attached replicas."""

import os
import random
import socket
import sys

import msgspec
import pytest

from forebay.adapters.local import AttachedFleet, CompositeFleet, Contexts
from forebay.adapters.local.command import (
    NoFreePort,
    engine_command,
    engine_environment,
    free_devices,
    free_port,
    shim_command,
    wants_devices,
)
from forebay.adapters.local.health import HealthKind, probe
from forebay.adapters.local.keeper import end_reason
from forebay.adapters.local.life import new_life
from forebay.adapters.local.logfile import LogFile
from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.domain.replica import ReplicaState as S
from forebay.domain.replica import attached_id
from forebay.ports.upstream import End, ResponseHead
from forebay.spec.types import EngineKind, Model, Pool, Spec
from forebay.testing import loop
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink

LIFE = new_life("chat-1", "chat", 0.0)
PROFILE = Profile("p", "m", "h", 1, StepLaw(0.01, 0.0, 0.0, 0.0), 4, 1000, 16, 512, 100, 8192, ColdStart(1.0, 1e9, 1e9, 1.0))


class Answers:
    """An upstream that answers each path with the next of its list: a status, (status, body) or an End; the last one stays.

    A path that has none is not found.
    """

    def __init__(self, **paths):
        self.paths = {f"/{name}": list(answers) for name, answers in paths.items()}
        self.forgotten = []

    def send(self, url, request, sink, timeout_s=None):
        answers = self.paths.get(request.split()[1].decode(), [404])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, End):
            sink.end(answer, "")
            return
        status, body = answer if isinstance(answer, tuple) else (answer, b"x")
        sink.head(ResponseHead(status, (), False, len(body)))
        sink.data(body, body, True, True)
        sink.end(End.COMPLETE, "")
        return

    def forget(self, url):
        self.forgotten.append(url)

    async def close(self):
        pass


def test_placeholders_are_replaced_literally():
    kind = EngineKind("command", ("serve", "{model}", "--port={port}", '{"a": {"b": 1}}', "{replica}/{speed}", "{other}"))
    assert engine_command(Pool("chat", "m-8b", kind), LIFE, 21000, 20.0) == [
        "serve", "m-8b", "--port=21000", '{"a": {"b": 1}}', "chat-1/20", "{other}",
    ]  # fmt: skip


def test_an_emulated_engine_gets_its_profile_speed_and_extra_options():
    words = engine_command(Pool("chat", "m-8b", EngineKind("emulated", ("--seed", "7")), PROFILE), LIFE, 21000, 2.5)
    assert words[:3] == [sys.executable, "-m", "forebay.emulator"]
    options = dict(zip(words[3:13:2], words[4:13:2], strict=True))
    assert msgspec.json.decode(options.pop("--profile-json"), type=Profile) == PROFILE
    assert options == {"--port": "21000", "--model": "m-8b", "--speed": "2.5", "--shutdown-timeout": "600"}
    assert words[13:] == ["--cold", "--report-stages", "--seed", "7"]


def test_an_emulated_engine_serves_its_pools_adapters():
    pool = Pool("chat", "m-8b", EngineKind("emulated", ("--seed", "7")), PROFILE, adapters=("legal", "sql"))
    assert engine_command(pool, LIFE, 21000, 1.0)[-5:] == ["--lora-modules", "legal", "sql", "--seed", "7"]


def test_the_shim_is_marked_and_isolated():
    words = shim_command("/logs", "chat-1", 0.5, ["serve"])
    assert words[:3] == [sys.executable, "-I", "-S"]
    assert words[4:] == ["--owner", "/logs", "--replica", "chat-1", "--grace", "0.5", "--", "serve"]


def test_the_environment_is_added_to_and_filled_in(monkeypatch):
    monkeypatch.setenv("GIVEN", "from outside")
    monkeypatch.setenv("FOREBAY_LIFELINE_FD", "99")
    pool = Pool("chat", "m", EngineKind("command", env=(("OMP_THREADS", "1"), ("GIVEN", "by the pool"), ("NAME", "{replica}:{port}"))))
    environment = engine_environment(pool, LIFE, 21000, 1.0, 5)
    assert environment["OMP_THREADS"] == "1"
    assert environment["GIVEN"] == "by the pool"
    assert environment["NAME"] == "chat-1:21000"
    assert environment["PATH"] == os.environ["PATH"]
    assert environment["FOREBAY_LIFELINE_FD"] == "5"
    assert "FOREBAY_LIFELINE_FD" not in engine_environment(pool, LIFE, 21000, 1.0, None)


def test_devices_are_the_lowest_free_ones_as_many_as_the_profile_has_gpus():
    plain = Pool("chat", "m", EngineKind("command", env=(("CUDA_VISIBLE_DEVICES", "{devices}"),)))
    four = msgspec.structs.replace(plain, profile=msgspec.structs.replace(PROFILE, gpus=4))
    assert wants_devices(plain)
    assert not wants_devices(Pool("chat", "m", EngineKind("command", ("serve", "{port}"))))
    assert free_devices(plain, {0, 2}) == (1,)
    assert free_devices(four, {1}) == (0, 2, 3, 4)
    life = msgspec.structs.replace(LIFE, devices=(4, 5))
    assert engine_environment(plain, life, 21000, 1.0, None)["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_a_port_is_free_not_taken_and_not_ephemeral():
    first = free_port(random.Random(3), set())
    assert 20_000 <= first < 32_000
    assert free_port(random.Random(3), {first}) != first
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", first))
        holder.listen()
        assert free_port(random.Random(3), set()) != first
    with pytest.raises(NoFreePort):
        free_port(random.Random(3), range(70_000))


def test_a_log_keeps_one_generation_back_and_its_tail_says_the_last_words(tmp_path):
    log = LogFile(tmp_path, "chat-1", bytes_max=100)
    assert log.tail() == ""
    for attempt in ("first", "second", "third"):
        fd = log.open_new()
        os.write(fd, f"{attempt}\n\n  then \xff\n".encode("latin-1"))
        os.close(fd)
    assert log.tail() == "third | then �"
    assert log.older.read_bytes().startswith(b"second")


def test_a_log_is_bounded_while_it_is_written(tmp_path):
    log = LogFile(tmp_path, "chat-1", bytes_max=100)
    fd = log.open_new()
    os.write(fd, b"x" * 60)
    assert not log.bound()
    os.write(fd, b"y" * 60)
    assert log.bound()
    os.write(fd, b"after")
    os.close(fd)
    assert log.path.read_bytes() == b"after"
    assert log.older.read_bytes() == b"x" * 60 + b"y" * 60
    assert not LogFile(tmp_path, "never").bound()


def test_a_tail_is_bounded(tmp_path):
    log = LogFile(tmp_path, "chat-1")
    log.path.write_text("".join(f"line {number} {'z' * 150}\n" for number in range(500)))
    assert len(log.tail()) <= 800
    assert "line 499" in log.tail()


@pytest.mark.parametrize(
    ("code", "tail", "words"),
    [
        (3, "", "exited by itself with code 3"),
        (0, "", "exited by itself with code 0"),
        (139, "", "died of signal 11"),
        (-15, "", "died of signal 15"),
        (127, "", "could not be started"),
        (137, "", "was killed (SIGKILL: by somebody, or by the kernel because memory ran out)"),
        (-9, "", "was killed (SIGKILL: by somebody, or by the kernel because memory ran out)"),
        (1, "torch.OutOfMemoryError: CUDA out of memory.", "out of memory: exited by itself with code 1"),
        (None, "", "earlier controller"),
    ],
)
def test_an_end_has_words(code, tail, words):
    assert words in end_reason(code, tail)


@pytest.mark.parametrize(
    ("health", "metrics", "kind", "detail"),
    [
        (End.CONNECT_FAILED, 200, HealthKind.REFUSED, "refused"),
        (End.TIMEOUT, 200, HealthKind.SICK, "/health: timeout"),
        (500, 200, HealthKind.SICK, "answered 500"),
        ((503, b'{"stage": "weights"}'), 200, HealthKind.STAGE, "weights"),
        ((503, b'{"stage": "' + b"w" * 99 + b'"}'), 200, HealthKind.STAGE, "w" * 32),
        ((503, b'{"error": {"message": "Loading model"}}'), 200, HealthKind.SICK, "answered 503"),
        ((503, b"\xff"), 200, HealthKind.SICK, "answered 503"),
        (200, 501, HealthKind.HEALTHY, "/metrics answered 501"),
        (200, End.CUT, HealthKind.HEALTHY, "/metrics failed: cut"),
        ((200, b""), 200, HealthKind.SERVING, ""),
    ],
)
def test_a_look_at_an_engine(health, metrics, kind, detail):
    async def main():
        return await probe(Answers(health=[health], metrics=[metrics]), "http://127.0.0.1:1", "/health", True, 2.0)

    found = loop.run(main)
    assert found.kind is kind
    assert detail in found.detail


def attached(answers, seconds, sink=None):
    """States by second of one attached engine."""
    spec = Spec((Pool("chat", "m", EngineKind("attach", attach=("http://127.0.0.1:8000/",))),), (), ())

    async def main():
        fleet = AttachedFleet(spec, LoopClock(), answers, sink or ListSink())
        views = [(await fleet.observe())[0]]
        await fleet.adopt()
        await fleet.adopt()
        for _ in range(seconds):
            await LoopClock().sleep_until(LoopClock().now_s() + 1.0)
            views.append((await fleet.observe())[0])
        await fleet.close()
        return views

    return loop.run(main)


def test_an_attached_engine_is_ready_when_it_answers():
    views = attached(Answers(health=[End.CONNECT_FAILED, 503, 200]), 3)
    assert [view.state for view in views] == [S.REQUESTED, S.FAILED, S.FAILED, S.READY]
    assert views[1].problem == "connection refused"
    assert views[-1].problem == ""
    assert views[0].id == attached_id("chat", "http://127.0.0.1:8000/") == "chat@127.0.0.1:8000"
    assert views[0].url == "http://127.0.0.1:8000"


def test_one_bad_answer_takes_nothing_away_and_three_do():
    answers = Answers(health=[200, 500, 200, 500, 500, 500, 200])
    states = [view.state for view in attached(answers, 40)]
    assert states.index(S.FAILED) == pytest.approx(26, abs=1)
    assert states[-1] is S.READY
    assert answers.forgotten == ["http://127.0.0.1:8000"]


def contexts_told(declared, models, looks=1, profile=None, metrics="vllm", written=True):
    """What is told of an engine whose ``/v1/models`` answers are ``models``, under a model declared with ``declared`` tokens."""
    sink = ListSink()
    pool = Pool("chat", "m", EngineKind("attach", attach=("http://127.0.0.1:8000",), metrics=metrics), profile)
    answers = Answers(health=[200], **{"v1/models": models})

    async def main():
        clock = LoopClock()
        spec = Spec((pool,), (Model("m", declared, context_written=written),), ())
        fleet = CompositeFleet([AttachedFleet(spec, clock, answers, sink)], Contexts(spec, answers, clock, sink))
        await fleet.adopt()
        for _ in range(looks):
            await clock.sleep_until(clock.now_s() + 1.0)
            await fleet.observe()
        await clock.sleep_until(clock.now_s() + 1.0)
        await fleet.close()

    loop.run(main)
    return [(event.kind, event.pool, event.message) for event in sink.events]


def models_page(tokens, name="m"):
    return 200, b'{"data": [{"id": "other", "max_model_len": 7}, {"id": "%b", "max_model_len": %d}]}' % (name.encode(), tokens)


def test_a_context_that_the_engine_does_not_share_is_told_once_with_both_numbers():
    (told,) = contexts_told(8192, [models_page(131072)], looks=5)
    assert told == (
        "context_differs",
        "chat",
        "models.m.context is 8192, but chat@127.0.0.1:8000 takes 131072 tokens: what is longer is booked with too few tokens; "
        "set it to 131072, or start the engine with 8192",
    )
    ((_, _, larger),) = contexts_told(32768, [models_page(2048)])
    assert "models.m.context is 32768, but chat@127.0.0.1:8000 takes 2048 tokens: what is longer is let through, and the engine" in larger


def test_a_context_that_nobody_wrote_is_not_told_as_a_line_of_the_file():
    """A newcomer looked for `models.m.context is 8192` in a file of four lines."""
    ((_, _, default),) = contexts_told(8192, [models_page(131072)], written=False)
    assert default.startswith("models.m.context is not set, and taken to be 8192, but chat@127.0.0.1:8000 takes 131072 tokens: ")
    assert default.endswith("; set it to 131072, or start the engine with 8192")
    context = PROFILE.context_tokens
    whence = f"the context of {PROFILE.name}, the profile of pool chat, is {context}, but chat@127.0.0.1:8000 takes "
    ((_, _, smaller),) = contexts_told(context, [models_page(16)], profile=PROFILE, written=False)
    assert smaller.startswith(f"{whence}16 tokens: ")
    assert smaller.endswith(f"; set models.m.context to 16, or start the engine with {context}")
    for written in (False, True):  # no model may be longer than its longest profile
        ((_, _, larger),) = contexts_told(context + written, [models_page(10**6)], profile=PROFILE, written=written)
        assert larger.startswith(f"{whence}1000000 tokens: ")
        assert f"; give the pool a profile with a context of 1000000 (profiles.{PROFILE.name}), or start" in larger


@pytest.mark.parametrize("page", [models_page(8192), (200, b'{"data": [{"id": "m"}]}'), (200, b"\xff"), (404, b""), (200, b'{"data": []}')])
def test_an_engine_that_agrees_or_says_nothing_of_its_context_is_believed(page):
    assert contexts_told(8192, [page], looks=3) == []


def test_an_engine_that_serves_the_model_under_another_name_is_told_with_what_to_do():
    (told,) = contexts_told(8192, [models_page(8192, "tiny")], looks=3)[:1]
    assert told == (
        "model_differs",
        "chat",
        "chat@127.0.0.1:8000 at http://127.0.0.1:8000 serves other, tiny, and not m: call the model so, or start it with --served-model-name m",
    )
    kinds = [kind for kind, _, _ in contexts_told(8192, [models_page(8192, "tiny")], metrics="llamacpp")]
    assert "model_differs" not in kinds, "it answers to any"


def test_a_pool_of_a_smaller_profile_is_compared_with_that():
    assert contexts_told(131072, [models_page(8192)], profile=PROFILE) == []


def test_an_engine_that_does_not_say_its_context_at_once_is_asked_again_and_not_for_ever():
    assert len(contexts_told(8192, [End.TIMEOUT, End.TIMEOUT, models_page(10)], looks=5)) == 1
    # Once more before that, for whether it asks for a key.
    assert contexts_told(8192, [End.TIMEOUT, End.TIMEOUT, End.TIMEOUT, End.TIMEOUT, models_page(10)], looks=9) == []
