"""What is wrong is said before anything starts: exit code 2, one message that says what to do, no process, no traceback."""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

import forebay.app.supervisor
from forebay.cli.main import main

pytestmark = pytest.mark.e2e
NOBODY = 65534
GOOD = "pools: {{chat: {{model: m, profile: llama-3.1-8b-h100, engine: {{kind: emulated}}}}}}\ngateway: {{listen: '127.0.0.1:{port}'}}\nadmin: {{listen: '127.0.0.1:0'}}\n"


@pytest.fixture
def forebay(monkeypatch, capfd, tmp_path):
    """Runs a verb in this process, in an empty folder: (exit code, what it wrote to stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["forebay", *map(str, words)])
        before = set(psutil.Process().children(recursive=True))
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capfd.readouterr()
        assert out == ""
        assert "Traceback" not in err
        assert set(psutil.Process().children(recursive=True)) <= before, "something was started"
        return caught.value.code, err

    return run


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "forebay.yaml"
    path.write_text(GOOD.format(port=0))
    return path


def test_every_problem_of_a_configuration_at_once(forebay, tmp_path):
    path = tmp_path / "forebay.yaml"
    path.write_text("pools:\n  chat:\n    engine: {kind: emulated}\n    scaling: {mni: 2}\nspeed: fast\n")
    code, err = forebay("up", "-c", path)
    assert code == 2
    assert "mni: found an unknown key; allowed: min, max" in err
    assert 'did you mean "min"?' in err
    assert f'{path}:5: speed: found "fast"' in err
    assert "nothing was started" in err
    assert not (tmp_path / ".forebay").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [("pools: [", "forebay.yaml:1"), ("", "forebay.yaml"), (None, "no such file or directory"), ("folder", "is a directory")],
)
def test_a_file_that_is_none(forebay, tmp_path, content, said):
    path = tmp_path / "forebay.yaml"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    code, err = forebay("up", "-c", path)
    assert code == 2
    assert said in err


def test_a_missing_option_is_named(forebay):
    code, err = forebay("up")
    assert code == 2
    assert "Missing option '--config'" in err or "Missing option '-c'" in err


@pytest.mark.parametrize(
    ("speed", "said"),
    [("0", "0.01"), ("-1", "0.01"), ("nan", "1000"), ("fast", "found 'fast'; allowed: a number; see `forebay up --help`")],
)
def test_a_speed_that_is_none(forebay, config, speed, said):
    code, err = forebay("up", "-c", config, "--speed", speed)
    assert code == 2
    assert "--speed" in err
    assert said in err


@pytest.mark.parametrize(
    ("port", "allowed"), [("abc", "a whole number"), ("1.5", "a whole number"), ("70000", "at most 65535"), ("-1", "at least 0")]
)
def test_a_port_that_is_none_is_said_with_place_found_allowed_and_what_to_do(forebay, config, port, allowed):
    code, err = forebay("gateway", "-c", config, f"--port={port}")
    assert (code, err) == (2, f"--port: found '{port}'; allowed: {allowed}; see `forebay gateway --help`\n")


def test_an_address_that_is_taken(forebay, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "forebay.yaml").write_text(GOOD.format(port=port))
        code, err = forebay("up", "-c", tmp_path / "forebay.yaml")
    assert (code, err) == (
        2,
        f"gateway: can't listen on 127.0.0.1:{port} (Address already in use); name another address, or port 0 for a free one\n",
    )


def test_a_state_folder_that_another_uses(forebay, config, tmp_path):
    (tmp_path / "state").mkdir()
    with (tmp_path / "state" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, err = forebay("up", "-c", config, "--state", tmp_path / "state")
    assert code == 2
    assert err == f"state: another `forebay up` uses {tmp_path / 'state'}; stop it, or name another folder with --state\n"


def test_a_state_folder_that_can_not_be_written_to(forebay, config):
    code, err = forebay("up", "-c", config, "--state", config / "state")
    assert code == 2
    assert err.startswith("state: can't write to the folder")
    assert err.endswith("name another with --state\n")


def test_a_state_folder_of_somebody_else(forebay):
    """As a user who may read everything and write nothing there; root has to become one."""
    me = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        config, state = Path(folder) / "forebay.yaml", Path(folder) / "state"
        config.write_text(GOOD.format(port=0))
        (state / "logs").mkdir(parents=True)
        Path(folder).chmod(0o755)
        state.chmod(0o555)
        if me == 0:
            os.seteuid(NOBODY)
        try:
            if not os.access(config, os.R_OK, effective_ids=True):
                pytest.skip("nobody can read the temporary folder here")
            code, err = forebay("up", "-c", config, "--state", state)
        finally:
            os.seteuid(me)
            state.chmod(0o755)
    assert (code, err) == (2, f"state: can't write to the folder {state} (Permission denied); name another with --state\n")


@pytest.mark.parametrize("verb", [("up",), ("gateway", "--port", "0")])
def test_a_ready_file_that_can_not_be_left(forebay, config, tmp_path, verb):
    if verb[0] == "gateway":
        config.write_text("pools: {chat: {attach: [http://127.0.0.1:9]}}\n")
    for wrong in (tmp_path / "none" / "ready.json", tmp_path):
        code, err = forebay(*verb, "-c", config, "--ready-file", wrong)
        assert (code, err) == (2, f"--ready-file: found {str(wrong)!r}; allowed: a file in a folder that exists\n")


def test_a_gateway_alone_starts_no_engines(forebay, config):
    code, err = forebay("gateway", "-c", config, "--port", "0")
    assert code == 2
    assert "pools chat start their engines, which `forebay gateway` does not do" in err
    assert "attach: [http://host:port]" in err


def test_a_gateway_alone_on_a_port_that_is_taken(forebay, config):
    config.write_text("pools: {chat: {attach: [http://127.0.0.1:9]}}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = forebay("gateway", "-c", config, "--port", str(port))
    assert code == 2
    assert f"can't listen on 127.0.0.1:{port} (Address already in use)" in err


@pytest.mark.parametrize("verb", ["status", "explain"])
def test_nothing_runs(forebay, monkeypatch, tmp_path, verb):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, err = forebay(verb)
    assert code == 1
    assert "start one with `forebay up -c FILE`" in err
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code, err = forebay(verb, "--admin", f"http://127.0.0.1:{port}")
    assert code == 1
    assert f"no answer from http://127.0.0.1:{port}" in err
    code, err = forebay(verb, "--admin", "localhost")
    assert code == 2
    assert "--admin: found 'localhost'; allowed: a URL" in err


def test_an_unknown_verb_and_an_unknown_option_are_bad_input(forebay):
    assert forebay("dance")[0] == 2
    assert forebay("up", "--dance")[0] == 2


def test_as_a_process_too(config, tmp_path):
    """The same by way of the installed command: nothing but the message, and the code."""
    config.write_text("pools: {}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("forebay"), "up", "-c", config], capture_output=True, text=True, timeout=45, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing was started" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_controller_that_can_not_start_is_said_with_its_reason(up, tmp_path):
    """A history that is no database: what the controller says is passed on, everything ends, and nothing is left."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "forebay.db").write_text("this is no database, however long it may be, and it is long enough for a header to be looked at")
    one = up(GOOD.format(port=0), state=state)
    assert one.wait() == 1
    said = one.output.read_text()
    assert "the controller does not start: it ended with exit code 1" in said
    assert "forebay.db is damaged" in said
    assert "move it away" in said
    assert "Traceback" not in said
    assert one.left() == []
    assert not one.ready_file.exists()
