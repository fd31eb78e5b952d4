"""One request on one screen: what waits, what was refused, what went well; and who is told what where it can't be shown."""

import json

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from forebay.adapters.sqlite import SqliteStore
from forebay.admission.candidates import Candidate, Permit, TeamShare
from forebay.admission.outcomes import Shortage
from forebay.app.files import STORE_FILE, Announced, Running, write_value
from forebay.cli import admin_client, explain_request, request_record
from forebay.cli.admin_client import NotRunning
from forebay.cli.main import app
from forebay.domain.errors import BadInput
from forebay.domain.roster import Finished
from forebay.gateway.records import Place, Record

RECORD = Record(
    id="req-1",
    state="finished",
    team="search",
    tier="interactive",
    pool="chat",
    arrived_unix_s=1_795_000_000.25,
    estimated_prompt_tokens=120,
    estimated_output_tokens=400,
    queue_s=1.25,
    waited_for="slots",
    replica="chat-2",
    outcome="completed",
    prompt_tokens=118,
    output_tokens=33,
    exact=True,
    ttft_s=1.4,
    total_s=5.5,
)


@pytest.fixture
def gateway(monkeypatch):
    """Answers as a gateway would; keeps what it was asked."""
    asked = []

    def be(status, body):
        def fetch(url, key):
            asked.append((url, key))
            return status, body if isinstance(body, bytes) else msgspec.json.encode(body)

        monkeypatch.setattr(admin_client, "fetch", fetch)
        return asked

    return be


def shown(record):
    console = Console(width=160, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        console.print(explain_request.render(request_record.Told(record, "gateway", "http://g")))
        return console.export_text()


def test_an_answered_request_is_one_screen():
    text = shown(RECORD)
    for words in (
        "request req-1: completed",
        "team search, tier interactive, pool chat",
        "2026-11-18T11:06:40.250Z",
        "120 prompt and 400 output tokens",
        "1.250 s, at first for a sequence slot",
        "chat-2",
        "118 prompt and 33 output tokens (the engine's count)",
        "after 1.400 s",
        "5.500 s",
    ):
        assert words in text
    assert len(text.splitlines()) <= 24
    assert "refused" not in text


def test_a_request_that_had_trouble_tells_what_and_words_are_shown_as_they_are():
    text = shown(
        msgspec.structs.replace(
            RECORD, outcome="truncated", tried=("chat-0", "chat-1"), continued=1, preempted=2, why="it [/red] broke", exact=False
        )
    )
    assert "chat-2, after chat-0 and chat-1 failed it" in text
    assert "1 × on another replica" in text
    assert "2 ×, by more urgent requests" in text
    assert "it [/red] broke" in text
    assert "(counted on the way)" in text


def test_a_refused_request_tells_why_and_when_to_come_back():
    refused = msgspec.structs.replace(
        RECORD,
        outcome="shed",
        replica="",
        reason="queue_full",
        why="The queue is full.",
        retry_after_s=12.34,
        prompt_tokens=None,
        ttft_s=None,
    )
    text = shown(refused)
    assert "queue_full" in text
    assert "to come back after 12.3 s" in text
    assert "metered" not in text
    assert "replica" not in text


@pytest.mark.parametrize("short_of", list(Shortage))
def test_a_waiting_request_tells_its_place_and_what_it_is_short_of(short_of):
    place = Place(3, 1200, 4.2, 25.0, short_of)
    text = shown(msgspec.structs.replace(RECORD, state="waiting", outcome=None, place=place, waited_for=""))
    assert "request req-1: waiting" in text
    assert "3 requests (1200 tokens) start before it; starts in about 4.2 s" in text
    assert "25.0 s more, then it is refused" in text
    (row,) = [line for line in text.splitlines() if "short of" in line]
    assert explain_request._WAITED_FOR[short_of] in row
    assert "starts unknown" in shown(msgspec.structs.replace(RECORD, place=Place(0, 0, None, 1.0, None)))


def test_the_verb_asks_the_gateway_it_finds_or_is_given(gateway, tmp_path):
    asked = gateway(200, RECORD)
    write_value(tmp_path / "up.json", Running("http://127.0.0.1:8", "http://127.0.0.1:9", 1))
    runner = CliRunner(env={"COLUMNS": "160"})
    result = runner.invoke(app, ["explain", "--request", "a/b c", "--key", "sk-1", "--state", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "request req-1: completed" in result.stdout
    result = runner.invoke(app, ["explain", "--request", "req-1", "--gateway", "http://gw:1/", "--json", "-"])
    assert json.loads(result.stdout)["replica"] == "chat-2"
    assert asked == [("http://127.0.0.1:8/forebay/v1/requests/a%2Fb%20c", "sk-1"), ("http://gw:1/forebay/v1/requests/req-1", "")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--request", "x", "--pool", "chat"], "--request: found beside --pool"),
        (["--gateway", "http://g"], "found without --request"),
        (["--key", "k"], "found without --request"),
        (["--request", "x", "--gateway", "g:1"], "--gateway: found 'g:1'; allowed: a URL"),
    ],
)
def test_words_that_do_not_go_together_are_bad_input(words, said):
    result = CliRunner().invoke(app, ["explain", *words])
    assert isinstance(result.exception, BadInput)
    assert said in str(result.exception)


def test_what_a_gateway_refuses_is_told_in_its_words(gateway):
    error = {"error": {"message": "No request with the id 'x' is here.", "type": "t", "param": None, "code": None}}
    gateway(404, error)
    with pytest.raises(BadInput, match="--request: No request with the id 'x' is here"):
        request_record.ask("http://g", "x", "")


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (404, b"nginx"), (502, b"")])
def test_another_thing_that_answers_is_no_gateway(gateway, status, body):
    gateway(status, body)
    with pytest.raises(NotRunning, match="not as a gateway of Forebay does"):
        request_record.ask("http://g", "x", "")


