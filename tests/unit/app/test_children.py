"""A child that ends is started again, later each time; one that can't be started is a child that ended."""

import os
import signal
import subprocess
import sys

import pytest

from forebay.app.children import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    CANNOT_START,
    HEALTHY_AFTER_S,
    LIFELINE,
    SIGNALLED,
    Above,
    Child,
    Lifeline,
    how_it_ended,
    reap,
)
from forebay.app.supervisor import ended_badly


class Pretended(Child):
    """Starts no process, and says when it would have."""

    def start(self, now_s):
        self.starts = [*getattr(self, "starts", []), now_s]
        self.pid = 1_000_000 + len(self.starts)
        self._started_s = now_s
        self._restart_at_s = None


@pytest.fixture
def lifeline():
    line = Lifeline()
    yield line
    line.close()
    os.close(line.read_fd)


@pytest.fixture
def child(tmp_path, lifeline):
    one = Pretended("controller", "nothing", [], tmp_path, lifeline)
    one.start(100.0)
    return one


def delay_after_an_end(child, now_s):
    """Seconds from an end at ``now_s`` to the next start."""
    child.ended(1, now_s)
    assert (child.pid, child.exit_code) == (None, 1)
    for hundredth in range(int(BACKOFF_S_MAX * 100) + 1):
        if child.restart_if_due(now_s + hundredth / 100):
            return hundredth / 100
    raise AssertionError("it never starts again")


def test_each_crash_waits_twice_as_long_up_to_a_bound(child):
    now_s, delays = 100.0, []
    for _ in range(8):
        delays.append(delay_after_an_end(child, now_s))
        now_s += delays[-1]
    assert delays == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, BACKOFF_S_MAX, BACKOFF_S_MAX]
    assert child.restarts == 8


def test_a_child_that_lived_long_is_started_again_at_once(child):
    for _ in range(3):
        delay = delay_after_an_end(child, 100.0)
    assert delay == 4 * BACKOFF_S_MIN
    lived_until_s = child.starts[-1] + HEALTHY_AFTER_S + 1
    assert delay_after_an_end(child, lived_until_s) == BACKOFF_S_MIN


def test_one_that_runs_is_not_started_twice(child):
    assert not child.restart_if_due(1e9)
    child.ended(0, 200.0)
    assert child.restart_if_due(300.0)
    assert not child.restart_if_due(400.0)
    assert child.starts == [100.0, 300.0]


def test_a_machine_that_refuses_is_an_end_with_a_reason(tmp_path, lifeline):
    (tmp_path / "logs").write_text("a file where a folder should be")
    child = Child("gateway", "nothing", [], tmp_path / "logs", lifeline)
    child.start(5.0)
    assert (child.pid, child.exit_code) == (None, CANNOT_START)
    assert "File exists" in child.last_words()
    (tmp_path / "logs").unlink()
    assert not child.restart_if_due(5.0)
    assert not child.restart_if_due(5.0 + BACKOFF_S_MIN / 2)


def test_a_signal_to_one_that_is_gone_is_no_error(child):
    child.signal(signal.SIGTERM)
    child.ended(0, 101.0)
    child.signal(signal.SIGTERM)


def test_its_last_words_are_those_of_the_last_start(tmp_path, lifeline):
    child = Child("gateway", "nothing.of.that.name", [], tmp_path, lifeline)
    assert child.last_words() == ""
    (tmp_path / "gateway.log").write_text("an older start's words\n")
    child.start(0.0)
    os.waitid(os.P_PID, child.pid, os.WEXITED)
    assert "nothing.of.that.name" in child.last_words()
    assert "older" not in child.last_words()
    assert child.log.read_text().startswith("an older start's words\n")


def test_its_log_is_bounded(child):
    child.log.write_bytes(b"")
    with child.log.open("ab") as file:
        file.truncate(9 * 2**20)
    child.bound_log()
    assert child.log.stat().st_size == 0
    assert child.log.with_name("controller.log.1").stat().st_size == 9 * 2**20
    child.log.write_text("short\n")
    child.bound_log()
    assert child.last_words() == "short"


@pytest.mark.parametrize(("code", "told"), [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_dead_are_collected_with_their_codes(code, told):
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert (process.pid, told) in reap()
    process.returncode = told  # reaped behind its back
    assert (process.pid, told) not in reap()


def test_who_started_this_is_gone_when_its_lifeline_closes(lifeline, monkeypatch):
    monkeypatch.setenv(LIFELINE, str(lifeline.read_fd))
    above = Above()
    assert not above.gone()
    another = Lifeline()
    monkeypatch.setenv(LIFELINE, str(another.read_fd))
    cut = Above()
    another.close()
    assert cut.gone()
    assert not above.gone()
    os.close(another.read_fd)


@pytest.mark.parametrize("words", [None, "", "none", "99999"])
def test_who_was_started_by_a_person_hangs_on_nobody(words, monkeypatch):
    monkeypatch.delenv(LIFELINE, raising=False)
    if words is not None:
        monkeypatch.setenv(LIFELINE, words)
    assert not Above().gone()


def test_a_descriptor_that_is_no_pipe_is_no_lifeline(tmp_path, monkeypatch):
    with (tmp_path / "file").open("w+") as file:
        monkeypatch.setenv(LIFELINE, str(file.fileno()))
        assert not Above().gone()


def test_an_end_by_sigkill_is_said_without_a_guess_at_who_it_was():
    assert how_it_ended(137) == "was killed (SIGKILL: by somebody, or by the kernel because memory ran out)"
    assert how_it_ended(139) == "died of signal 11"
    assert how_it_ended(0) == "ended with exit code 0"
    assert how_it_ended(CANNOT_START) == "ended with exit code 127"


@pytest.mark.parametrize(("exit_code", "said"), [(0, False), (None, False), (1, True), (SIGNALLED + signal.SIGKILL, False)])
def test_a_gateway_that_could_not_stop_in_order_is_named(child, exit_code, said):
    child.exit_code = exit_code
    words = ended_badly([child])
    assert bool(words) is said
    assert not words or "ended with exit code 1 as it was stopped: usage may be lost (log: " in words[0]
