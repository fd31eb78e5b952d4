"""Attached engines that are asked before anything starts."""

import pytest

from forebay.app import asked_engines
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.loop import run


def told(*scripts, gone=0, **engine):
    """What is said of engines of these scripts."""

    async def main():
        engines = [FakeEngine(script) for script in scripts]
        urls = tuple([await each.start() for each in engines]) + tuple(f"http://127.0.0.1:{9 + number}" for number in range(gone))
        pool = Pool("chat", "llama", EngineKind("attach", attach=urls, **engine))
        words = await asked_engines._all(Spec((pool,), (Model("llama", 8192),), DEFAULT_TIERS))
        for each in engines:
            each.stop()
        return words, [seen.headers.get(b"authorization") for each in engines for seen in each.seen]

    return run(main)


def answers(status, *names):
    async def script(_, answer):
        answer.json(status, {"data": [{"id": name} for name in names]})

    return script


def test_of_engines_that_are_as_configured_nothing_is_said(monkeypatch):
    monkeypatch.setenv("FOREBAY_TEST_KEY", "sk-engine-0123456789")
    words, shown = told(answers(200, "llama"), answers(200, "llama"), key_env="FOREBAY_TEST_KEY")
    assert words == []
    assert set(shown) == {b"Bearer sk-engine-0123456789"}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (answers(401), "asks for a key (it answers 401), and is given none"),
        (answers(200, "tiny"), "serves tiny, and not llama"),
        (answers(404), "answered 404 to /v1/models; is it the engine's address?"),
    ],
)
def test_what_is_not_is_said_by_engine_with_what_to_do(script, said):
    words, _ = told(answers(200, "llama"), script)
    assert len(words) == 1
    assert said in words[0]
    assert words[0].startswith("chat@127.0.0.1:")


def test_where_nobody_listens_is_said():
    words, _ = told(gone=1)
    assert words == ["chat@127.0.0.1:9: nobody listens at http://127.0.0.1:9; start the engine, or correct the address"]


def test_without_a_key_that_may_be_needed_nobody_is_asked(monkeypatch):
    monkeypatch.delenv("FOREBAY_TEST_KEY", raising=False)
    words, shown = told(answers(401), key_env="FOREBAY_TEST_KEY")
    assert words == ["no engine was asked: a key that one of them may need is not there"]
    assert shown == []
