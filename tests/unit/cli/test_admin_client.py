"""How a verb finds a running Forebay, and what it says where there is none or another thing answers."""

import contextlib
import io
import json
import os
import tempfile
import urllib.error
from email.message import Message
from pathlib import Path

import msgspec
import pytest

from forebay.app.files import Running, announce, write_value
from forebay.cli import admin_client
from forebay.cli.admin_client import NotRunning, admin_url, ask
from forebay.domain.errors import BadInput

HERE = Running("http://127.0.0.1:1", "http://127.0.0.1:2", os.getpid())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working folder and a temporary folder in which nothing runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


class Answers:
    """Stands where urllib's opener stands."""

    def __init__(self, status, body):
        self.status, self.body, self.asked = status, body, []

    def open(self, url, timeout):
        self.asked.append(url)
        if isinstance(self.body, OSError):
            raise self.body
        if self.status != 200:
            raise urllib.error.HTTPError(url, self.status, "", Message(), io.BytesIO(self.body))
        return io.BytesIO(self.body)


@pytest.fixture
def answers(monkeypatch):
    def be(status, body):
        opener = Answers(status, body)
        monkeypatch.setattr(admin_client, "_DIRECT", opener)
        return opener

    return be


def test_an_address_is_taken_as_given():
    assert admin_url("http://host:8081/", None) == "http://host:8081"
    with pytest.raises(BadInput, match="--admin: found 'host:8081'; allowed: a URL such as"):
        admin_url("host:8081", None)


def test_a_state_folder_tells_its_own(tmp_path):
    (tmp_path / "state").mkdir()
    write_value(tmp_path / "state" / "up.json", HERE)
    assert admin_url(None, "state") == HERE.admin
    with pytest.raises(NotRunning, match="no Forebay runs in other"):
        admin_url(None, "other")


@pytest.mark.parametrize("content", ["", "[]", '{"gateway": "g", "pid": 1}', '{"admin": 7}'])
def test_a_state_folder_that_is_ill(content, tmp_path):
    (tmp_path / "up.json").write_text(content)
    with pytest.raises(NotRunning, match="name the admin address with --admin URL"):
        admin_url(None, str(tmp_path))


def test_without_a_word_it_is_the_one_here_or_else_the_only_one(tmp_path):
    with pytest.raises(NotRunning, match=r"start one with `forebay up -c FILE`.*a `forebay gateway` alone has no controller to ask"):
        admin_url(None, None)
    announce(Path("/somewhere"), HERE)
    assert admin_url(None, None) == HERE.admin
    announce(Path("/else"), Running("g", "http://127.0.0.1:3", os.getppid()))
    with pytest.raises(BadInput, match=r"2 Forebays run on this machine; say which: .*--state /somewhere"):
        admin_url(None, None)
    (tmp_path / ".forebay").mkdir()
    write_value(tmp_path / ".forebay" / "up.json", Running("g", "http://127.0.0.1:4", 1))
    assert admin_url(None, None) == "http://127.0.0.1:4"


def test_the_fleet_that_was_found_elsewhere_is_named_by_its_state_folder(tmp_path, capsys):
    announce(Path("/another/fleet"), HERE)
    admin_url(None, None)
    assert (
        capsys.readouterr().err == "forebay: nothing runs in .forebay here; this is the only one on this machine: --state /another/fleet\n"
    )
    with contextlib.suppress(BadInput), admin_client.history(None):
        pass
    assert capsys.readouterr().err == "", "once is enough"
    (tmp_path / ".forebay").mkdir()
    write_value(tmp_path / ".forebay" / "up.json", HERE)
    admin_url(None, None)
    assert capsys.readouterr().err == ""


def test_an_answer_is_decoded(answers):
    opener = answers(200, b'{"a": 1}')
    assert ask("http://h", "/v1/status", {}, dict[str, int]) == {"a": 1}
    ask("http://h", "/v1/explain", {"at": "08:00+01:00", "pool": "a b"}, dict[str, int])
    assert opener.asked == ["http://h/v1/status", "http://h/v1/explain?at=08%3A00%2B01%3A00&pool=a+b"]


def test_what_the_server_refuses_is_bad_input_in_its_words(answers):
    answers(400, json.dumps({"error": "pool: found 'x'; allowed: chat"}).encode())
    with pytest.raises(BadInput) as caught:
        ask("http://h", "/v1/explain", {}, list[int])
    assert str(caught.value) == "pool: found 'x'; allowed: chat"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error": {"message": "Unknown request URL"}}'),
        (404, b'{"error": "no such page"}'),
        (400, b'{"error": {"message": "not ours"}}'),
        (400, b"<html>"),
        (500, b"Internal Server Error"),
    ],
)
def test_another_server_is_not_taken_for_a_forebay(answers, status, body):
    answers(status, body)
    with pytest.raises(NotRunning, match=f"answered {status}; is this the admin address of a Forebay"):
        ask("http://h", "/v1/status", {}, list[int])


@pytest.mark.parametrize(
    "body", [b"<html>", b'{"a": "text"}', b"", ConnectionRefusedError(111, "Connection refused"), TimeoutError("timed out")]
)
def test_no_answer_that_makes_sense(answers, body):
    answers(200, body)
    with pytest.raises(NotRunning, match=r"no answer from http://h that makes sense .*is `forebay up` running"):
        ask("http://h", "/v1/status", {}, dict[str, int])


def test_an_address_that_is_none_is_no_traceback():
    with pytest.raises(NotRunning, match="no answer"):
        ask("http://[::1", "/v1/status", {}, dict[str, int])


def test_a_gateway_is_found_as_its_controller_is(tmp_path):
    with pytest.raises(NotRunning, match="name it with --gateway URL"):
        admin_client.instances(None, None)
    announce(Path("/somewhere"), HERE)
    there = admin_client.Instance(Path("/somewhere"), (HERE.gateway,))
    assert admin_client.instances(None, None) == (there,)
    assert admin_client.instances("https://host/", None) == (admin_client.Instance(Path("/somewhere"), ("https://host",)),)
    (tmp_path / ".forebay").mkdir()
    write_value(tmp_path / ".forebay" / "up.json", Running("http://g:2", "http://a:2", 1))
    here = admin_client.Instance(Path(".forebay"), ("http://g:2",))
    assert admin_client.instances(None, None) == (here, there)
    announce(tmp_path / ".forebay", Running("http://g:2", "http://a:2", os.getppid()))
    assert len(admin_client.instances(None, None)) == 2, "the one here is asked once"
    assert admin_client.instances(HERE.gateway + "/", None) == (there,)


def test_behind_a_shared_address_each_gateway_is_found_by_its_own(tmp_path):
    own = {"gateway-0": "http://127.0.0.1:5", "gateway-1": "http://127.0.0.1:6"}
    write_value(tmp_path / "up.json", msgspec.structs.replace(HERE, gateways=own))
    assert admin_client.instances(None, str(tmp_path)) == (admin_client.Instance(tmp_path, tuple(own.values())),)
    assert admin_client.instances("http://host", str(tmp_path)) == (admin_client.Instance(tmp_path, ("http://host",)),)


def test_a_page_is_fetched_with_its_key_whatever_its_status(answers):
    opener = answers(404, b"none")
    assert admin_client.fetch("http://h/x", "sk-1") == (404, b"none")
    assert opener.asked[0].get_header("Authorization") == "Bearer sk-1"
    answers(200, OSError("refused"))
    with pytest.raises(NotRunning, match=r"no answer from http://h/x \(refused\)"):
        admin_client.fetch("http://h/x", "")
