"""Pools: references resolved, and the settings checked against each other."""

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.domain.profile import Profile
from forebay.spec.engine_keys import build_keys, check_key
from forebay.spec.formats import check_command
from forebay.spec.long_context import build_long_context
from forebay.spec.overflow import build_overflow
from forebay.spec.problems import Problems, quoted
from forebay.spec.profiles import on_hardware
from forebay.spec.records import Got, Item
from forebay.spec.types import EngineKind, Estimate, Hardware, Pool, Scaling, Slo, Spec

_ATTACHED_TOO = frozenset({"metrics", "health", "continue", "abort_by_id", "key_env", "key_file"})
"""Engine settings that make sense for engines that already run."""


class Known(msgspec.Struct, frozen=True):
    """What pools may refer to. A value of None is a name whose definition is already reported as wrong."""

    models: tuple[str, ...] | None
    """None: none are declared, so a pool may name any."""
    profiles: Mapping[str, Profile | None]
    hardware: Mapping[str, tuple[Hardware, Got] | None]


def build_pool(name: str, got: Got, known: Known, problems: Problems) -> Pool:
    """The pool, best effort where something is wrong (reported)."""
    model = _model(name, got, known, problems)
    profile = _profile(got, known, problems)
    engine = _engine(got, problems)
    scaling = _scaling(got, engine, problems)
    _check(got, engine, scaling, profile, problems)
    values: dict[str, Any] = {
        **got.record_of("queue").filled(),
        **got.record_of("routing").filled(),
        "labels": tuple(sorted(got.get("labels", {}).items())),
    }
    values["region"] = got.get("region", "")
    values["adapters"] = tuple(item.value for item in got.get("adapters", ()))
    slo = Slo(**got.record_of("slo").filled())
    overflow = build_overflow(got, problems)
    values["long_context"] = build_long_context(got)
    values["estimate"] = Estimate(**got.record_of("estimate").filled())
    return Pool(name=name, model=model, engine=engine, profile=profile, slo=slo, scaling=scaling, overflow=overflow, **values)


def _model(name: str, got: Got, known: Known, problems: Problems) -> str:
    models = known.models
    if "model" not in got:
        if models is None or not got.good("model"):
            return name
        if len(models) == 1:
            return models[0]
        if name not in models:
            problems.add(got.at("model"), "nothing", f"one of models: {', '.join(models)}", "add it")
        return name
    model = str(got.get("model"))
    if models is not None and model not in models:
        problems.unknown(got.at("model"), model, models, "name in models")
    return model


def _profile(got: Got, known: Known, problems: Problems) -> Profile | None:
    profile: Profile | None = None
    name = got.get("profile")
    if name is not None and name not in known.profiles:
        problems.unknown(got.at("profile"), name, known.profiles, "profile")
    elif name is not None:
        profile = known.profiles[name]
    device = got.get("hardware")
    if device is None:
        return profile
    if device not in known.hardware:
        problems.unknown(got.at("hardware"), device, known.hardware, "name in hardware")
        return profile
    entry = known.hardware[device]
    if profile is None or entry is None:
        return profile
    hardware, written = entry
    return on_hardware(profile, hardware, "price" in written, got, problems)


def _engine(got: Got, problems: Problems) -> EngineKind:
    engine = got.record_of("engine")
    filled = engine.filled()
    filled["env"] = tuple(sorted(engine.get("env", {}).items()))
    check_key(engine, problems)
    if "attach" in got.places:
        for key in engine.places.keys() - _ATTACHED_TOO:
            problems.add(engine.at(key), "engine settings of a pool that attaches", "either attach or engine", "remove one of the two")
        return EngineKind(
            kind="attach", attach=tuple(_url_of(item) for item in got.get("attach", ())), keys=build_keys(got, problems), **filled
        )
    kind = engine.get("kind", "command" if "command" in engine.places else "")
    if not kind and engine.good("kind", "command") and got.good("engine"):
        problems.add(
            got.at("engine"),
            "no engines",
            "engine: {kind: emulated}, engine: {command: …}, or attach: [http://host:port]",
            "add one of them",
        )
    if kind == "command" and "command" not in engine.places:
        problems.add(engine.at("command"), "nothing", "a command with {port} in it", "add it")
    if kind == "emulated" and "command" in engine.places:
        problems.add(engine.at("command"), "a command for emulated engines", "either kind: emulated or a command", "remove one of the two")
    if kind and "profile" not in got.places:
        problems.add(got.at("profile"), "nothing", "the name of a profile: it says what one replica can do", "add it")
    return EngineKind(kind=kind or "command", command=_command(engine, problems), **filled)


def _url_of(item: Item) -> str:
    """Of an entry of ``attach``, which may be a mapping with a key; empty where that has none, which is reported."""
    return str(item.value.get("url", "")) if isinstance(item.value, Got) else str(item.value)


def _command(engine: Got, problems: Problems) -> tuple[str, ...]:
    command = engine.get("command", ())
    arguments = tuple(each.value if isinstance(each, Item) else str(each) for each in command)
    if command and isinstance(command[0], Item):
        try:
            check_command(arguments)
        except ValueError as error:
            problems.add(engine.at("command"), quoted(" ".join(arguments)), "a command with {port} in it", str(error))
    return arguments


def _scaling(got: Got, engine: EngineKind, problems: Problems) -> Scaling:
    scaling = got.record_of("scaling")
    values = scaling.filled()
    for key in ("out", "in", "shape", "forecast", "prices", "ask", "warm"):
        values.update(scaling.record_of(key).filled())
    if engine.kind == "attach":
        count = max(1, len(engine.attach))
        for key in ("min", "max"):
            if got.good("attach") and scaling.get(key, count) != count:
                problems.add(scaling.at(key), str(scaling.get(key)), f"{count}, the number of attached engines", "leave it out")
        values.update(min_replicas=count, max_replicas=count)
    elif "max" not in scaling:
        values["max_replicas"] = max(1, values.get("min_replicas", 1))
    return Scaling(**values)


