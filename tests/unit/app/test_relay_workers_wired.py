"""Relay workers in a configuration: none by default, and refused where the system has no sockets for them."""

import msgspec
import pytest

from forebay.app import gateway_wiring
from forebay.domain.errors import BadInput
from forebay.spec.types import EngineKind, Pool, Spec

SPEC = Spec(pools=(Pool("chat", "m", EngineKind("attach")),), models=(), tiers=())


def test_there_are_none_unless_they_are_asked_for():
    assert gateway_wiring.relay_workers(SPEC, print) is None
    assert gateway_wiring.relay_workers(msgspec.structs.replace(SPEC, relay_workers=2), print) is not None


def test_a_system_that_keeps_no_packets_apart_says_so(monkeypatch):
    monkeypatch.setattr(gateway_wiring, "available", lambda: False)
    with pytest.raises(BadInput, match=r"gateway\.workers: found 2; allowed: 0 on this system"):
        gateway_wiring.relay_workers(msgspec.structs.replace(SPEC, relay_workers=2), print)
