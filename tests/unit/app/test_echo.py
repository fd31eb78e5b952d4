import pytest

from forebay.app.echo import LINE_CHARS_MAX, LINES_MAX, Echo, running, stopping

READY = "2026-11-29T14:00:00.000Z replica_ready pool=chat chat-1 is ready start=1.0\n"
NOISE = "2026-11-29T14:00:00.000Z roster 2 replicas\n"


def test_only_what_tells_of_the_start_is_shown_and_only_once(tmp_path):
    log = tmp_path / "controller.log"
    log.write_text(READY)
    echo = Echo(log)
    with log.open("a") as file:
        file.write(NOISE + READY + READY[:30])
    assert echo.look() == ["replica ready: pool=chat chat-1 is ready start=1.0"]
    with log.open("a") as file:
        file.write(READY[30:])
    assert echo.look() == ["replica ready: pool=chat chat-1 is ready start=1.0"]
    assert echo.look() == []


def test_a_log_that_is_not_there_or_was_cut_is_no_trouble(tmp_path):
    log = tmp_path / "controller.log"
    echo = Echo(log)
    assert echo.look() == []
    log.write_text(READY * 3)
    assert len(echo.look()) == 3
    log.write_text(READY)
    assert len(echo.look()) == 1


def test_a_storm_is_counted_and_not_poured_out(tmp_path):
    log = tmp_path / "controller.log"
    log.write_text("")
    echo = Echo(log)
    log.write_text(READY * (LINES_MAX + 5))
    shown = echo.look()
    assert len(shown) == LINES_MAX + 1
    assert "5 more lines" in shown[-1]


AT = "2026-11-29T14:00:00.000Z "


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("scale pool=chat 2 → 3: chat: 3 replicas (queue: 9 waiting)", "scale: pool=chat 2 → 3: chat: 3 replicas (queue: 9 waiting)"),
        ("engine_failed pool=chat r0 failed a request: No.", "engine failed: pool=chat r0 failed a request: No."),
        ("something_new of a later version", "something new: of a later version"),
        ("roster 2 replicas", ""),
        ("replica_loading pool=chat chat-1 is loading", ""),
        ("alert " + "x" * 1000, "alert: " + "x" * (LINE_CHARS_MAX - 7) + "…"),
    ],
)
def test_once_it_runs_all_but_the_ordinary_is_told_on_one_line(tmp_path, line, shown):
    """The terminal was silent after it was ready: scaling, deaths and overload went to the logs alone."""
    log = tmp_path / "gateway.log"
    log.write_text("")
    echo = Echo(log)
    log.write_text(f"{AT}{line}\n")
    assert echo.look(running) == ([shown] if shown else [])


def test_what_is_no_event_is_left_in_the_log_but_for_what_was_meant_for_people(tmp_path):
    log = tmp_path / "gateway.log"
    log.write_text("")
    echo = Echo(log)
    log.write_text("Traceback (most recent call last):\n  File x\nforebay: the certificate was read again\n\n")
    assert echo.look(running) == ["the certificate was read again"]


def test_what_is_lost_as_all_stops_is_told_and_nothing_else_of_it(tmp_path):
    """`forebay up` said that it had stopped, while its gateway's log, on the disk that was full, said what that cost."""
    log = tmp_path / "gateway.log"
    log.write_text("")
    echo = Echo(log)
    log.write_text(NOISE + READY + "2026-11-29T14:00:00.000Z usage_lost 3 requests at most\n2026-11-29T14:00:00.000Z alert x\n")
    assert echo.look(stopping) == ["usage lost: 3 requests at most"]
