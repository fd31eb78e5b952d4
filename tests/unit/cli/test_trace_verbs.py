"""`forebay trace`: tells, makes and changes traces; says what is wrong in one sentence, and leaves no half a file."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from forebay.adapters.sqlite import SqliteStore
from forebay.app import traces
from forebay.app.files import STORE_FILE
from forebay.cli import trace, trace_make, trace_words
from forebay.demand.generator import KINDS
from forebay.domain.errors import BadInput
from forebay.ports.store import DemandBucket

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-10 {second // 60:02}:{second % 60:02}:00.5,{second + 1},{second % 7 + 1}\n" for second in range(200)
)
RATE = "# Minute 0 = 2024-05-12 00:00 UTC\nminute,rpm\n" + "".join(f"{10 * number},{6 * (number % 3)}\n" for number in range(300))


def run(*words: object):
    """What came of ``forebay trace`` with these words; BadInput is raised, as `main` would catch it."""
    result = CliRunner().invoke(trace.app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_stats_tells_rates_bursts_and_lengths(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(AZURE)
    result = run("stats", path, "--json", "-")
    found = json.loads(result.stdout)
    assert (found["requests"], found["duration_s"]) == (200, 11941.0)
    assert found["prompt_tokens"]["p50"] == 100
    assert found["rates"]["acf"] == {"24h": None, "7d": None}
    assert "variation of gaps" in result.stderr
    assert "busiest minute" in run("stats", path).stdout


def test_stats_of_rates_are_those_published_and_may_be_cut(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text(RATE)
    found = json.loads(run("stats", path, "--json", "-").stdout)
    assert (found["rates"]["mean"], found["bursts"], found["start_wall_s"]) == (pytest.approx(0.1), None, 1715472000.0)
    assert found["rates"]["acf"]["24h"] > 0.9
    part = json.loads(run("stats", path, "--start", "10m", "--duration", "20m", "--json", "-").stdout)
    assert (part["rates"]["mean"], part["duration_s"], part["start_wall_s"]) == (pytest.approx(0.15), 1200.0, 1715472600.0)
    with pytest.raises(BadInput, match="nothing in the span"):
        run("stats", path, "--start", "9w")


def test_of_steps_longer_than_a_minute_the_busiest_step_is_told_and_no_minute(tmp_path):
    """A series of ten minutes was said to have its "busiest minute at 10m"."""
    path = tmp_path / "r.csv"
    path.write_text(RATE)
    result = run("stats", path, "--json", "-")
    rates = json.loads(result.stdout)["rates"]
    assert (rates["peak_minute"] > 0, rates["peak_minute_at_s"]) == (True, None)
    assert "busiest step" in result.stderr
    assert "busiest minute" not in result.stderr


def test_stats_of_what_a_fleet_saw(tmp_path):
    store = SqliteStore(tmp_path / STORE_FILE)
    for number in (0, 1, 3):
        store.append_demand("chat", DemandBucket(1_750_000_200.0 + 300 * number, 300.0, 300.0 * (number + 1), 60_000.0, 6_000.0))
    store.close()
    result = run("stats", tmp_path, "--column", "chat", "--json", "-")
    found = json.loads(result.stdout)
    assert (found["rates"]["mean"], found["duration_s"], found["start_wall_s"]) == (2.5, 1200, 1_750_000_200.0)
    assert "steps that are missing, over which a line is drawn: 1" in result.stderr
    with pytest.raises(BadInput, match="--column: found none, allowed: a pool whose history is in"):
        run("stats", tmp_path)
    with pytest.raises(BadInput, match="no demand of the pool code is recorded"):
        run("stats", tmp_path, "--column", "code")


def test_stats_names_the_broken_line_or_counts_it(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(AZURE + "2024-05-10 09:00:00,-4,1\n")
    with pytest.raises(BadInput, match=r"t\.csv:202: ContextTokens: found '-4'"):
        run("stats", path)
    result = run("stats", path, "--lenient")
    assert "200 requests" in result.stdout
    assert "rows skipped: 1 broken; the first broken one" in result.stderr


@pytest.mark.parametrize("text", [AZURE, RATE])
def test_stats_draws_a_picture(tmp_path, text):
    path, png = tmp_path / "t.csv", tmp_path / "t.png"
    path.write_text(text)
    run("stats", path, "--png", png)
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert png.stat().st_size > 10_000


def test_a_picture_that_could_not_be_left_is_refused_first(tmp_path):
    for png in (tmp_path / "t.jpg", tmp_path / "no" / "t.png"):
        with pytest.raises(BadInput, match="--png"):
            run("stats", tmp_path / "missing", "--png", png)


def test_made_traffic_is_the_same_for_the_same_seed_and_is_read_back(tmp_path):
    options = (
        "--rate",
        "1/s",
        "--duration",
        "2h",
        "--kinds",
        "conversation=2,code",
        "--time-zone",
        "Europe/Berlin",
        "--tiers",
        "gold=1,tin=1",
    )
    calendar = ("--holiday", "2026-01-05", "--launch", "2026-01-05T01:00=2", "--growth", "0.1", "--seed", "4")
    one, two = tmp_path / "one.csv.gz", tmp_path / "two.csv.gz"
    said = run("make", "-o", one, *options, *calendar).stderr
    run("make", "-o", two, *options, *calendar)
    assert one.read_bytes() == two.read_bytes()
    rows = gzip.decompress(one.read_bytes()).decode().splitlines()
    assert f"{len(rows) - 1:,} requests over 2h" in said
    assert rows[0] == "wall_s,prompt_tokens,output_tokens,tier"
    found = json.loads(run("stats", one, "--json", "-").stdout)
    assert found["requests"] == len(rows) - 1
    assert set(found["tiers"]) == {"gold", "tin"}
    # Midnight of 5 January in Berlin.
    assert 1767567600 <= found["start_wall_s"] < 1767567660
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv.gz", "two.csv.gz"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kinds", "talk"), "kind 'talk'; allowed: conversation, code, reasoning, long-context"),
        (("--kinds", "code=x"), "--kinds: found 'code=x'"),
        (("--kinds", "code=1,code=2"), "--kinds: found 'code=2', allowed: NAME=NUMBER,NAME=NUMBER, each name once"),
        (("--tiers", "a=1e300,b=1e300"), "--tiers: found 'a=1e300'"),
        (("--start", "0001-01-01"), "start 0001-01-01; allowed: a date from 1971"),
        (("--rate", "5"), "--rate: '5' is not a rate"),
        (("--duration", "5"), "--duration: '5' is not a duration"),
        (("--start", "yesterday"), "--start: found 'yesterday'"),
        (("--time-zone", "Mars/Base"), "time zone 'Mars/Base'"),
        (("--holiday", "2026-01-01=x"), "--holiday: found"),
        (("--launch", "2026-01-05T10:00+01:00=2"), "--launch: found"),
        (("--launch", "soon=2"), "--launch: found"),
        (("--duration", "1h", "--tiers", 'a"b'), "plain names of tiers"),
    ],
)
def test_traffic_that_can_not_be_made_is_explained(tmp_path, options, words):
    with pytest.raises(BadInput) as caught:
        run("make", "-o", tmp_path / "t.csv", *options)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_holidays_and_launches_outside_the_span_are_said(tmp_path):
    words = ("make", "-o", tmp_path / "t.csv", "--rate", "0.1/s", "--duration", "30h", "--time-zone", "Europe/Berlin")
    calendar = {"--launch": ("2026-01-06T05:59=2", "2026-01-06T06:00=2", "2026-01-04T10:00=1.5"), "--holiday": ("2026-01-06", "2026-01-07")}
    said = run(*words, *(word for option, values in calendar.items() for value in values for word in (option, value))).stderr
    assert "--launch 2026-01-06T06:00 changes nothing: it is after the span, 2026-01-05 to 2026-01-06T06:00" in said
    assert "--launch 2026-01-04T10:00 is before the span, 2026-01-05 to 2026-01-06T06:00: all of the traffic is multiplied by 1.5" in said
    assert "--holiday 2026-01-07 changes nothing: it is outside the span" in said
    assert "05:59" not in said
    assert "--holiday 2026-01-06 " not in said


def test_a_file_of_one_s_own_is_read_by_the_names_that_are_said(tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text("".join(f'{{"ts": {at}, "prompt_tokens": 5, "completion_tokens": {at % 3}}}\n' for at in range(30)))
    with pytest.raises(BadInput, match=r"did you mean --column timestamp=ts\?"):
        run("stats", own)
    result = run("stats", own, "--column", "timestamp=ts")
    assert "30 requests in 30s" in result.stdout
    assert "rows without output, taken for one token each: 10" in result.stderr
    secs = tmp_path / "secs.csv"
    secs.write_text("time,input_tokens,n\n0.5,1,1\n1.5,2,2\n")
    assert "2 requests" in run("stats", secs, "--column", "at_s=time,prompt_tokens=input_tokens,output_tokens=n").stdout
    changed = tmp_path / "changed.csv"
    run("edit", own, "-o", changed, "--column", "timestamp=ts", "--do", "scale factor=2")
    assert "60 requests" in run("stats", changed).stdout


def test_rows_that_are_all_broken_are_counted_and_the_first_is_told(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"ts": 1, "prompt_tokens": 5}\n' * 1200)
    with pytest.raises(
        BadInput, match=r"all 1,200 rows that were read are broken; the first: .*own.jsonl:1: no output_tokens among the keys"
    ):
        run("stats", path, "--lenient", "--column", "timestamp=ts")


def test_what_is_not_used_is_said(tmp_path):
    path, rates, out = tmp_path / "t.csv", tmp_path / "rates.csv", tmp_path / "out.csv"
    path.write_text(AZURE)
    rates.write_text(RATE)
    said = run("edit", path, "-o", out, "--cv", "1", "--noise", "0.3", "--column", "A_prod").stderr
    for option in ("--cv 1", "--noise 0.3"):
        assert f"{option} is not used: the requests of {path} are played as they came" in said
    assert f"--column A_prod is not used: {path} is in the format azure, whose columns are known" in said
    assert "not used" not in run("edit", rates, "-o", out, "--cv", "1", "--noise", "0.3").stderr
    assert "not used" not in run("edit", path, "-o", out).stderr
    with pytest.raises(BadInput, match=r"--lengths: trace 'nofile.csv': No such file"):
        run("edit", path, "-o", out, "--lengths", "nofile.csv")


def test_times_in_milliseconds_are_told_before_anybody_waits(tmp_path):
    path = tmp_path / "ms.csv"
    path.write_text("at_s,prompt_tokens,output_tokens\n" + "".join(f"{157 * at + at % 7},9,9\n" for at in range(200)))
    assert run("stats", path).stderr.count("its times look like milliseconds") == 1
    assert "its times look like milliseconds" in run("edit", path, "-o", tmp_path / "out.csv").stderr


def test_other_names_of_files_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"a name that ends in \.csv"):
        run("make", "-o", tmp_path / "t.xml", "--duration", "1h")


def test_edit_makes_changes_in_order_and_keeps_the_calendar(tmp_path):
    path, out = tmp_path / "t.csv", tmp_path / "out.jsonl"
    path.write_text(AZURE)
    run("edit", path, "-o", out, "--do", "long-context share=0.5 prompt=32000 output=1", "--do", "lengths from=0s output=3")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[0] == {"wall_s": 1715299200.5, "prompt_tokens": 1, "output_tokens": 3}
    assert sum(row["prompt_tokens"] == 32_000 for row in rows) == 200
    assert len(rows) == 400
    with pytest.raises(BadInput, match='did you mean "spike"'):
        run("edit", path, "-o", out, "--do", "spik at=1h")
    with pytest.raises(BadInput, match="which is the trace itself"):
        run("edit", path, "-o", path)


def test_edit_draws_requests_from_rates_and_joins_traces_with_their_groups(tmp_path):
    rates, moon, out = tmp_path / "rates.csv", tmp_path / "moon.jsonl", tmp_path / "out.csv"
    rates.write_text(RATE)
    moon.write_text("".join(f'{{"timestamp": {n}, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}}\n' for n in range(3)))
    run("edit", rates, "-o", out, "--duration", "1h", "--prompt-tokens", 50, "--do", f"merge with={moon} from=0s")
    rows = out.read_text().splitlines()
    assert rows[0] == "wall_s,prompt_tokens,output_tokens,group,shared_tokens"
    assert sum(row.endswith(",1,1023") for row in rows) == 2
    tiered = tmp_path / "tiered.csv"
    tiered.write_text("at_s,prompt_tokens,output_tokens,tier\n0,1,1,gold\n")
    with pytest.raises(BadInput, match=r"names tiers \(gold\)"):
        run("edit", rates, "-o", out, "--do", f"splice with={tiered} at=1h")
    run("edit", rates, "-o", out, "--tiers", "gold", "--do", f"splice with={tiered} at=1h")
    assert out.read_text().splitlines()[-1].endswith(",1,1,gold")


def test_names_that_verbs_list_are_those_that_exist():
    assert trace_words.FORMATS == traces.FORMATS
    assert tuple(KINDS) == trace_make.KINDS