@pytest.mark.parametrize("words", [[], ["--gateway", "http://127.0.0.1:9"], ["--state", "nowhere"]])
def test_where_nothing_runs_it_is_said_where_a_gateway_is_looked_for_and_what_is_lost(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(admin_client, "announced", list)
    given = {words[0]: words[1]} if words else {}
    with pytest.raises(NotRunning) as told:
        request_record.told("req-1", given.get("--gateway"), given.get("--state"), "")
    assert "--gateway URL" in str(told.value)
    assert "ends with its process" in str(told.value)


# -- several gateways behind one address ------------------------------------------------------------------------------------


@pytest.fixture
def several(monkeypatch, tmp_path):
    """Gateways that `up` announced, by what each answers: a record, a status or an error; the state folder."""

    def be(*answers):
        own = {f"gateway-{number}": f"http://g:{number}" for number in range(len(answers))}
        write_value(tmp_path / "up.json", Running("http://shared:1", "http://a:1", 1, own))

        def fetch(url, key):
            answer = answers[int(url.removeprefix("http://g:")[0])]
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, Record):
                return 200, msgspec.json.encode(answer)
            return answer, msgspec.json.encode({"error": {"message": "No request with the id 'req-1' is here."}})

        monkeypatch.setattr(admin_client, "fetch", fetch)
        return str(tmp_path)

    return be


GONE = NotRunning("no answer from http://g:1")
FORWARDED = msgspec.structs.replace(RECORD, pool="chat/gateway-1", replica="", left=("chat",), total_s=5.6)


@pytest.mark.parametrize("answers", [(RECORD, 404), (404, RECORD), (RECORD, GONE), (FORWARDED, RECORD), (RECORD, FORWARDED)])
def test_whichever_gateway_has_the_request_tells_of_it_each_time(several, answers):
    assert request_record.told("req-1", None, several(*answers), "").record == RECORD


HUNG = msgspec.structs.replace(
    FORWARDED, outcome="failed", why="The gateway b, to which the request was forwarded, did not answer in time."
)
LEFT = msgspec.structs.replace(RECORD, outcome="client_gone")


@pytest.mark.parametrize("answers", [(HUNG, LEFT), (LEFT, HUNG)])
def test_one_that_hung_at_another_gateway_is_told_of_by_the_one_that_gave_it_up(several, answers):
    """To the other one it was a client that left, and that is what was told."""
    assert request_record.told("req-1", None, several(*answers), "").record == HUNG


CONTINUED = msgspec.structs.replace(FORWARDED, continued=1, tried=("chat-1",), why="The engine's answer broke off (cut).")
ITS_END = msgspec.structs.replace(RECORD, arrived_unix_s=RECORD.arrived_unix_s + 1)


@pytest.mark.parametrize("answers", [(CONTINUED, ITS_END), (ITS_END, CONTINUED)])
def test_a_stream_that_went_on_at_another_gateway_is_told_of_by_the_one_that_had_all_of_it(several, answers):
    """The other one knows of no failure, and counts the answer so far as prompt."""
    assert request_record.told("req-1", None, several(*answers), "").record == CONTINUED


