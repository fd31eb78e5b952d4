"""What was spent is in a file before more is: whole or not at all, and trouble with it is said once."""

import os

from forebay.app.spent import SpentFile

SPENT = {"chat/far": [(1_790_000_000.5, 0.25), (1_790_000_060.0, 0.5)]}


def test_what_was_saved_is_loaded_by_the_next_process(tmp_path):
    said = []
    SpentFile(tmp_path / "spent.json", said.append).save(SPENT)
    assert SpentFile(tmp_path / "spent.json", said.append).load() == SPENT
    assert said == []


def test_nothing_was_spent_where_there_is_no_file(tmp_path):
    assert SpentFile(tmp_path / "spent.json", lambda words: None).load() == {}


def test_trouble_is_said_once_and_stops_nothing(tmp_path):
    said = []
    broken = SpentFile(tmp_path / "spent.json", said.append)
    (tmp_path / "spent.json").write_text("[]")
    assert broken.load() == {}
    nowhere = SpentFile(tmp_path / "none" / "spent.json", said.append)
    for _ in range(3):
        nowhere.save(SPENT)
    assert len(said) == 2
    assert all("will not know what it has spent" in words for words in said)


def test_gateways_that_share_a_folder_do_not_overwrite_what_each_other_spent(tmp_path):
    said = []
    one, other = (SpentFile(tmp_path / "spent.json", said.append) for _ in range(2))
    assert one.load() == other.load() == {}
    one.save(SPENT)
    other.save({"chat/far": [(1_790_000_000.5, 9.0)]})
    assert SpentFile(tmp_path / "spent.json", said.append).load() == {}, "both files are held"
    os.close(one._lock)  # as the kernel does where a process is killed
    assert SpentFile(tmp_path / "spent.json", said.append).load() == SPENT
    assert said == []
