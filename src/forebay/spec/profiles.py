"""Profiles, hardware and models of the file, checked against each other."""

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.domain.profile import ColdStart, Profile, Source, StepLaw, StepSpread, WarmUp
from forebay.domain.units import format_bytes
from forebay.spec.problems import Place, Problems
from forebay.spec.records import Got
from forebay.spec.types import Hardware, Model

_NESTED: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "step": ("law", StepLaw),
    "spread": ("spread", StepSpread),
    "warm_up": ("warm_up", WarmUp),
    "cold_start": ("cold_start", ColdStart),
}
_OPTIONAL = frozenset({"base", "front_end", "front_end_per_token", "price", "spread", "warm_up", "not_measured"})


def build_profiles(root: Got, shipped: Mapping[str, Profile], problems: Problems) -> dict[str, Profile | None]:
    """Shipped and own profiles by name; None for those already reported as wrong."""
    known: dict[str, Profile | None] = dict(shipped)
    contexts = _model_contexts(root)
    for name, got in root.get("profiles", {}).items():
        if name in shipped:
            problems.add(got.place, f'a second profile "{name}"', "a name that is not shipped", f"rename it and write base: {name}")
        else:
            known[name] = _profile(name, got, known, contexts.get(name, 0), problems)
    return known


def _model_contexts(root: Got) -> dict[str, int]:
    """By profile, the longest context that a model of its pools declares; 0 where one of those declares none."""
    models: Mapping[str, Got] = root.get("models", {})
    contexts: dict[str, int] = {}
    for name, pool in root.get("pools", {}).items():
        profile, model = pool.get("profile"), pool.get("model", next(iter(models)) if len(models) == 1 else name)
        if profile is not None:
            tokens = models[model].get("context", 0) if model in models else 0
            before = contexts.get(profile, tokens)
            contexts[profile] = max(before, tokens) if before and tokens else 0
    return contexts


def _profile(name: str, got: Got, known: Mapping[str, Profile | None], model_context: int, problems: Problems) -> Profile | None:
    if not got.good():
        return None
    base_name = got.get("base")
    if base_name is not None and base_name not in known:
        problems.unknown(got.at("base"), base_name, known, "profile shipped or further up in this file")
        return None
    base = known[base_name] if base_name is not None else None
    if base_name is not None and base is None:
        return None
    values: dict[str, Any] = {**got.filled(), "name": name, "sources": _sources(got, base)}
    for key, (attribute, struct) in _NESTED.items():
        nested = got.record_of(key)
        if not nested.good():
            return None
        if base is not None:
            values[attribute] = msgspec.structs.replace(getattr(base, attribute), **nested.filled())
        elif key in _OPTIONAL or _complete(nested, frozenset(), problems):
            values[attribute] = struct(**nested.filled())
    values["not_measured"] = _not_measured(got, base)
    if base is not None:
        profile = msgspec.structs.replace(base, **values)
        return _checked(profile if "context" in got else _shortened(profile, model_context), got, base.name, problems)
    if not _complete(got, _OPTIONAL | frozenset(_NESTED), problems) or any(attribute not in values for attribute, _ in _NESTED.values()):
        return None
    return _checked(Profile(**values), got, "", problems)


def _shortened(profile: Profile, model_context: int) -> Profile:
    """With the context of its models, where the KV holds that and not the base's: their engines are started with it, and need no more."""
    if 0 < model_context <= profile.kv_tokens < profile.context_tokens:
        return msgspec.structs.replace(profile, context_tokens=model_context)
    return profile


def _not_measured(got: Got, base: Profile | None) -> tuple[str, ...]:
    """Of the law's numbers, those that the file says so of, and of the base's those that it does not set."""
    said = {item.value for item in got.get("not_measured", ())}
    inherited = set(base.not_measured if base is not None else ()) - set(got.record_of("step").values)
    return tuple(field.key for field in got.record_of("step").record.fields if field.key in said | inherited)


def _complete(got: Got, optional: frozenset[str], problems: Problems) -> bool:
    missing = [field for field in got.record.fields if field.key not in optional and field.key not in got]
    for field in missing:
        problems.add(got.at(field.key), "nothing", field.kind.words, "add it, or name a base to take it from")
    return not missing


def _sources(got: Got, base: Profile | None) -> tuple[Source, ...]:
    """Where each number comes from: the lines of the file for what it sets, the base's sources for what is inherited."""
    lines: dict[Place, list[str]] = {}
    for field in got.record.fields:
        if field.fills is not None and field.key in got:
            lines.setdefault(_line(got.at(field.key)), []).append(field.fills)
    for key, (attribute, _) in _NESTED.items():
        nested = got.record_of(key)
        for field in nested.record.fields:
            if field.fills is not None and field.key in nested:
                lines.setdefault(_line(nested.at(field.key)), []).append(f"{attribute}.{field.fills}")
    own = {what for each in lines.values() for what in each}
    inherited = []
    for source in base.sources if base is not None else ():
        left = [what for named in source.what.split(", ") for what in _left(named, own)]
        if left:
            inherited.append(Source(", ".join(left), source.origin))
    return (*(Source(", ".join(each), f"set in {at.file}, line {at.line}") for at, each in lines.items()), *inherited)


