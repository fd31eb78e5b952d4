"""Keys of engines: read where the configuration says that they stand, again when a file changes, and shown at the right addresses alone."""

import asyncio
import os

import pytest

from forebay.app import config
from forebay.app.engine_keys import KEY_BYTES_MAX, MET_MAX, EngineKeys, engine_key_troubles
from forebay.domain.errors import BadInput

KEY, OTHER = "sk-engine-0123456789", "token-9876543210"
FILE = """
pools:
  chat:
    model: llama
    attach: ["http://h:1", {url: "http://h:2", key_file: own.key}, {url: "http://h:3/", key_env: THIRD}]
    engine: {key_env: CHAT_KEY}
  open: {model: other, attach: ["http://h:9"]}
"""
ENVIRONMENT = {"CHAT_KEY": KEY, "THIRD": "third-key"}


@pytest.fixture
def spec(tmp_path):
    """``spec(text)``: the configuration of that text, beside a file with a key."""

    def go(text=FILE, own=OTHER + "\n"):
        (tmp_path / "forebay.yaml").write_text(text)
        (tmp_path / "own.key").write_text(own)
        return config.load(tmp_path / "forebay.yaml")

    return go


class Shown(dict):
    """By address."""

    def __call__(self, url, key):
        self[url] = key.decode()


def test_each_engine_is_shown_its_own_or_its_pools_and_who_asks_none_nothing(spec):
    shown = Shown()
    keys = EngineKeys(spec(), shown, ENVIRONMENT)
    assert shown == {"http://h:1": KEY, "http://h:2": OTHER, "http://h:3": "third-key", "http://h:9": ""}
    keys.meet("chat", "http://h:4")  # another gateway's file lists it, or Forebay has just started it
    assert shown["http://h:4"] == KEY
    keys.meet("open", "http://h:4")
    assert shown["http://h:4"] == ""


@pytest.mark.parametrize(
    ("environment", "own", "said"),
    [
        ({}, OTHER, "pools.chat.engine: key_env: found no CHAT_KEY in the environment, allowed: a variable with the engine's key; set it"),
        (ENVIRONMENT | {"THIRD": "two words"}, OTHER, "pools.chat.attach http://h:3: key_env: found a THIRD with blanks or control"),
        (ENVIRONMENT, "", "pools.chat.attach http://h:2: key_file: found nothing in "),
        (ENVIRONMENT, "one\ntwo\n", "own.key with blanks or control characters"),
        (ENVIRONMENT, "sch\u00fcssel", "own.key with blanks or control characters"),
        (ENVIRONMENT, "x" * (KEY_BYTES_MAX + 1), f"found more than {KEY_BYTES_MAX} bytes in "),
    ],
)
def test_a_key_that_can_not_be_sent_is_refused_by_place_and_not_shown(spec, environment, own, said):
    asked = spec(own=own)
    with pytest.raises(BadInput) as refused:
        EngineKeys(asked, Shown(), environment)
    (told,) = [words for words in engine_key_troubles(asked, environment) if said in words][:1]
    assert said in told
    assert "words" not in str(refused.value) + told
    assert "one" not in (str(refused.value) + told).replace("alone", "").replace("one line", "")


def test_a_file_that_is_not_there_is_named(spec, tmp_path):
    asked = spec()
    (tmp_path / "own.key").unlink()
    with pytest.raises(BadInput, match=r"key_file: found .*own\.key, which can't be read \(no such file or directory\), allowed: a file"):
        EngineKeys(asked, Shown(), ENVIRONMENT)


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_and_not_waited_for(spec, tmp_path, made):
    """A pipe in a key's place kept the process at its reading for ever."""
    asked, shown = spec(), Shown()
    keys = EngineKeys(asked, shown, ENVIRONMENT)
    (tmp_path / "own.key").unlink()
    made(tmp_path / "own.key")
    with pytest.raises(
        BadInput, match=r"found a .*own\.key, which is a folder, pipe or device, allowed: a file with the engine's key alone"
    ):
        EngineKeys(asked, Shown(), ENVIRONMENT)
    ((kind, words),) = keys.refresh()
    assert kind == "engine_key_refused"
    assert words.endswith("the key before is kept")


def test_a_key_written_where_its_variables_name_belongs_is_not_read_aloud(spec):
    asked = spec(FILE.replace("key_env: CHAT_KEY", "key_env: hf_AbCdEf0123456789"))
    (told,) = engine_key_troubles(asked, ENVIRONMENT)
    assert "found no hf_… in the environment" in told


def test_a_file_that_changes_is_read_again_and_what_is_wrong_is_told_once(spec, tmp_path):
    shown, file = Shown(), tmp_path / "own.key"
    keys = EngineKeys(spec(), shown, ENVIRONMENT)
    assert keys.refresh() == []
    file.write_text("another-key")
    ((kind, words),) = keys.refresh()
    assert (kind, shown["http://h:2"]) == ("engine_key_taken", "another-key")
    assert "another-key" not in words
    file.write_text("")
    ((kind, words),) = keys.refresh()
    assert kind == "engine_key_refused"
    assert words.endswith("the key before is kept")
    assert shown["http://h:2"] == "another-key"
    assert keys.refresh() == []
    file.unlink()
    assert [kind for kind, _ in keys.refresh()] == ["engine_key_refused"]
    os.replace(tmp_path / "forebay.yaml", file)
    assert [kind for kind, _ in keys.refresh()] == ["engine_key_refused"]


def test_another_configuration_is_taken_whole_or_not_at_all(spec):
    shown = Shown()
    keys = EngineKeys(spec(), shown, ENVIRONMENT)
    before = dict(shown)
    with pytest.raises(BadInput, match="found no ABSENT"):
        keys.read(spec(FILE.replace("THIRD", "ABSENT")))
    assert shown == before
    assert not keys.use(keys.read(spec()))
    assert keys.use(keys.read(spec(FILE.replace("engine: {key_env: CHAT_KEY}", "engine: {key_env: THIRD}"))))
    assert shown["http://h:1"] == "third-key"
    assert keys.use(keys.read(spec(FILE.replace("    engine: {key_env: CHAT_KEY}\n", ""))))
    assert shown["http://h:1"] == ""


def test_the_watch_tells_and_says_that_there_is_another(spec, tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.app.engine_keys.LOOK_EVERY_REAL_S", 0.001)
    keys = EngineKeys(spec(), Shown(), ENVIRONMENT)

    async def main():
        changed, said = asyncio.Event(), []
        watching = asyncio.create_task(keys.watch(lambda kind, words: said.append(kind), changed.set))
        (tmp_path / "own.key").write_text("another-key")
        async with asyncio.timeout(10):
            await changed.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return said

    assert asyncio.run(main()) == ["engine_key_taken"]


def test_addresses_are_bounded_and_what_is_forgotten_is_shown_nothing(spec):
    shown = Shown()
    keys = EngineKeys(spec(), shown, ENVIRONMENT)
    for number in range(MET_MAX):
        keys.meet("chat", f"http://127.0.0.1:{number}")
    assert shown["http://127.0.0.1:9999"] == KEY
    assert shown["http://h:1"] == ""
    assert len(keys._met) == MET_MAX
