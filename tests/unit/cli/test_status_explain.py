"""What people see: replicas by state, dashes for what is not known, the binding term, and words that are shown as they are."""

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from forebay.cli import admin_client, explain, status
from forebay.cli.main import app
from forebay.controller.status import Explanation, PoolStatus, ReplicaStatus, Status
from forebay.domain.scaling import Alert, AlertKind, Term, TermKind

WORDS = "its log ends: [/red] [INFO] C:\\[x] [link=a]"
TERMS = (
    Term("min", TermKind.FLOOR, 1, "never fewer than 1"),
    Term("demand", TermKind.FLOOR, 3, f"[bold]3[/] {WORDS}", binding=True),
)
ALERT = Alert(AlertKind.POOL_EXHAUSTED, "chat", f"no more {WORDS}", 0.0)
LONG = "http://replica-one.example.internal:9100"
REPLICA = ReplicaStatus("chat-1", "ready", 61.0, LONG, 3, 0.42, 300.0, 0, "")
FAILED = ReplicaStatus("chat-2", "failed", 1.0, "", None, None, None, 7, WORDS)
POOL = PoolStatus(
    pool="chat",
    model="m",
    desired=3,
    replicas={"failed": 1, "ready": 1},
    binding="demand",
    because=f"[bold]3[/] {WORDS}",
    posture="open",
    waiting=None,
    arrival_per_min=90.4,
    ttft_attainment=0.987,
    cold_start_s=300.0,
    gpu_hours=1.5,
    cost_usd=4.5,
    unknown={"lanes_waiting": "gateway_lost"},
    alerts=(ALERT,),
    detail=(REPLICA, FAILED),
)
STATUS = Status("2026-11-29T08:00:00Z", 3, 7, {"gateway-0": "silent"}, (POOL,), ("history is not kept [/]",))


