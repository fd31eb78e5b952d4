"""What a configuration says of the gateway's surface: adapters, TLS, large bodies."""

import pytest

from forebay.spec.decode import BadSpec, decode
from forebay.spec.types import Tls

POOLS = """
models: {m: {aliases: [gpt]}, k: {}}
pools:
  chat: {model: m, attach: ["http://a:1"], adapters: [legal, sql]}
  two: {model: k, attach: ["http://a:2"], adapters: [%s]}
"""


def test_adapters_certificate_and_large_bodies_are_taken():
    tail = "gateway: {listen: 0.0.0.0:8443, tls: {cert: a.pem, key: b.pem}}\nlimits: {streamed_body: 100MiB}\n"
    spec = decode(POOLS % "tables" + tail, "f", {})
    assert [pool.adapters for pool in spec.pools] == [("legal", "sql"), ("tables",)]
    assert spec.tls == Tls("a.pem", "b.pem")
    assert spec.gateway.port == 8443
    assert spec.limits.streamed_body_bytes_max == 100 * 2**20


def test_without_any_there_is_none():
    spec = decode("pools: {a: {attach: ['http://a:1']}}", "f", {})
    assert (spec.tls, spec.pools[0].adapters, spec.limits.streamed_body_bytes_max) == (None, (), 64 * 2**20)


@pytest.mark.parametrize(("name", "owner"), [("m", "models.m"), ("gpt", "models.m"), ("sql", "pools.chat")])
def test_an_adapter_has_a_name_of_its_own(name, owner):
    with pytest.raises(BadSpec, match=rf'pools.two.adapters\[0\]: found "{name}".*{owner}'):
        decode(POOLS % name, "f", {})


@pytest.mark.parametrize("tls", ["{cert: a}", "{key: a}", "{cert: a, key: ''}", "yes"])
def test_half_a_certificate_is_none(tls):
    with pytest.raises(BadSpec, match=r"gateway\.tls"):
        decode(f"pools: {{a: {{attach: ['http://a:1']}}}}\ngateway: {{tls: {tls}}}\n", "f", {})
