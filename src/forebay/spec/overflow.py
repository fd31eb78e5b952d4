"""A pool's overflow: what it names must exist, and money must be bounded."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from forebay.spec.problems import Problems, quoted
from forebay.spec.records import Got
from forebay.spec.types import Overflow, Pool, Spec, Spill


def build_overflow(got: Got, problems: Problems) -> Overflow:
    """The overflow of one pool, best effort where something is wrong (reported)."""
    written = got.record_of("overflow")
    spills: dict[str, Spill] = {}
    for item in written.get("spill", ()):
        one: Got = item.value
        if not one.good():
            continue
        spill = Spill(**{**one.filled(), **one.record_of("price").filled()})
        if not _is_address(spill.url):
            problems.add(
                one.at("url"), quoted(spill.url), "http://host:port/v1 or https://host/v1", "a host and a port from 1 to 65535, and no user"
            )
        if spill.name in spills:
            problems.add(one.at("name"), quoted(spill.name), "each name once", "rename one of the two")
        if spill.prompt_usd_per_mtok + spill.output_usd_per_mtok > 0 and spill.usd_per_hour <= 0:
            problems.add(one.at("budget"), "nothing", "US dollars an hour above 0", "a price without a budget would spill nothing: add it")
        spills[spill.name] = spill
    return Overflow(spill=tuple(spills.values()), **written.filled())


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        return False


def check_overflow(spec: Spec, pools: Mapping[str, Got], problems: Problems) -> None:
    """Report models to degrade to that nobody serves, rings of them, and overflow that no team allows."""
    serving: dict[str, Pool] = {}
    for pool in spec.pools:
        serving.setdefault(pool.model, pool)
    allowed = {what for team in spec.teams for what in team.overflow}
    for pool in spec.pools:
        got = pools[pool.name].record_of("overflow")
        sibling = pool.overflow.degrade_to
        if sibling and got.good("degrade"):
            others = [name for name in serving if name != pool.model]
            if sibling not in others:
                problems.unknown(got.at("degrade"), sibling, others, "model that another pool serves")
            elif _returns(pool, serving):
                problems.add(got.at("degrade"), quoted(sibling), "a smaller model", f"it leads back to {pool.model}: remove one of the two")
        for what, given in (("degrade", bool(sibling)), ("spill", bool(pool.overflow.spill))):
            if given and what not in allowed and got.good(what):
                problems.add(
                    got.at(what), f"{what} that no team allows", f"a team with overflow: [{what}]", "teams must agree: add it to one"
                )


def check_residency(spec: Spec, teams: Mapping[str, Got], problems: Problems) -> None:
    """Report regions in which nothing is: a typo would keep a team out without a word. Any, where none is named nor spilled to."""
    spills = [spill for pool in spec.pools for spill in pool.overflow.spill]
    regions = ({pool.region for pool in spec.pools} | {spill.region for spill in spills}) - {""}
    for got in teams.values():
        for item in got.get("residency", ()) if spills or regions else ():
            if item.value not in regions:
                problems.unknown(item.place, item.value, regions, "region of a pool, or that one spills to")


def _returns(pool: Pool, serving: Mapping[str, Pool]) -> bool:
    seen, now = {pool.model}, pool.overflow.degrade_to
    while now in serving:
        if now in seen:
            return True
        seen.add(now)
        now = serving[now].overflow.degrade_to
    return False