def shown(*renderables):
    console = Console(width=300, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        for renderable in renderables:
            console.print(renderable)
        return console.export_text()


def test_a_status_shows_states_readings_and_reasons():
    text = shown(status.render(STATUS))
    assert "1 ready, 1 failed" in text
    assert "– gateway_lost" in text
    assert "98.7%" in text
    assert "90" in text
    assert "42%" in text
    assert "5m" in text
    assert "! silent gateways: gateway-0" in text
    assert "! history is not kept [/]" in text


def test_a_replica_that_its_gateway_has_ejected_is_not_called_ready():
    out = msgspec.structs.replace(REPLICA, ejected=True)
    failed = msgspec.structs.replace(FAILED, ejected=True)
    pool = msgspec.structs.replace(POOL, replicas={"failed": 1, "ready": 2}, detail=(REPLICA, out, failed))
    text = shown(status.render(msgspec.structs.replace(STATUS, pools=(pool,))))
    assert "1 ready, 1 ejected, 1 failed" in text
    assert [text.count(state) for state in ("ready", "ejected", "failed")] == [2, 2, 2]


def test_what_a_capped_pool_would_need_stands_beside_what_is_wanted():
    capped = msgspec.structs.replace(POOL, desired=3, needed=12)
    assert "needs 12" in shown(status.render(msgspec.structs.replace(STATUS, pools=(capped,))))
    assert "needs" not in shown(status.render(STATUS))


def test_an_unknown_price_is_a_dash_and_a_known_cost_has_its_column():
    assert "4.50" in shown(status.render(STATUS))
    free = shown(status.render(msgspec.structs.replace(STATUS, pools=(msgspec.structs.replace(POOL, cost_usd=None, unknown={}),))))
    assert "4.50" not in free
    assert "$ so far" in free
    assert "* preemptible tiers are left out; req/min is of the last 30s" in free, (
        "explain's rate is of minutes: two numbers, each with its time"
    )


def test_what_was_refused_and_what_waits_of_batch_is_said_under_the_table():
    """289 of 679 requests were refused and 52 of batch waited, and the table told of neither."""
    unserved = {"arrived": 679, "shed": 289, "failed": 0, "truncated": 3}
    busy = msgspec.structs.replace(POOL, waiting_preemptible=52, unserved=unserved)
    text = shown(status.render(msgspec.structs.replace(STATUS, pools=(busy,))))
    assert "chat: 52 of preemptible tiers wait" in text
    assert "chat: of 679 requests* of the last 5m 289 were refused, 3 broke off" in text
    calm = msgspec.structs.replace(POOL, waiting_preemptible=0, unserved=dict.fromkeys(unserved, 0), alerts=())
    assert "chat: " not in shown(status.render(msgspec.structs.replace(STATUS, pools=(calm,))))


def test_what_waits_inside_engines_is_shown_beside_what_waits_in_lanes():
    full = msgspec.structs.replace(STATUS, pools=(msgspec.structs.replace(POOL, waiting=0.0, waiting_in_engines=44.0, unknown={}),))
    text = shown(status.render(full))
    assert "0 + 44†" in text
    assert "† inside the engines" in text
    assert "†" not in shown(status.render(STATUS))


def test_too_few_first_tokens_are_said_to_be_those_of_streams():
    text = shown(
        status.render(
            msgspec.structs.replace(
                STATUS, pools=(msgspec.structs.replace(POOL, ttft_attainment=None, unknown={"ttft_attainment": "few"}),)
            )
        )
    )
    assert "– few‡" in text
    assert "‡ fewer than 20 first tokens of streams in the last 5m; answers that aren't streamed have none to time" in text
    assert "‡" not in shown(status.render(STATUS))


def test_an_address_comes_through_a_pipe_whole_and_is_never_cut(answers):
    pipe = CliRunner(env={"COLUMNS": None}).invoke(app, ["status", "--admin", "http://h:1"]).stdout
    assert LONG in pipe
    narrow = CliRunner(env={"COLUMNS": "70"}).invoke(app, ["status", "--admin", "http://h:1"]).stdout
    header, *rows = narrow[narrow.index("  replica ") :].splitlines()
    assert (
        "".join(row[header.index("address") :].strip() for row in rows[: rows.index(next(row for row in rows if "chat-2" in row))]) == LONG
    )


def test_words_of_others_are_shown_as_they_are():
    text = shown(status.render(STATUS))
    assert text.count(WORDS) == 3, "the binding term's, the failed replica's, the alert's"
    assert "[bold]3[/]" in text


def test_an_alert_names_the_pool_that_it_is_of(capsys):
    """Of three pools it was told that one had no replicas, not which."""
    other = msgspec.structs.replace(POOL, pool="code", alerts=(Alert(AlertKind.NO_REPLICAS, "code", "none is there", 0.0),))
    text = shown(status.render(msgspec.structs.replace(STATUS, pools=(POOL, other))))
    assert "! chat: pool_exhausted no more" in text
    assert "! code: no_replicas none is there" in text
    explain.show(Explanation("code", "2026-11-29T08:00:00Z", 3, "demand", "open", TERMS, other.alerts))
    assert "! code: no_replicas none is there" in capsys.readouterr().out


def test_an_explanation_marks_what_binds():
    found = Explanation("chat", "2026-11-29T08:00:00Z", 3, "demand", "open", TERMS, (ALERT,))
    lines = shown(explain.render(found)).splitlines()
    assert any("→" in line and "demand" in line and WORDS in line for line in lines)
    assert any("→" not in line and "never fewer than 1" in line for line in lines)


@pytest.fixture
def answers(monkeypatch):
    """What the admin API would say, by path."""
    asked = []

    def ask(url, path, query, kind):
        asked.append((url, path, query))
        return STATUS if path == "/v1/status" else [Explanation("chat", "then", 3, "demand", "open", TERMS, (ALERT,))]

    monkeypatch.setattr(admin_client, "ask", ask)
    return asked


def test_the_verbs_ask_what_they_were_asked(answers):
    runner = CliRunner(env={"COLUMNS": "250"})
    result = runner.invoke(app, ["explain", "--admin", "http://h:1", "--at", "2026-11-29T08:00:00Z", "--pool", "chat"])
    assert result.exit_code == 0
    assert WORDS in result.stdout
    assert "! chat: pool_exhausted no more" in result.stdout
    assert runner.invoke(app, ["status", "--admin", "http://h:1"]).exit_code == 0
    assert answers == [("http://h:1", "/v1/explain", {"pool": "chat", "at": "2026-11-29T08:00:00Z"}), ("http://h:1", "/v1/status", {})]


def test_other_kv_than_the_profile_says_is_a_line_below_the_table():
    words = ("kv of profile p is 40000, but chat-1 holds 426784 tokens: places are left empty; set it to 426784", "kv of …")
    text = shown(status.render(msgspec.structs.replace(STATUS, pools=(msgspec.structs.replace(POOL, kv_differs=words),))))
    assert f"chat: {words[0]} (1 more so)" in text
