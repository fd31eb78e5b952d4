"""A demo that is killed leaves nothing behind, and the next one starts in its folder at once: by real processes and a real SIGKILL."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
DEMO = (sys.executable, "-m", "forebay.cli.main", "demo")
ROOT = Path(__file__).resolve().parents[2]


def fleet_of(out):
    """What runs of the fleets whose files are in ``out``."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(word.startswith(f"{out}/with") for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "demo-out"
    yield folder
    for process in fleet_of(folder):
        process.kill()


@pytest.fixture
def until_ready(wait_until, out):
    """Starts a process, and waits until the demo's fleet is there and ready."""
    ready = out / "with-buffer" / "ready.json"
    all_started = []

    def start(*command):
        ready.unlink(missing_ok=True)
        with (out.parent / "demo.log").open("wb") as log:
            started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        all_started.append(started)

        def look():
            assert started.poll() is None, (out.parent / "demo.log").read_text()
            return ready.exists()

        wait_until(look, "the demo's fleet")
        return started

    yield start
    for started in all_started:
        started.kill()
        started.wait()


def test_a_demo_that_is_killed_takes_its_fleet_with_it_and_the_next_one_starts(until_ready, wait_until, out):
    first = until_ready(*DEMO, "--out", str(out))
    assert len(fleet_of(out)) >= 4, "up, its controller, its gateway, an engine"
    first.kill()
    first.wait()
    second = until_ready(*DEMO, "--out", str(out))
    second.kill()
    second.wait()
    wait_until(lambda: not fleet_of(out), "the end of the fleet")
    assert "it ends with it" in (out / "with-buffer" / "up.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process ends with its parent")
def test_a_demo_ends_with_the_make_that_is_killed(until_ready, wait_until, out):
    made = f"import subprocess; subprocess.run({[*DEMO, '--with-parent', '--out', str(out)]!r}); input()"
    make = until_ready(sys.executable, "-c", made)
    (demo,) = psutil.Process(make.pid).children()
    make.kill()
    make.wait()
    wait_until(lambda: not fleet_of(out) and not (demo.is_running() and demo.status() != psutil.STATUS_ZOMBIE), "the end of demo and fleet")