def _line(place: Place) -> Place:
    return Place(place.file, place.line)


def _left(named: str, own: set[str]) -> list[str]:
    """What a source still speaks for: ``law`` becomes its other numbers where the file sets some of them."""
    for attribute, struct in _NESTED.values():
        if named == attribute and any(what.startswith(f"{attribute}.") for what in own):
            return [what for what in (f"{attribute}.{field}" for field in struct.__struct_fields__) if what not in own]
    return [] if named in own else [named]


def _checked(profile: Profile, got: Got, base_name: str, problems: Problems) -> Profile:
    if profile.kv_tokens < profile.context_tokens:
        hint = "an engine refuses to start with less KV than one sequence needs"
        if base_name and "context" not in got:
            hint = f"the context is inherited from {base_name}: set {got.at('context').path} to at most {profile.kv_tokens}; {hint}"
        problems.add(
            got.at("context" if "context" in got else "kv"),
            f"a context of {profile.context_tokens} tokens",
            f"at most the KV cache's {profile.kv_tokens} tokens",
            hint,
        )
    if profile.law.base_s + profile.law.per_sequence_s <= 0:
        problems.add(got.at("step"), "steps that take no time", "base or per_sequence above 0s")
    quantiles = msgspec.structs.astuple(profile.spread)
    if list(quantiles) != sorted(quantiles):
        found = ", ".join(f"{name}: {value:g}" for name, value in zip(profile.spread.__struct_fields__, quantiles, strict=True))
        problems.add(got.at("spread"), found, "quantiles that rise from p5 to p99", "those left out are the base's, or 1")
    _check_warm_up(profile, got.record_of("warm_up"), problems)
    return profile


def _check_warm_up(profile: Profile, got: Got, problems: Problems) -> None:
    """Half of a warm-up would be none, without a word."""
    passes, factor = profile.warm_up.passes, profile.warm_up.factor
    if passes and factor == 1:
        problems.add(got.at("factor"), f"{passes} first steps that take as long as all others", "a factor above 1", "or leave passes out")
    if "factor" in got and "passes" not in got and not passes:
        problems.add(got.at("passes"), "nothing", "a whole number ≥ 1", "say how many first steps the factor is for")


def build_hardware(root: Got) -> dict[str, tuple[Hardware, Got] | None]:
    """Hardware by name; None for what is already reported as wrong."""
    built: dict[str, tuple[Hardware, Got] | None] = {}
    for name, got in root.get("hardware", {}).items():
        built[name] = (Hardware(name=name, **got.filled()), got) if got.good() else None
    return built


def on_hardware(profile: Profile, hardware: Hardware, priced: bool, pool: Got, problems: Problems) -> Profile:
    """``profile`` at the hardware's price, after checking that weights and KV cache fit its memory."""
    needed = profile.cold_start.weights_bytes + profile.kv_tokens * profile.kv_bytes_per_token
    there = hardware.memory_bytes * profile.gpus
    if needed > there:
        found = f"{format_bytes(there)} ({profile.gpus} × {format_bytes(hardware.memory_bytes)})"
        problems.add(pool.at("hardware"), found, f"at least {format_bytes(needed)}: the weights and KV cache of {profile.name}")
    if not priced:
        return profile
    others = [
        Source(", ".join(left), source.origin) for source in profile.sources if (left := _without(source.what.split(", "), "gpu_hour_usd"))
    ]
    price = Source("gpu_hour_usd", f"the price of hardware {hardware.name}")
    return msgspec.structs.replace(profile, gpu_hour_usd=hardware.gpu_hour_usd, sources=(price, *others))


def _without(names: list[str], name: str) -> list[str]:
    return [each for each in names if each != name]


def build_models(root: Got, served: Mapping[str, int], problems: Problems) -> tuple[Model, ...]:
    """The models of the file, or those that the pools serve. ``served``: the longest context that some pool of the model holds."""
    declared: Mapping[str, Got] = root.get("models", {})
    models = [_model(name, got, served, problems) for name, got in declared.items()]
    if not declared:
        models = [Model(name, **_context(context)) for name, context in served.items()]
    owners = {model.name: f"models.{model.name}" for model in models}
    for name, got in declared.items():
        for item in got.get("aliases", ()):
            if item.value in owners:
                problems.add(item.place, f'"{item.value}"', "a name that no other model has", f"it already belongs to {owners[item.value]}")
            owners.setdefault(item.value, f"models.{name}")
    return tuple(models)


def _model(name: str, got: Got, served: Mapping[str, int], problems: Problems) -> Model:
    filled = got.filled()
    longest = served.get(name, 0)
    if longest and filled.get("context_tokens", 0) > longest:
        allowed = f"at most {longest}, the longest context of a profile that serves it"
        problems.add(got.at("context"), str(filled["context_tokens"]), allowed)
    aliases = tuple(item.value for item in got.get("aliases", ()))
    context = {"context_written": True} if "context_tokens" in filled else _context(longest)
    return Model(name=name, aliases=aliases, **{**context, **filled})


def _context(tokens: int) -> dict[str, Any]:
    return {"context_tokens": tokens, "context_written": False} if tokens else {"context_written": False}
