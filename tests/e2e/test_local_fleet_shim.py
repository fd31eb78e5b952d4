"""The shim with real processes: exit codes, escalation, and nothing left behind whoever is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from forebay.adapters.local.command import SHIM

pytestmark = pytest.mark.e2e
ENGINE = Path(__file__).parents[1] / "fixtures" / "engines" / "tiny_engine.py"
WAIT_S = 10.0
HOLDER = """
import os, subprocess, sys, time
read, write = os.pipe()
os.set_inheritable(read, True)
shim = subprocess.Popen(sys.argv[1:], pass_fds=(read,), env={**os.environ, "FOREBAY_LIFELINE_FD": str(read)})
os.close(read)
time.sleep(600)
"""


def shim_command(*command, grace="0.3", orphan_grace="0.3"):
    return [sys.executable, "-I", "-S", str(SHIM), "--grace", grace, "--orphan-grace", orphan_grace, "--", *command]


def engine(*options):
    return [sys.executable, "-I", "-S", str(ENGINE), "--port", "0", *options]


def until(true, what):
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def pids_in(path):
    until(path.exists, "the engine never started")
    return [int(line) for line in path.read_text().split()]


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def none_left(pids):
    until(lambda: not any(alive(pid) for pid in pids), "something survived")


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -11 $$", 139)],
    ids=["zero", "three", "killed", "segfault"],
)
def test_the_exit_code_is_the_engines(script, code):
    assert subprocess.run(shim_command("sh", "-c", script), stderr=subprocess.DEVNULL).returncode == code


def test_a_log_on_a_full_disk_does_not_change_the_exit_code():
    with open("/dev/full", "wb") as full:
        assert subprocess.run(shim_command("sh", "-c", "kill -9 $$"), stderr=full, timeout=WAIT_S).returncode == 137


def test_a_command_that_does_not_exist_is_said():
    result = subprocess.run(shim_command("no-such-engine"), capture_output=True, text=True)
    assert result.returncode == 127
    assert "cannot start no-such-engine: No such file" in result.stderr


def test_without_a_command_it_says_how_it_is_used():
    result = subprocess.run([sys.executable, "-I", "-S", str(SHIM), "--grace", "1"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "usage" in result.stderr


def test_sigterm_reaches_the_engine_once():
    script = "trap 'echo term' TERM; echo up; i=0; while [ $i -lt 60 ]; do sleep 0.01; i=$((i+1)); done"
    with subprocess.Popen(shim_command("sh", "-c", script, grace="30"), stdout=subprocess.PIPE, text=True) as shim:
        assert shim.stdout.readline() == "up\n"
        shim.terminate()
        assert shim.stdout.read() == "term\n"
    assert shim.returncode == 0


def test_a_polite_engine_ends_at_the_first_sigterm(tmp_path):
    with subprocess.Popen(shim_command(*engine("--pids", str(tmp_path / "pids")), grace="30"), stderr=subprocess.DEVNULL) as shim:
        pids = pids_in(tmp_path / "pids")
        shim.terminate()
        assert shim.wait(WAIT_S) == 128 + signal.SIGTERM
    none_left(pids)


def test_a_stubborn_engine_with_helpers_is_killed_with_them(tmp_path):
    command = shim_command(*engine("--stubborn", "--helper", "--pids", str(tmp_path / "pids")))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as shim:
        pids = pids_in(tmp_path / "pids")
        assert len(pids) == 3
        shim.terminate()
        words = shim.stderr.read()
    assert shim.returncode == 137
    assert words.index("sending another") < words.index("killing it")
    none_left(pids)


def test_helpers_do_not_outlive_an_engine_that_crashes(tmp_path):
    options = ["--helper", "--pids", str(tmp_path / "pids"), "--die-after", "0.2", "--code", "4"]
    with subprocess.Popen(shim_command(*engine(*options)), stderr=subprocess.DEVNULL) as shim:
        pids = pids_in(tmp_path / "pids")
        assert shim.wait(WAIT_S) == 4
    none_left(pids)


def test_what_tidies_up_after_the_engine_may_finish(tmp_path):
    tidied = tmp_path / "tidied"
    tidier = f"trap '' TERM; echo up; cat > /dev/null; sleep 0.2; touch {tidied}"
    script = "import subprocess, sys; subprocess.Popen(['sh', '-c', sys.argv[1]], stdin=subprocess.PIPE); input()"
    command = shim_command(sys.executable, "-I", "-S", "-c", script, tidier, grace="30")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as shim:
        assert shim.stdout.readline() == "up\n"
        shim.terminate()
        assert shim.wait(WAIT_S) == 128 + signal.SIGTERM
    assert tidied.exists()


def test_sigquit_kills_at_once(tmp_path):
    command = shim_command(*engine("--stubborn", "--helper", "--pids", str(tmp_path / "pids")), grace="300")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as shim:
        pids = pids_in(tmp_path / "pids")
        shim.send_signal(signal.SIGQUIT)
        assert shim.wait(WAIT_S) == 137
    none_left(pids)


def test_nothing_survives_a_holder_killed_by_force(tmp_path):
    command = shim_command(*engine("--stubborn", "--helper", "--pids", str(tmp_path / "pids")), grace="300")
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOLDER, *command], stderr=subprocess.DEVNULL, start_new_session=True
    ) as holder:
        pids = pids_in(tmp_path / "pids")
        shim = psutil.Process(holder.pid).children()[0].pid
        holder.kill()
    none_left([shim, *pids])


def test_the_engine_does_not_hold_the_lifeline(tmp_path):
    read, write = os.pipe()
    environment = {**os.environ, "FOREBAY_LIFELINE_FD": str(read)}
    script = "import os; print('FOREBAY_LIFELINE_FD' in os.environ, [n for n in os.listdir('/proc/self/fd') if int(n) > 3])"
    command = shim_command(sys.executable, "-I", "-S", "-c", script)
    result = subprocess.run(command, env=environment, pass_fds=(read,), capture_output=True, text=True)
    os.close(read)
    os.close(write)
    assert result.stdout == "False []\n"


def test_the_engine_dies_with_a_shim_killed_by_force(tmp_path):
    with subprocess.Popen(shim_command(*engine("--stubborn", "--pids", str(tmp_path / "pids"))), stderr=subprocess.DEVNULL) as shim:
        pids = pids_in(tmp_path / "pids")
        shim.kill()
    none_left(pids)
