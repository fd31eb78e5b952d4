"""`forebay calibrate` against an emulated engine: the law that it behaves by comes back."""

import contextlib
import json
import subprocess
import sys
import time

import msgspec
import pytest

from forebay.domain.profile import StepLaw, StepSpread
from forebay.engine.catalogue import PROFILES
from forebay.engine.steptime import step_s

PROFILE = PROFILES["llama-3.1-8b-h100"]
FOREBAY = (sys.executable, "-m", "forebay.cli.main")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180), pytest.mark.xdist_group("timed")]


SCATTERED = msgspec.structs.replace(
    PROFILE, law=StepLaw(0.02, 2e-4, 2e-7, 2e-5), spread=StepSpread(p5=0.75, p25=0.9, p50=1.0, p75=1.1, p90=1.2, p95=1.3, p99=1.5)
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with emulated(tmp_path_factory, "--profile", PROFILE.name) as url:
        yield url


@contextlib.contextmanager
def emulated(tmp_path_factory, *options):
    ready = tmp_path_factory.mktemp("calibrate") / "ready.json"
    command = [*FOREBAY, "emulate", *options, "--ready-file", str(ready)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    give_up_s = time.monotonic() + 60
    while not ready.exists():
        assert process.poll() is None
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    yield json.loads(ready.read_bytes())["urls"][0]
    process.terminate()
    process.wait(30)


def calibrated(url, *more):
    return subprocess.run([*FOREBAY, "calibrate", url, *more], capture_output=True, text=True, timeout=150, check=False)


def test_the_emulators_own_law_comes_back_and_the_file_is_a_profile(engine, tmp_path):
    written = tmp_path / "profile.yaml"
    sweep = ("--sequences", "1,4,12", "--prompts", "64,512,1500", "--output", "64", "--repeats", "2")
    done = calibrated(engine, *sweep, "--base", PROFILE.name, "--write", str(written), "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    law = StepLaw(**found["law"])
    for sequences, kv_tokens in ((1, 100), (4, 2000), (12, 12_000), (12, 18_000)):
        assert step_s(law, sequences, kv_tokens, 0) == pytest.approx(step_s(PROFILE.law, sequences, kv_tokens, 0), rel=0.03)
    assert found["coverage"]["sequences"] == [1, 12]
    assert found["not_covered"]
    spec = tmp_path / "forebay.yaml"
    spec.write_text("pools: {chat: {model: m, profile: calibrated, engine: {kind: emulated}}}\n" + written.read_text())
    checked = subprocess.run([*FOREBAY, "check", str(spec)], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr


def test_how_steps_scatter_comes_back(tmp_path_factory, tmp_path):
    written = tmp_path / "profile.yaml"
    with emulated(tmp_path_factory, "--profile-json", msgspec.json.encode(SCATTERED).decode()) as url:
        sweep = ("--sequences", "1,4", "--prompts", "64,512", "--output", "96", "--repeats", "2")
        found = None
        for _ in range(3):  # on a busy machine gaps tell of the way to here, and no spread is made of them
            done = calibrated(url, *sweep, "--base", PROFILE.name, "--write", str(written), "--json", "-")
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)["spread"]
            if found:
                break
    for name, value in msgspec.to_builtins(SCATTERED.spread).items():
        assert found[name] == pytest.approx(value, rel=0.12), found
    assert f"spread: {{p5: {found['p5']:.4f}" in written.read_text()


def test_what_was_not_varied_is_said_to_be_unknown(engine):
    done = calibrated(engine, "--sequences", "1,2", "--prompts", "16,24", "--output", "48", "--repeats", "2", "--json", "-")
    assert done.returncode == 0, done.stderr
    unknown = {each["name"] for each in json.loads(done.stdout)["coefficients"] if not each["identified"]}
    assert {"per_kv_token_s", "per_sequence_s"} <= unknown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("http://127.0.0.1:9", "--timeout", "5s"), "can't be reached"),
        (("127.0.0.1:8000",), "allowed: http://HOST:PORT"),
        (("http://127.0.0.1:9", "--sequences", "1,x"), "--sequences"),
        (("http://127.0.0.1:9", "--base", "llama-3.1-8b-h10"), "llama-3.1-8b-h100"),
    ],
)
def test_bad_input_is_named(arguments, says):
    done = calibrated(*arguments)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