def test_so_it_is_from_the_history(tmp_path):
    store = SqliteStore(tmp_path / STORE_FILE)
    before = msgspec.structs.replace(RECORD, arrived_unix_s=RECORD.arrived_unix_s - 100.0)
    for record in (before, HUNG, LEFT):
        store.append_finished([Finished("req-1", "search", 1.0, True, msgspec.Raw(msgspec.json.encode(record)))])
    store.close()
    assert request_record.recorded("req-1", [tmp_path], "").record == HUNG


def test_one_that_came_back_from_another_gateway_is_told_of_by_the_one_that_answered_it(several):
    refused = msgspec.structs.replace(RECORD, outcome="shed", arrived_unix_s=RECORD.arrived_unix_s + 1, total_s=0.1)
    back = msgspec.structs.replace(RECORD, left=("chat", "chat/gateway-1"))
    assert request_record.told("req-1", None, several(back, refused), "").record == back


def test_where_no_gateway_knows_the_request_it_is_said_which_were_asked(several):
    with pytest.raises(BadInput, match=r"is here\. Asked: http://g:0, http://g:1\. "):
        request_record.told("req-1", None, several(404, 404), "")
    with pytest.raises(BadInput, match=r"is here\.; no answer from http://g:1 Asked: http://g:0\."):
        request_record.told("req-1", None, several(404, GONE), "")
    with pytest.raises(NotRunning, match="no answer from http://g:1"):
        request_record.told("req-1", None, several(GONE, GONE), "")


def test_what_no_gateway_tells_and_what_the_history_lacks_are_two_sentences(several, tmp_path):
    SqliteStore(tmp_path / STORE_FILE).close()
    with pytest.raises(NotRunning, match=r"no answer from http://g:1\. Nor is it in the history"):
        request_record.told("req-1", None, several(GONE, GONE), "")


# -- what the gateway has forgotten ----------------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path):
    """A state folder whose history has two records under one id."""
    store = SqliteStore(tmp_path / STORE_FILE)
    for outcome in ("shed", "completed"):
        weighed = (Candidate("chat-2", 0.31, 3, 40, 100, "", True),)
        permit, share = Permit(1300, 2, 900), TeamShare(0.25, 0.5, 1)
        record = msgspec.structs.replace(RECORD, outcome=outcome, candidates=weighed, permit=permit, team_share=share)
        store.append_finished([Finished("req-1", "search", 1.0, True, msgspec.Raw(msgspec.json.encode(record)))])
    store.close()
    return str(tmp_path)


def explain(*words):
    return CliRunner().invoke(app, ["explain", "--request", *words], catch_exceptions=False)


def test_what_the_gateway_has_forgotten_is_in_the_history(gateway, history):
    gateway(404, {"error": {"message": "No request with the id 'req-1' is here."}})
    shown = explain("req-1", "--gateway", "http://g", "--state", history).output
    assert "request req-1: completed" in shown  # the latest
    assert "chat-2: load 31 %, 3 streams, 40 tokens to prefill before it, 100 tokens of the prompt cached" in shown
    assert "1300 tokens of KV, 900 to prefill, 2 sequences" in shown
    assert "25.0 % of what the lane has given, 50.0 % due: beside 1 other team that waited" in shown


def test_after_forebay_has_ended_it_is_in_the_history(history):
    found = json.loads(explain("req-1", "--state", history, "--json", "-").output)
    assert (found["outcome"], found["candidates"][0]["load"]) == ("completed", 0.31)
    assert found["permit"] == {"kv_tokens": 1300, "sequences": 2, "prefill_tokens": 900}
    assert found["team_share"] == {"given": 0.25, "due": 0.5, "waiting_teams": 1}


def test_what_is_in_neither_is_said_to_be_in_neither(gateway, history):
    gateway(404, {"error": {"message": "No request with the id 'req-9' is here."}})
    with pytest.raises(BadInput, match=r"(?s)No request with the id 'req-9' is here.*Nor is it in the history .*, which keeps"):
        explain("req-9", "--gateway", "http://g", "--state", history)


UNAUTHORIZED = {"error": {"message": "Missing API key. Send 'Authorization: Bearer <key>'."}}


def test_a_wrong_key_is_no_reason_to_look_elsewhere(gateway, history):
    gateway(401, UNAUTHORIZED)
    with pytest.raises(
        BadInput, match="--key: found one that the gateway http://g does not know; allowed: an API key of the request's team"
    ):
        explain("req-1", "--gateway", "http://g", "--state", history, "--key", "sk-wrong")


