"""Open files are taken, and no more clients than there are files for."""

import random
import resource

import pytest

from forebay.adapters.clock import RandomIds
from forebay.adapters.upstream import HttpUpstream
from forebay.app import open_files
from forebay.app.gateway_wiring import GatewaySystem
from forebay.app.open_files import FILES_MAX, Room
from forebay.gateway.service import Gateway
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Limits, Model, Pool, Spec
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.loop import run

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((1024, 4096), (4096, 4096), 4096),
        ((4096, 4096), None, 4096),
        ((1024, INFINITY), (FILES_MAX, INFINITY), FILES_MAX),
        ((INFINITY, INFINITY), None, FILES_MAX),
        ((2 * FILES_MAX, INFINITY), None, 2 * FILES_MAX),
    ],
)
def test_all_that_is_allowed_is_taken(monkeypatch, before, after, told):
    taken = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: taken.append(limits))
    assert open_files.take_all() == told
    assert taken == ([after] if after else [])


def test_where_nothing_may_be_changed_what_there_is_counts(monkeypatch):
    def refuse(*_):
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert open_files.take_all() == 1024


@pytest.mark.parametrize("files", [16, 64, 256, 1024, 20_000])
def test_every_client_has_a_file_to_its_engine(files):
    allowed = open_files.room(files)
    assert 2 * allowed.clients_max + allowed.refused_max < files
    assert allowed.clients_max >= files // 4
    assert open_files.room(open_files.needed(500)).clients_max == 500


@pytest.mark.parametrize(("connections", "said"), [(448, []), (449, ["connections_bounded"])])
def test_fewer_clients_than_configured_are_told_of(connections, said):
    attach = EngineKind("attach", attach=("http://127.0.0.1:9",))
    limits = Limits(connections_max=connections)
    spec = Spec((Pool("chat", "llama", attach),), (Model("llama", 8192),), DEFAULT_TIERS, limits=limits)

    async def main():
        clock, upstream, sink, chance = LoopClock(1.0), HttpUpstream(), ListSink(), random.Random(1)
        gateway = Gateway(spec, clock, RandomIds(), upstream, chance, sink, "gw")
        open_files.bound(GatewaySystem(gateway, upstream, clock, sink, chance), 1024)
        assert Room(gateway.http.clients_max, gateway.http.refused_max) == Room(448, 64)
        assert sink.kinds() == said
        assert not said or f"allow {open_files.needed(connections)} files" in sink.events[0].message

    run(main)
