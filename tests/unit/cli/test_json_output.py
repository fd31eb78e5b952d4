"""``--json PATH``: stdout for ``-``, a whole file or none at all otherwise."""

import json
import os

import pytest

from forebay.cli.output import check_json, write_json
from forebay.domain.errors import BadInput


def test_a_dash_is_stdout_and_nothing_else(capfdbinary):
    write_json({"pool": "chät", "waiting": None}, "-")
    out, err = capfdbinary.readouterr()
    assert json.loads(out) == {"pool": "chät", "waiting": None}
    assert out.endswith(b"}\n")
    assert err == b""


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "out.json"
    target.write_text("before")
    write_json([1, 2], str(target))
    assert json.loads(target.read_text()) == [1, 2]
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_place_that_can_not_be_written_is_bad_input(tmp_path):
    for wrong in (tmp_path / "none" / "out.json", tmp_path):
        with pytest.raises(BadInput, match=r"--json: can't write .*; name a file in a folder that exists, or - for stdout"):
            write_json({}, str(wrong))
    assert os.listdir(tmp_path) == []


def test_a_place_that_can_not_be_written_is_known_before_the_work_is_done(tmp_path):
    """A replay of an hour ended with "nothing was sent", and its report was lost."""
    for wrong in (tmp_path / "none" / "out.json", tmp_path):
        with pytest.raises(BadInput, match=r"--json: can't write "):
            check_json(str(wrong))
    for right in (None, "-", str(tmp_path / "out.json"), "/dev/null"):
        check_json(right)
    assert os.listdir(tmp_path) == []


def test_a_pipe_or_device_is_written_to_and_not_replaced_by_a_file(tmp_path):
    """As root ``--json /dev/null`` put a file in the place of the device, and ``/dev/full`` looked like a success."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_json([1], str(pipe))
        assert json.loads(os.read(reader, 1000)) == [1]
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_what_a_link_points_to_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "real.json").write_text("before")
    link = tmp_path / "link.json"
    link.symlink_to("real.json")
    write_json([1], str(link))
    assert link.is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == [1]
    assert sorted(os.listdir(tmp_path)) == ["link.json", "real.json"]
