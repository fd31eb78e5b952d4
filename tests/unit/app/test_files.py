"""Small files: whole or not at all, private where they hold keys, and found again by whoever looks."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from forebay.app import config
from forebay.app.files import (
    Running,
    announce,
    announced,
    check_ready_file,
    remove_unfinished,
    save_spec,
    saved_spec,
    state_folder,
    write_value,
    write_whole,
)
from forebay.domain.errors import BadInput, ForebayError

HOME = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path for path in (HOME / "examples").rglob("*.yaml") if path.parent.name != "teams")
HERE = Running("http://127.0.0.1:1", "http://127.0.0.1:2", os.getpid())


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"one")
    write_whole(path, b"two", 0o600)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_what_can_not_be_written_leaves_what_was_there(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(ForebayError, match=f"can't write {path}: Is a directory"):
        write_whole(path, b"one")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(ForebayError, match="No such file or directory"):
        write_whole(tmp_path / "none" / "file", b"one")


def test_what_a_killed_process_left_unfinished_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    stray, living = tmp_path / f"spec.msgpack.{gone.pid}.part", tmp_path / f"spec.msgpack.{os.getpid()}.part"
    others = [tmp_path / name for name in ("spec.msgpack", "a.part", ".part", f"note.{'9' * 40}.part")]
    for path in (stray, living, *others):
        path.write_text("x")
    remove_unfinished(tmp_path)
    assert not stray.exists()
    assert all(path.exists() for path in (living, *others))


def test_a_ready_file_is_json(tmp_path):
    write_value(tmp_path / "ready.json", HERE)
    assert msgspec.json.decode((tmp_path / "ready.json").read_bytes()) == {"gateway": HERE.gateway, "admin": HERE.admin, "pid": HERE.pid}


def test_a_ready_file_that_could_not_be_written_is_bad_input(tmp_path):
    check_ready_file(None)
    check_ready_file(tmp_path / "ready.json")
    os.mkfifo(tmp_path / "pipe")  # as root a device, /dev/null say, would be replaced by a file
    for wrong in (tmp_path, tmp_path / "none" / "ready.json", tmp_path / "pipe"):
        with pytest.raises(BadInput, match=r"--ready-file: found .*; allowed: a file in a folder that exists"):
            check_ready_file(wrong)


def test_the_state_folder_is_made(tmp_path):
    assert state_folder(tmp_path / "a" / "b").is_dir()
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["logs"], "the trial left nothing"
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "state", Path("/proc/forebay")):
        with pytest.raises(BadInput, match=r"state: can't write to the folder .* name another with --state"):
            state_folder(wrong)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(HOME / "examples")))
def test_a_spec_that_was_saved_is_the_same_spec_and_private(path, tmp_path):
    spec = config.load(path)
    saved = save_spec(spec, tmp_path)
    assert saved_spec(saved) == spec
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"\x81\xa5pools\xc0"])
def test_a_saved_spec_that_is_ill_says_what_to_do(content, tmp_path):
    path = tmp_path / "spec.msgpack"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ForebayError, match="stop `forebay up` and start it again"):
        saved_spec(path)


@pytest.fixture
def own_tmp(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"forebay-{os.getuid()}"


def test_what_runs_is_found_and_what_has_ended_is_forgotten(own_tmp):
    assert announced() == []
    note = announce(Path("/state"), HERE)
    gone = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    gone.wait()
    announce(Path("/other"), msgspec.structs.replace(HERE, pid=gone.pid))
    (own_tmp / "0.json").write_text("not ours")
    assert [(one.state, one.running) for one in announced()] == [("/state", HERE)]
    assert sorted(os.listdir(own_tmp)) == sorted(["0.json", note.name])
    assert stat.S_IMODE(own_tmp.stat().st_mode) == 0o700


def test_a_folder_that_others_may_write_to_is_not_believed(own_tmp):
    assert announce(Path("/state"), HERE) is not None
    own_tmp.chmod(0o777)
    assert announced() == []
    assert announce(Path("/state"), HERE) is None


def test_a_link_is_not_believed(own_tmp, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own_tmp.symlink_to(tmp_path / "elsewhere")
    assert announce(Path("/state"), HERE) is None
    assert announced() == []


def test_two_processes_that_write_one_file_are_not_in_each_others_way(tmp_path, monkeypatch):
    """Two gateways keep the same configuration in the same second."""
    path = tmp_path / "spec.msgpack"
    replace = os.replace

    def while_another_writes(part, to):
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        write_whole(path, b"another's")
        replace(part, to)

    monkeypatch.setattr(os, "replace", while_another_writes)
    write_whole(path, b"this one's")
    assert path.read_bytes() == b"this one's"
    assert list(tmp_path.iterdir()) == [path]