def _check(got: Got, engine: EngineKind, built: Scaling, profile: Profile | None, problems: Problems) -> None:
    scaling = got.record_of("scaling")
    if built.min_replicas > built.max_replicas and scaling.good("min", "max"):
        # Without a min the default stands, and the max is to blame.
        key, other = ("min", "max") if "min" in scaling else ("max", "min")
        problems.add(scaling.at(key), str(built.min_replicas), f"at most {other} ({built.max_replicas})")
    kv_in, kv_out = scaling.record_of("in"), scaling.record_of("out")
    if built.in_kv_usage >= built.out_kv_usage and kv_in.good("kv") and kv_out.good("kv"):
        place = kv_in.at("kv") if "kv" in kv_in else kv_out.at("kv")
        problems.add(
            place,
            f"in.kv {built.in_kv_usage:g} and out.kv {built.out_kv_usage:g}",
            "in.kv below out.kv",
            "or the pool would grow and shrink at once",
        )
    tokens = built.prompt_tokens + built.output_tokens
    if profile is not None and tokens > profile.context_tokens and scaling.record_of("shape").good():
        allowed = f"prompt and output of at most {profile.context_tokens} together, the context of {profile.name}"
        problems.add(scaling.at("shape"), f"{tokens} tokens", allowed)
    _check_prices(scaling, built, profile, problems)
    _check_warm(scaling, built, profile, engine, problems)
    unknown_start = profile is None and built.cold_start_s is None and engine.kind == "attach"
    if built.buffer and built.ramp_per_s2 > 0 and unknown_start and got.good("profile") and scaling.good("cold_start"):
        problems.add(
            scaling.at("cold_start"),
            "nothing",
            "a duration such as 5m",
            "a ramp needs it to size the buffer: add it, a profile, or buffer: false",
        )


def _check_warm(scaling: Got, built: Scaling, profile: Profile | None, engine: EngineKind, problems: Problems) -> None:
    """Report warm nodes for engines that nobody starts, or of whose start the node's part isn't known."""
    warm = scaling.record_of("warm")
    if built.warm_max and (profile is None or engine.kind == "attach") and warm.good("max"):
        why = "attached engines are not started by Forebay" if engine.kind == "attach" else "the stages of a start are the profile's"
        problems.add(warm.at("max"), str(built.warm_max), "0, or a pool with a profile whose engines are started", why)


def _check_prices(scaling: Got, built: Scaling, profile: Profile | None, problems: Problems) -> None:
    """Report dollars that can't be turned into replicas."""
    if profile is not None and profile.gpu_hour_usd > 0:
        return
    for got, key, given in ((scaling, "budget", built.budget_usd_per_hour), (scaling.record_of("ask"), "usd", built.ask_above_usd)):
        if given is not None:
            problems.add(
                got.at(key),
                f"{given:g} US dollars an hour for replicas without a price",
                "a pool whose price is known",
                "give its hardware or its profile a price",
            )


def check_urls(pools: Mapping[str, Got], problems: Problems) -> None:
    """Report an engine that is attached twice, be it by two names of this machine: its capacity would be counted twice."""
    seen: dict[str, str] = {}
    for got in pools.values():
        for item in got.get("attach", ()):
            url = _url_of(item)
            engine = url.replace("//localhost:", "//127.0.0.1:")
            if engine in seen:
                problems.add(item.place, quoted(url), "each engine once", f"it is in {seen[engine]} already")
            if engine:
                seen.setdefault(engine, item.place.path)


def check_reached(spec: Spec, pools: Mapping[str, Got], problems: Problems) -> None:
    """Report a pool to which nothing could ever be sent, since another one serves its model to everybody whom it could serve.

    Requests name a model, and of the pools that serve it go to the first that is where their team may be served; one that is for long
    requests comes after the others, and one with adapters is asked for by their names.
    """
    long = {pool.long_context.pool for pool in spec.pools if pool.long_context is not None}
    first: dict[tuple[str, str], str] = {}
    for pool in spec.pools:
        if pool.name in long:
            continue
        before = first.get((pool.model, "")) or first.setdefault((pool.model, pool.region), pool.name)
        if before != pool.name and not pool.adapters:
            problems.add(
                pools[pool.name].at("model"),
                f"{pool.model}, which pools.{before} serves already",
                "a pool that something can be sent to",
                f"every request for {pool.model} goes to {before}: put the engines of both into one pool, "
                f"or give {pool.name} another model, adapters that are asked for by name (pools.{pool.name}.adapters), "
                f"a region of its own, or the long requests (pools.{before}.long_context)",
            )


def check_adapters(root: Got, problems: Problems) -> None:
    """Report an adapter whose name is a model's, an alias's or another pool's adapter's: who is asked would depend on the order."""
    pools: Mapping[str, Got] = root.get("pools", {})
    models: Mapping[str, Got] = root.get("models", {})
    owners = {name: f"models.{name}" for name in models}
    for name, model in models.items():
        owners.update({item.value: f"models.{name}" for item in model.get("aliases", ())})
    for name, got in pools.items():
        owners.setdefault(got.get("model", name), f"pools.{name}")
    for name, got in pools.items():
        for item in got.get("adapters", ()):
            if item.value in owners:
                problems.add(item.place, quoted(item.value), "a name that nothing else has", f"it already belongs to {owners[item.value]}")
            owners.setdefault(item.value, f"pools.{name}")
