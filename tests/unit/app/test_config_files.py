"""Files become one kind of answer: a Spec, or every problem of every file, trouble with the files included."""

from pathlib import Path

import pytest

from forebay.app.config import load
from forebay.spec.problems import BadSpec
from forebay.spec.tree import TEXT_BYTES_MAX

GOOD = "pools: {chat: {attach: [http://127.0.0.1:9100]}}\ngrants: {'*': {}}\n"


def problems_of(path: Path) -> list[tuple[str, int, str]]:
    with pytest.raises(BadSpec) as caught:
        load(path, {})
    return [(problem.file, problem.line, problem.found) for problem in caught.value.problems]


def test_team_files_beside_it_are_read(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(GOOD)
    assert load(path, {}).teams == ()
    teams = tmp_path / "teams"
    teams.mkdir()
    (teams / "b.yaml").write_text("teams: {b: {}}")
    (teams / "a.yml").write_text("teams: {a: {}}")
    (teams / "notes.txt").write_text("[")
    assert [team.name for team in load(path, {}).teams] == ["a", "b"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    assert problems_of(path) == [(str(path), 1, "no such file or directory")]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == [(str(tmp_path), 1, "is a directory")]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_bytes(b"pools:\n  \xff: 1\n")
    assert problems_of(path) == [(str(path), 2, "the byte 0xff")]


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_bytes(b"#" * (TEXT_BYTES_MAX + 1))
    assert "more than" in problems_of(path)[0][2]


def test_the_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(GOOD + "speed: x\n")
    teams = tmp_path / "teams"
    teams.mkdir()
    (teams / "a.yaml").write_bytes(b"\xfe")
    (teams / "b.yaml").write_text("teams: {b: {weight: 7}}")
    found = problems_of(path)
    assert sorted(Path(file).name for file, _, _ in found) == ["a.yaml", "b.yaml", "forebay.yaml"]


def test_a_tokenizer_is_looked_for_beside_the_configuration(tmp_path):
    (tmp_path / "forebay.yaml").write_text(
        "pools: {chat: {attach: ['http://127.0.0.1:1'], estimate: {tokenizer: llama/tokenizer.json, image_tokens: 576}}}\n"
    )
    (pool,) = load(tmp_path / "forebay.yaml").pools
    assert pool.estimate.tokenizer == str(tmp_path / "llama" / "tokenizer.json")
    assert (pool.estimate.image_tokens, pool.estimate.audio_tokens_per_s) == (576, 25.0)
