"""``--json PATH``: stdout for ``-``, a whole file or none at all otherwise."""

import json
import os

import pytest

from forebay.cli.output import write_json
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
