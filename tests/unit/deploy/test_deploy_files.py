"""What a user deploys speaks of metrics that exist: a rule over a name that nobody exports never fires."""

import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import generate_latest

from forebay.adapters.upstream import HttpUpstream
from forebay.admission.outcomes import Refusal
from forebay.app import supervisor, wiring
from forebay.app.config import decode
from forebay.controller.reports import Reports
from forebay.controller.sturdy import SturdyStore
from forebay.domain.errors import BadInput
from forebay.engine.catalogue import PROFILES
from forebay.gateway.lending_families import lending_families
from forebay.gateway.service import Gateway
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run
from forebay.testing.store import MemoryStore

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
SPEC = "pools: {chat: {profile: demo, engine: {kind: emulated}, scaling: {min: 1, max: 2}}}"


class NoFleet:
    async def observe(self):
        return ()


class NoSignals:
    async def read(self, replicas):
        return {}


async def exported():
    return set(re.findall(r"^# TYPE (\S+)", await exported_page(SPEC), re.MULTILINE))


async def exported_page(text):
    spec = decode(text, "forebay.yaml", PROFILES)
    clock, sink, store = LoopClock(), ListSink(), SturdyStore(MemoryStore(), lambda kind, message: None)
    gateway = Gateway(spec, clock, CountingIds(), HttpUpstream(), random.Random(1), sink, "g")
    controller = wiring.build_controller(spec, clock, NoFleet(), NoSignals(), store, sink)
    pages = generate_latest(gateway._pages._registry) + generate_latest(Reports(controller, store, clock).registry)
    await gateway.close()
    return pages.decode()


@pytest.mark.parametrize("file", ["alerts.yml", "recording.yml"])
def test_every_metric_in_a_rule_is_exported(file):
    rules = yaml.safe_load((DEPLOY / "prometheus" / file).read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    named = {name for expression in expressions for name in re.findall(r"forebay_[a-z_]+", expression)}
    assert len(named) >= 4
    names = run(exported)
    assert {name for name in named if not names & {name, name.removesuffix("_total"), name.removesuffix("_bucket")}} == set()


def test_the_page_of_metrics_has_each_that_is_exported_and_no_other():
    """Twelve of them were on no page."""
    page = (DEPLOY.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(forebay_[a-z_]+)`", page))
    assert len(listed) > 50
    none = SimpleNamespace(workers=0, streams=0, lent_total=0, early_total=0, workers_lost=0, streams_lost=0)
    workers = {family.name for family in lending_families(none)}
    names = {name.removesuffix("_total") for name in run(exported)} | workers
    assert {name.removesuffix("_total") for name in listed} == names


def test_no_rule_goes_by_the_name_of_a_tier_and_none_pages_for_a_team_at_its_own_limit():
    """A page went out for a team that was refused at its limit; where tiers are called otherwise, none ever did."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules if 'tier="' in rule["expr"]] == []
    shedding = [rule["expr"] for rule in rules if "forebay_shed_total" in rule["expr"]]
    assert shedding
    for expression in shedding:
        left_out = re.search(r'reason!~"([a-z_|]+)"', expression)[1].split("|")
        assert {"over_limit", "never_fits", "holder_out", "handed_back"} == set(left_out) < {reason.value for reason in Refusal}
        assert "forebay_tier_place == 0" in expression


def test_the_tier_that_goes_first_is_told_whatever_it_is_called():
    spec = SPEC + "\ntiers: {gold: {rank: 0, ttft: 1s, longest_wait: 30s}, lead: {rank: 1, ttft: 1m, longest_wait: 1h, preemptible: true}}"
    page = run(lambda: exported_page(spec))
    assert 'forebay_tier_place{pool="chat",tier="gold"} 0.0' in page
    assert 'forebay_tier_place{pool="chat",tier="lead"} 1.0' in page


def test_every_rule_says_who_is_woken_and_why():
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]


def test_the_service_starts_what_there_is_and_gives_a_drain_its_time():
    unit = (DEPLOY / "systemd" / "forebay.service").read_text()
    assert "forebay up -c" in unit
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > 120


def test_the_unit_is_not_restarted_for_a_configuration_that_is_wrong():
    unit = (DEPLOY / "systemd" / "forebay.service").read_text()
    assert f"RestartPreventExitStatus={BadInput.exit_code}\n" in unit


def test_own_ports_follow_the_first_and_are_free_ones_where_none_is_named():
    shared = f"{SPEC}\ngateway: {{listen: '127.0.0.1:8080', count: 3, own_port: 8090}}"
    ports = {name: listen.port for name, listen in supervisor._listeners(decode(shared, "f", PROFILES)).items()}
    assert [ports[f"hops-{number}"] for number in range(3)] == [8090, 8091, 8092]
    free = supervisor._listeners(decode(shared.replace(", own_port: 8090", ""), "f", PROFILES))
    assert [free[f"hops-{number}"].port for number in range(3)] == [0, 0, 0]
