from forebay.app.echo import LINES_MAX, Echo

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