def test_an_operator_without_a_key_is_told_what_the_history_has(gateway, history):
    gateway(401, UNAUTHORIZED)
    assert "request req-1: completed" in explain("req-1", "--gateway", "http://g", "--state", history).output


def test_without_a_key_the_advice_is_in_words_of_the_command_and_not_of_http(gateway, history):
    gateway(401, UNAUTHORIZED)
    with pytest.raises(BadInput, match=r"give --key KEY of the request's team.*\(--state\) needs none.*Nor is it in the history") as told:
        explain("req-9", "--gateway", "http://g", "--state", history)
    assert "Authorization" not in str(told.value)


# -- who told it, and several fleets on one machine ---------------------------------------------------------------------------


def test_what_is_told_says_whether_a_gateway_or_a_history_tells_it(gateway, history):
    """A record of yesterday's fleet was taken for one of today's."""
    gateway(200, RECORD)
    assert "the gateway http://g " in explain("req-1", "--gateway", "http://g", "--state", history).output
    assert json.loads(explain("req-1", "--gateway", "http://g", "--json", "-").output)["told_by"] == "gateway"
    gateway(404, {"error": {"message": "No request with the id 'req-1' is here."}})
    shown = " ".join(explain("req-1", "--gateway", "http://g", "--state", history).output.replace("│", " ").split())
    assert f"told by the history {history}/forebay.db, since no gateway that was asked knows it any more" in shown.replace("/ ", "/")
    told = json.loads(explain("req-1", "--gateway", "http://g", "--state", history, "--json", "-").output)
    assert (told["told_by"], told["told_at"]) == ("history", f"{history}/forebay.db")
    gateway(401, UNAUTHORIZED)
    told = json.loads(explain("req-1", "--gateway", "http://g", "--state", history, "--json", "-").output)
    assert told["told_since"] == "a gateway tells it by a --key of its team only"
    told = json.loads(explain("req-1", "--state", history, "--json", "-").output)
    assert told["told_since"] == "no gateway answers"


@pytest.fixture
def fleets(monkeypatch, tmp_path):
    """Forebays on this machine, none of them here, by what each one's gateway answers; their state folders."""

    def be(*answers):
        monkeypatch.chdir(tmp_path)
        states = [tmp_path / f"fleet-{number}" for number in range(len(answers))]
        notes = [Announced(str(state), Running(f"http://g:{number}", "http://a:1", 1)) for number, state in enumerate(states)]
        monkeypatch.setattr(admin_client, "announced", lambda: notes)

        def fetch(url, key):
            answer = answers[int(url.removeprefix("http://g:")[0])]
            if isinstance(answer, Record):
                return 200, msgspec.json.encode(answer)
            return answer, msgspec.json.encode({"error": {"message": "No request with the id 'req-1' is here."}})

        monkeypatch.setattr(admin_client, "fetch", fetch)
        return states

    return be


@pytest.mark.parametrize("answers", [(404, RECORD), (RECORD, 404), (401, RECORD, 404)])
def test_of_several_fleets_the_one_that_answered_the_request_is_found(fleets, answers):
    """One of them was asked, or none: they were to be told apart by whoever had an id only."""
    fleets(*answers)
    found = request_record.told("req-1", None, None, "sk-1")
    assert (found.record, found.at) == (RECORD, f"http://g:{answers.index(RECORD)}")


def test_of_several_fleets_every_history_is_looked_at_but_of_those_that_refuse_the_key(fleets):
    states = fleets(404, 404, 401)
    for state in states[1:]:
        store = SqliteStore(state / STORE_FILE)
        store.append_finished([Finished("req-1", "search", 1.0, True, msgspec.Raw(msgspec.json.encode(RECORD)))])
        store.close()
    assert request_record.told("req-1", None, None, "sk-1").at == str(states[1] / STORE_FILE)
    (states[1] / STORE_FILE).unlink()
    with pytest.raises(BadInput) as told:
        request_record.told("req-1", None, None, "sk-1")
    for words in (
        "Asked: http://g:0, http://g:1.",
        "the gateway http://g:2 does not know",
        f"no history at {states[0]}",
        "alone is only found",
    ):
        assert words in str(told.value)


def test_a_history_here_is_looked_at_beside_those_of_fleets_that_run_elsewhere(fleets, tmp_path):
    fleets(404)
    store = SqliteStore(tmp_path / ".forebay" / STORE_FILE)
    store.append_finished([Finished("req-1", "search", 1.0, True, msgspec.Raw(msgspec.json.encode(RECORD)))])
    store.close()
    assert request_record.told("req-1", None, None, "").at == str(tmp_path / ".forebay" / STORE_FILE)
