"""A verb that is stopped: one line, the code that shells know, nothing half done."""

import os
import signal

import pytest
import typer

from forebay.cli import lab_output, output
from forebay.cli.stopping import stoppable
from forebay.domain.errors import BadInput


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_that_ends_is_a_ctrl_c_with_its_own_code(number, code, capsys):
    """A comparison that was told to end left its workers, and a trace in the making its unfinished file."""
    before, cleaned = signal.getsignal(number), []

    @stoppable()
    def verb():
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            cleaned.append(True)

    with pytest.raises(typer.Exit) as ended:
        verb()
    assert (ended.value.exit_code, cleaned) == (code, [True])
    assert capsys.readouterr() == ("", "stopped; nothing was written\n")
    assert signal.getsignal(number) is before


def test_ctrl_c_is_one_line_and_130(capsys):
    with pytest.raises(typer.Exit) as ended, stoppable():
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "stopped; nothing was written\n"


class Delivered:
    """A comparison of which only that it is delivered matters."""


@pytest.fixture
def delivering(monkeypatch):
    """What was written, in order; a page for ``refused`` can't be."""
    import forebay.app.lab.comparing as comparing
    import forebay.app.lab.reporting as reporting

    done = []

    def write_page(found, path):
        if str(path) == "refused":
            raise BadInput("--html: can't write 'refused'")
        done.append(f"page {path}")

    monkeypatch.setattr(comparing, "as_json", lambda found: {})
    monkeypatch.setattr(reporting, "write_page", write_page)
    monkeypatch.setattr(output, "write_json", lambda value, target: done.append(f"json {target}"))
    monkeypatch.setattr(lab_output, "show", lambda found, html: done.append(f"table, page {html}"))
    return done


def test_a_page_that_can_not_be_written_costs_nobody_the_numbers(delivering):
    with pytest.raises(BadInput, match="--html: can't write 'refused'"):
        lab_output.deliver(Delivered(), "x.json", "refused")
    assert delivering == ["json x.json", "table, page None"]


def test_files_are_there_before_the_table_whose_reader_may_leave(delivering, monkeypatch):
    """`compare --html report.html | head -1` ended before there was a page."""

    def left(found, html):
        raise BrokenPipeError

    monkeypatch.setattr(lab_output, "show", left)
    with pytest.raises(BrokenPipeError):
        lab_output.deliver(Delivered(), "x.json", "page.html")
    assert delivering == ["page page.html", "json x.json"]


def test_who_stops_it_while_it_is_written_hears_what_was(delivering, monkeypatch, capsys):
    def stopped(value, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "write_json", stopped)
    with pytest.raises(typer.Exit) as ended:
        lab_output.deliver(Delivered(), "x.json", "page.html")
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "stopped; written: page.html\n"
