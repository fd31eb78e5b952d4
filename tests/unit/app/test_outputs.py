"""What a user said to leave somewhere: whole or not at all, never in the place of what it is made from."""

import gzip
import os
import threading

import pytest

from forebay.app import outputs
from forebay.domain.errors import BadInput, ForebayError


def test_two_runs_that_leave_the_same_file_at_once_each_have_their_own_unfinished_one(tmp_path, monkeypatch):
    """Both wrote `x.json.part`: what one had put in its place was still written by the other, who then found nothing to put."""
    path, seen = tmp_path / "x.csv", []
    with outputs.whole(path, packed=False) as first:
        first.write(b"first")
        monkeypatch.setattr(os, "getpid", lambda: 12345)
        with outputs.whole(path, packed=False) as second:
            second.write(b"second")
            first.flush()
            seen = sorted(os.listdir(tmp_path))
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert len(seen) == 2
    assert os.listdir(tmp_path) == ["x.csv"]


def test_a_disk_that_is_full_leaves_nothing_half_done_and_what_was_there(tmp_path):
    for path in (tmp_path / "full", tmp_path / "full.gz"):
        path.symlink_to("/dev/full")
        with pytest.raises(ForebayError, match=r"can't write .*: No space left on device"), outputs.whole(path, packed=True) as file:
            file.write(b"x" * 100_000)
        with pytest.raises(BadInput, match=r"--html: can't write '.*' \(No space left on device\); name a file in a folder that exists"):
            outputs.leave("--html", path, b"page")
        assert path.is_symlink()


def test_what_is_broken_off_leaves_what_was_there(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("before")

    def rows(file):
        file.write(b"after")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), outputs.whole(path, packed=False) as file:
        rows(file)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["x.csv"]


def test_a_pipe_is_written_to_and_a_link_kept(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    outputs.leave("--json", tmp_path / "pipe", b"text")
    reader.join()
    assert found == [b"text"]
    (tmp_path / "link").symlink_to("real")
    with outputs.whole(tmp_path / "link", packed=True) as file:
        file.write(b"rows")
    assert gzip.decompress((tmp_path / "real").read_bytes()) == b"rows"
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "real"]


def test_what_could_not_be_left_is_known_before_the_work(tmp_path, monkeypatch):
    """A page for a folder that may not be written was refused when all was played; as a trace it was written first, and then lost."""
    (tmp_path / "guarded").mkdir()
    (tmp_path / "file").write_text("")
    for path, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "none" / "x", "No such file or directory"),
        (tmp_path / "file" / "x", "No such file or directory"),
        (tmp_path / "guarded" / "x", "Permission denied"),
    ):
        # Root may write everywhere: the answer is the kernel's to others.
        monkeypatch.setattr(os, "access", lambda place, mode: "guarded" not in str(place))
        with pytest.raises(BadInput, match=rf"--out: can't write '{path}' \({why}\); name a file"):
            outputs.check("--out", path)
    for path in (tmp_path / "file", tmp_path / "new"):
        outputs.check("--out", path)
    assert sorted(os.listdir(tmp_path)) == ["file", "guarded"]


def test_a_result_does_not_take_the_place_of_what_it_is_made_from_or_of_another(tmp_path):
    """``--json days.csv`` beside ``--trace days.csv`` left no trace; ``--json x --html x`` left one of the two."""
    trace, page = tmp_path / "days.csv", tmp_path / "x"
    trace.write_text("rows")
    (tmp_path / "link").symlink_to("days.csv")
    with pytest.raises(BadInput, match=r"--json: found '.*link', which is the trace; allowed: a file of its own"):
        outputs.check_apart({"--json": tmp_path / "link"}, {"the trace": trace})
    with pytest.raises(BadInput, match=r"--html: found '.*', which is what --json names"):
        outputs.check_apart({"--json": page, "--html": tmp_path / "." / "x"}, {"the trace": trace})
    outputs.check_apart({"--json": page, "--html": None}, {"the trace": trace, "what --lengths names": None})
    os.mkfifo(tmp_path / "pipe")
    outputs.check_apart({"--json": tmp_path / "pipe", "--html": tmp_path / "pipe"}, {})
