"""Progress of the lab's verbs where nobody looks at a terminal."""

import pytest

from forebay.cli import lab_output


@pytest.fixture
def now():
    return [1000.0]


def played(now, seconds, every_s=1.0):
    """Work of so many ``seconds``, told of each ``every_s``."""
    with lab_output.told_bar(lambda: now[0]) as (doing, tell):
        doing("22 policies")
        for step in range(int(seconds / every_s)):
            now[0] += every_s
            tell((step + 1) * every_s / seconds)


def test_a_log_hears_every_quarter_of_a_minute_how_far_a_long_comparison_is(now, capsys):
    """A large trace took minutes in which nothing at all was written."""
    played(now, 60)
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        f"22 policies: {share} % after {after}" for share, after in ((25, "15s"), (50, "30s"), (75, "45s"), (100, "1m"))
    ]
    assert told.out == "", "which may be --json -"


def test_short_work_writes_nothing_to_a_log(now, capsys):
    played(now, 14)
    assert capsys.readouterr() == ("", "")


def test_a_night_of_work_does_not_fill_a_log(now, capsys):
    played(now, 12 * 3600, every_s=5.0)
    assert 50 < len(capsys.readouterr().err.splitlines()) < 150


def test_a_log_that_takes_no_more_costs_nobody_the_run(now, monkeypatch):
    """`compare … 2> >(head -1)`, or a log on a disk that is full: the second line of progress ended an hour's work."""

    class Full:
        def isatty(self):
            return False

        def write(self, text):
            raise OSError(28, "No space left on device")

        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Full())
    played(now, 60)


def test_a_terminal_has_a_bar_and_no_lines(now, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    played(now, 60, every_s=15.0)
    assert " % after " not in capsys.readouterr().err
