"""A whole configuration in, values in SI units out; every mistake is named where it stands."""

import math
from collections.abc import Callable

import msgspec
import pytest

from forebay.domain.profile import ColdStart, Profile, Source, StepLaw, StepSpread, WarmUp
from forebay.spec.decode import BadSpec, Problem, decode
from forebay.spec.types import DEFAULT_TIERS, Limits, Listen, Scaling, Slo, Spec

TINY = Profile(
    name="tiny",
    model="tiny-model",
    hardware="toy",
    gpus=2,
    law=StepLaw(0.005, 0.00005, 2e-8, 4e-5),
    sequences_max=64,
    kv_tokens=40_000,
    block_tokens=16,
    prefill_chunk_tokens=2048,
    kv_bytes_per_token=100_000,
    context_tokens=16_384,
    cold_start=ColdStart(60.0, 16e9, 2e9, 30.0),
    gpu_hour_usd=3.0,
)
SHIPPED = {"tiny": TINY}
POOL = "pools:\n  chat:\n    profile: tiny\n    engine: {kind: emulated}\n"


def spec_of(text: str) -> Spec:
    return decode(text, "forebay.yaml", SHIPPED)


def problems_of(text: str) -> tuple[Problem, ...]:
    with pytest.raises(BadSpec) as caught:
        spec_of(text)
    return caught.value.problems


def only_problem(text: str) -> Problem:
    problems = problems_of(text)
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


class TestMeaning:
    def test_the_smallest_file_is_one_attached_pool(self) -> None:
        spec = spec_of("pools:\n  chat:\n    attach: [http://127.0.0.1:9100]\n")
        pool = spec.pool("chat")
        assert (pool.model, pool.profile, pool.queued_max) == ("chat", None, 10_000)
        assert (pool.engine.kind, pool.engine.attach) == ("attach", ("http://127.0.0.1:9100",))
        assert (pool.slo, pool.scaling) == (Slo(), Scaling())
        assert [model.name for model in spec.models] == ["chat"]
        assert (spec.tiers, spec.teams, spec.limits) == (DEFAULT_TIERS, (), Limits())
        assert (spec.gateway, spec.admin) == (Listen("127.0.0.1", 8080), Listen("127.0.0.1", 8081))
        assert (spec.gateways, spec.relay_workers) == (1, 0)

    def test_every_scaling_setting_arrives_in_seconds_and_per_second(self) -> None:
        text = POOL + (
            "    scaling: {min: 2, max: 9, spare: 1, noise: 2, interval: 2s, buffer: false, ramp: 30/min/min, ramp_quantile: 0.9, cold_start: 5m,\n"
            "      replica_rate: 50/min, starts: 3, drain: 11m, pending_alert: 6m, unknown_alert: 3m, shape: {prompt: 900, output: 100},\n"
            "      out: {waiting_per_replica: 4, for: 30s, kv: 0.8}, in: {kv: 0.4, calm: 10m, step: 0.2, every: 2m, margin: 0.25, known: 0.9}}\n"
        )
        scaling = spec_of(text).pool("chat").scaling
        assert scaling.ramp_per_s2 == pytest.approx(30 / 3600)
        assert scaling.replica_rate_per_s == pytest.approx(50 / 60)
        assert msgspec.structs.replace(scaling, ramp_per_s2=0.0, replica_rate_per_s=None) == Scaling(
            min_replicas=2,
            max_replicas=9,
            spare_replicas=1,
            interval_s=2.0,
            out_waiting_per_replica=4.0,
            out_waiting_for_s=30.0,
            out_kv_usage=0.8,
            in_kv_usage=0.4,
            in_calm_s=600.0,
            in_step_fraction=0.2,
            in_step_every_s=120.0,
            noise_sigmas=2.0,
            in_margin=0.25,
            in_known_fraction=0.9,
            buffer=False,
            ramp_quantile=0.9,
            cold_start_s=300.0,
            prompt_tokens=900,
            output_tokens=100,
            starts_max=3,
            drain_s_max=660.0,
            pending_alert_s=360.0,
            unknown_alert_s=180.0,
        )

    def test_a_min_alone_lifts_the_max(self) -> None:
        assert spec_of(POOL + "    scaling: {min: 3}\n").pool("chat").scaling.max_replicas == 3

    def test_the_forecast_follows_the_clock_that_is_named(self) -> None:
        assert Scaling().forecast_timezone == "UTC"
        scaling = spec_of(POOL + "    scaling: {forecast: {timezone: Europe/Berlin}}\n").pool("chat").scaling
        assert scaling.forecast_timezone == "Europe/Berlin"
        assert "Europe/Berlin" in str(only_problem(POOL + "    scaling: {forecast: {timezone: Europe/Berlon}}\n"))

    def test_warm_nodes_are_off_unless_asked_for(self) -> None:
        assert (Scaling().warm_max, Scaling().warm_share) == (0, 1.0)
        scaling = spec_of(POOL + "    scaling: {warm: {max: 10, share: 0.3}}\n").pool("chat").scaling
        assert (scaling.warm_max, scaling.warm_share) == (10, 0.3)

    def test_attached_engines_have_no_nodes_to_keep_warm(self) -> None:
        problem = only_problem("pools: {chat: {attach: [http://h:1], scaling: {warm: {max: 2}}}}")
        assert "scaling.warm.max" in str(problem)
        assert "not started by Forebay" in str(problem)

    def test_attached_urls_are_the_replicas(self) -> None:
        scaling = spec_of("pools: {chat: {attach: [http://h:1/, http://h:2]}}").pool("chat").scaling
        assert (scaling.min_replicas, scaling.max_replicas) == (2, 2)

    def test_attached_engines_may_say_whose_metrics_they_have(self) -> None:
        engine = spec_of("pools: {chat: {attach: [http://h:1], engine: {metrics: llamacpp, health: /ready}}}").pool("chat").engine
        assert (engine.kind, engine.metrics, engine.health_path) == ("attach", "llamacpp", "/ready")

    @pytest.mark.parametrize(
        "command",
        [
            "serve --name 'a b' --port {port}",
            ">-\n        serve --name 'a b'\n        --port {port}",
            '[serve, --name, a b, --port, "{port}"]',
        ],
    )
    def test_a_command_is_split_or_a_list(self, command: str) -> None:
        engine = spec_of(POOL.replace("{kind: emulated}", f"\n      command: {command}")).pools[0].engine
        assert (engine.kind, engine.command) == ("command", ("serve", "--name", "a b", "--port", "{port}"))

    def test_json_in_a_command_is_no_placeholder(self) -> None:
        text = 'pools: {c: {profile: tiny, engine: {command: [serve, "{port}", \'{"a": 1}\', 8]}}}'
        assert spec_of(text).pools[0].engine.command == ("serve", "{port}", '{"a": 1}', "8")

    def test_environment_keeps_numbers_as_written(self) -> None:
        text = 'pools: {c: {profile: tiny, engine: {command: "s {port}", env: {B: true, A: 0_1}}}}'
        assert spec_of(text).pools[0].engine.env == (("A", "0_1"), ("B", "true"))

    def test_a_pool_on_hardware_costs_what_the_hardware_costs(self) -> None:
        text = POOL + "    hardware: big\nhardware: {big: {memory: 80GB, price: 1.25}, free: {memory: 80GiB}}\n"
        spec = spec_of(text)
        profile = spec.pool("chat").profile
        assert profile is not None
        assert profile.gpu_hour_usd == 1.25
        assert spec.hardware[1].memory_bytes == 80 * 2**30
        unpriced = spec_of(text.replace("hardware: big", "hardware: free")).pool("chat").profile
        assert unpriced is not None
        assert unpriced.gpu_hour_usd == 3.0

    def test_a_profile_can_change_what_differs_from_its_base(self) -> None:
        text = (
            "profiles: {mine: {base: tiny, kv: 50000, cold_start: {provision: 0s, bandwidth: 4GB/s}, step: {per_kv_token: 30ns}},"
            " next: {base: mine, sequences: 7}}\npools: {c: {profile: next, engine: {kind: emulated}}}\n"
        )
        profile = spec_of(text).pools[0].profile
        assert profile is not None
        assert (profile.name, profile.kv_tokens, profile.sequences_max, profile.context_tokens) == ("next", 50_000, 7, 16_384)
        assert (profile.cold_start.total_s, profile.law.base_s) == (34.0, 0.005)
        assert math.isclose(profile.law.per_kv_token_s, 3e-8)

    def test_an_inherited_context_that_the_kv_cannot_hold_gives_way_to_the_models(self) -> None:
        text = (
            "models: {m: {context: 8192}}\nprofiles: {mine: {base: tiny, kv: 10000}}\n"
            "pools: {c: {model: m, profile: mine, attach: [http://127.0.0.1:9100]}}\n"
        )
        profile = spec_of(text).pools[0].profile
        assert profile is not None
        assert (profile.context_tokens, profile.kv_tokens) == (8192, 10_000)

    @pytest.mark.parametrize("context", ["{}", "{context: 12000}"], ids=["no context", "one longer than the KV"])
    def test_a_context_that_nothing_shortens_to_the_kv_is_refused(self, context: str) -> None:
        text = (
            f"models: {{m: {context}}}\nprofiles: {{mine: {{base: tiny, kv: 10000}}}}\n"
            "pools: {c: {model: m, profile: mine, attach: [http://127.0.0.1:9100]}}\n"
        )
        with pytest.raises(BadSpec, match="a context of 16384 tokens"):
            spec_of(text)

    def test_what_is_not_measured_is_inherited_until_it_is_set(self) -> None:
        text = (
            "profiles: {mine: {base: tiny, not_measured: [per_kv_token, per_sequence]},"
            " next: {base: mine, step: {per_sequence: 40us}}, last: {base: next, step: {per_kv_token: 30ns}}}\n"
            "pools: {c: {profile: mine, engine: {kind: emulated}}, d: {profile: next, engine: {kind: emulated}},"
            " e: {profile: last, engine: {kind: emulated}}}\n"
        )
        found = {name: spec_of(text).pool(name).profile for name in "cde"}
        assert {name: profile.not_measured for name, profile in found.items() if profile is not None} == {
            "c": ("per_sequence", "per_kv_token"),
            "d": ("per_kv_token",),
            "e": (),
        }

    def test_a_spread_is_inherited_and_steps_without_one_are_steady(self) -> None:
        text = (
            "profiles: {mine: {base: tiny, spread: {p5: 0.8, p95: 1.3, p99: 1.5}}, next: {base: mine, spread: {p99: 2}}}\n"
            "pools: {c: {profile: next, engine: {kind: emulated}}, d: {profile: tiny, engine: {kind: emulated}}}\n"
        )
        spread = spec_of(text).pool("c").profile
        assert spread is not None
        assert spread.spread == StepSpread(p5=0.8, p95=1.3, p99=2.0)
        steady = spec_of(text).pool("d").profile
        assert steady is not None
        assert steady.spread.steady

    def test_a_warm_up_is_inherited_and_can_be_taken_off(self) -> None:
        text = (
            "profiles: {mine: {base: tiny, warm_up: {passes: 200, factor: 8}}, next: {base: mine, warm_up: {factor: 4}},"
            " last: {base: mine, warm_up: {passes: 0}}}\n"
            "pools: {c: {profile: next, engine: {kind: emulated}}, d: {profile: last, engine: {kind: emulated}},"
            " e: {profile: tiny, engine: {kind: emulated}}}\n"
        )
        found = {name: spec_of(text).pool(name).profile for name in "cde"}
        warm_ups = {name: profile.warm_up for name, profile in found.items() if profile is not None}
        assert warm_ups == {"c": WarmUp(200, 4.0), "d": WarmUp(0, 8.0), "e": WarmUp()}

    def test_what_the_file_sets_says_so_and_only_what_is_inherited_has_the_bases_source(self) -> None:
        base = msgspec.structs.replace(
            TINY, sources=(Source("law", "measured"), Source("sequences_max, kv_tokens", "computed"), Source("gpu_hour_usd", "assumed"))
        )
        text = (
            "profiles:\n  mine:\n    base: tiny\n    kv: 50000\n    step: {base: 6ms}\n  next: {base: mine, price: 2}\n"
            "pools: {c: {profile: next, hardware: h, engine: {kind: emulated}}, d: {profile: mine, hardware: h, engine: {kind: emulated}}}\n"
            "hardware: {h: {memory: 80GB}}\n"
        )

        def sources(text: str, pool: str) -> dict[str, str]:
            profile = decode(text, "forebay.yaml", {"tiny": base}).pool(pool).profile
            assert profile is not None
            return {source.what: source.origin for source in profile.sources}

        mine = {
            "kv_tokens": "set in forebay.yaml, line 4",
            "law.base_s": "set in forebay.yaml, line 5",
            "law.per_sequence_s, law.per_kv_token_s, law.per_prefill_token_s": "measured",
            "sequences_max": "computed",
        }
        assert sources(text, "d") == {**mine, "gpu_hour_usd": "assumed"}
        assert sources(text, "c") == {**mine, "gpu_hour_usd": "set in forebay.yaml, line 6"}
        priced = text.replace("80GB}", "80GB, price: 9}")
        assert sources(priced, "d") == sources(priced, "c") == {**mine, "gpu_hour_usd": "the price of hardware h"}

    def test_a_speed_is_for_commands_that_take_it(self) -> None:
        text = POOL.replace("{kind: emulated}", "{command: 's {port}', env: {A: '{speed}'}}") + "speed: 5\n"
        assert spec_of(text).speed == 5
        assert spec_of(text.replace("{port}", "{port} --speed {speed}").replace("'{speed}'}", "b}")).speed == 5
        assert spec_of(text.replace("'{speed}'", "b").replace("speed: 5", "speed: 1")).speed == 1

    def test_a_profile_can_be_defined_whole(self) -> None:
        text = (
            "profiles:\n  own: {model: m, hardware: h, gpus: 1, step: {base: 6ms, per_sequence: 50us, per_kv_token: 20ns, per_prefill_token: 40us},\n"
            "    sequences: 8, kv: 9000, block: 16, prefill_chunk: 512, kv_per_token: 128KiB, context: 8192,\n"
            "    cold_start: {provision: 1m, weights: 2GB, bandwidth: 1GB/s, init: 3s}}\n"
            "pools: {c: {profile: own, engine: {kind: emulated}}}\n"
        )
        profile = spec_of(text).pools[0].profile
        assert profile is not None
        assert (profile.kv_bytes_per_token, profile.cold_start.total_s) == (131_072, 65.0)

    def test_a_model_takes_the_longest_context_that_serves_it(self) -> None:
        text = "profiles: {short: {base: tiny, context: 4096}}\npools:\n  a: {model: m, profile: short, region: eu, engine: {kind: emulated}}\n"
        assert spec_of(text).models[0].context_tokens == 4096
        assert spec_of(text + "  b: {model: m, profile: tiny, engine: {kind: emulated}}\n").models[0].context_tokens == 16_384

    def test_a_model_knows_whether_its_context_is_written(self) -> None:
        assert not spec_of(POOL).models[0].context_written
        assert not spec_of(POOL + "models: {m: {}}\n").models[0].context_written
        assert spec_of(POOL + "models: {m: {context: 1000}}\n").models[0].context_written

    def test_the_only_model_need_not_be_named_by_its_pool(self) -> None:
        spec = spec_of(POOL + "models: {m: {context: 1000, aliases: [gpt-4o-mini]}}\n")
        assert (spec.pools[0].model, spec.models[0].aliases, spec.models[0].context_tokens) == ("m", ("gpt-4o-mini",), 1000)

    def test_an_event_of_the_calendar_has_a_date_and_no_days(self) -> None:
        text = POOL.replace("emulated}", "emulated}\n    scaling: {max: 9}")
        once = "calendar:\n  - {name: push, date: 2026-11-27, from: 09:00, to: 12:00, min: 6}\n"
        (push,) = spec_of(text + once).calendar
        assert (push.date, push.start_s, push.min_replicas) == ("2026-11-27", 32_400.0, 6)

    def test_calendar_times_are_seconds_of_the_day_and_may_pass_midnight(self) -> None:
        text = POOL.replace("emulated}", "emulated}\n    scaling: {max: 9}") + (
            "calendar:\n  - {name: day, days: weekdays, from: 08:00, to: 18:30, timezone: Europe/Paris, min: 6}\n"
            '  - {name: night, pools: [chat], days: [sun, mon], from: "22:00", to: "06:00", min: 2}\n'
        )
        day, night = spec_of(text).calendar
        assert (day.pools, day.days, day.start_s, day.end_s, day.timezone) == (
            ("chat",),
            (0, 1, 2, 3, 4),
            28_800.0,
            66_600.0,
            "Europe/Paris",
        )
        assert (night.days, night.start_s, night.end_s, night.timezone, night.min_replicas) == ((0, 6), 79_200.0, 108_000.0, "UTC", 2)

    def test_the_rest_of_the_file(self) -> None:
        text = POOL + (
            "    queue: {max: 5}\n    labels: {b: x, a: 1}\ngateway: {listen: '[::1]:0'}\nadmin: {listen: localhost:9}\n"
            "limits: {body: 1MiB, idle: 5m}\nstate: /tmp/x\nalerts: {webhook: 'http://h/x'}\nspeed: 20\n"
        )
        spec = spec_of(text)
        assert (spec.pools[0].queued_max, spec.pools[0].labels) == (5, (("a", "1"), ("b", "x")))
        assert (spec.gateway, spec.admin) == (Listen("::1", 0), Listen("localhost", 9))
        assert spec.limits == Limits(body_bytes_max=2**20, idle_s=300.0)
        assert (spec.state_dir, spec.webhook, spec.speed) == ("/tmp/x", "http://h/x", 20.0)

    def test_an_empty_value_is_none_at_all(self) -> None:
        assert spec_of(POOL + "    slo:\n    scaling: null\nmodels:\nteams: ~\n") == spec_of(POOL)


MISTAKES: dict[str, tuple[str, int, str, str, str]] = {
    # name: (text after POOL, line, path, words that must be found, words of the hint)
    "unknown key": ("    modle: x\n", 5, "pools.chat.modle", "an unknown key", 'did you mean "model"?'),
    "key of a section further down": (
        "    scaling: {calm: 5m}\n",
        5,
        "pools.chat.scaling.calm",
        "an unknown key",
        'did you mean "forecast.calm" or "in.calm"?',
    ),
    "key much like one further down": (
        "    scaling: {waitng_per_replica: 3}\n",
        5,
        "pools.chat.scaling.waitng_per_replica",
        "an unknown key",
        'did you mean "out.waiting_per_replica"?',
    ),
    "key of two sections further down": ("    kv: 1\n", 5, "pools.chat.kv", "an unknown key", '"scaling.out.kv" or "scaling.in.kv"?'),
    "unknown model": ("    model: lama\nmodels: {llama: {}, other: {}}\n", 5, "pools.chat.model", '"lama"', 'did you mean "llama"?'),
    "unknown hardware": (
        "    hardware: h10\nhardware: {h100: {memory: 80GB}}\n",
        5,
        "pools.chat.hardware",
        '"h10"',
        'did you mean "h100"?',
    ),
    "unknown base": ("profiles: {p: {base: tini}}\n", 5, "profiles.p.base", '"tini"', 'did you mean "tiny"?'),
    "unknown tier": ("teams: {t: {tiers: [bach]}}\n", 5, "teams.t.tiers[0]", '"bach"', 'did you mean "batch"?'),
    "unknown key tier": (
        "teams: {t: {keys: [{key: abcdefgh, tier: batsch}]}}\n",
        5,
        "teams.t.keys[0].tier",
        '"batsch"',
        'did you mean "batch"?',
    ),
    "unknown calendar pool": (
        "calendar: [{name: n, pools: [chta], from: 01:00, to: 02:00, min: 1}]\n",
        5,
        "calendar[0].pools[0]",
        '"chta"',
        "chat",
    ),
    "unknown timezone": (
        "calendar: [{name: n, from: 01:00, to: 02:00, min: 1, timezone: Europe/Pari}]\n",
        5,
        "calendar[0].timezone",
        "Europe/Pari",
        "Europe/Paris",
    ),
    "bare duration": ("    slo: {ttft: 90}\n", 5, "pools.chat.slo.ttft", "90", "write 90s"),
    "bare short duration": ("    slo: {itl: 50}\n", 5, "pools.chat.slo.itl", "50", "write 50ms"),
    "bare size": ("hardware: {h: {memory: 80}}\n", 5, "hardware.h.memory", "80", "write 80GB"),
    "bare rate": ("    scaling: {replica_rate: 50}\n", 5, "pools.chat.scaling.replica_rate", "50", "write 50/min"),
    "wrong word": ("    scaling:\n      min: two\n", 6, "pools.chat.scaling.min", '"two"', ""),
    "quoted number": ("    scaling: {min: '2'}\n", 5, "pools.chat.scaling.min", "2", "without quotes"),
    "flag for a number": ("    scaling: {min: true}\n", 5, "pools.chat.scaling.min", "true", ""),
    "number for a flag": ("    scaling: {buffer: 1}\n", 5, "pools.chat.scaling.buffer", "1", ""),
    "yes for a flag": ("    scaling: {buffer: yes}\n", 5, "pools.chat.scaling.buffer", '"yes"', "write true"),
    "negative": ("    scaling: {min: -1}\n", 5, "pools.chat.scaling.min", "-1", ""),
    "fraction of a replica": ("    scaling: {min: 1.5}\n", 5, "pools.chat.scaling.min", "1.5", ""),
    "huge": (f"    scaling: {{min: {'9' * 5000}}}\n", 5, "pools.chat.scaling.min", "999", "at most 4096"),
    "huge duration": (f"    slo: {{ttft: {'9' * 400}s}}\n", 5, "pools.chat.slo.ttft", "999", "at most"),
    "thousands": ("models: {chat: {context: 16k}}\n", 5, "models.chat.context", "16k", "16000 or 16384"),
    "percent": ("    scaling: {out: {kv: 85%}}\n", 5, "pools.chat.scaling.out.kv", "85%", "write 0.85"),
    "percent as number": ("    slo: {attainment: 99}\n", 5, "pools.chat.slo.attainment", "99", "write 0.99"),
    "not a number": ("speed: .nan\n", 5, "speed", ".nan", ""),
    "infinite": ("speed: .inf\n", 5, "speed", ".inf", ""),
    "list for a mapping": ("    slo: [1s]\n", 5, "pools.chat.slo", "a list", ""),
    "text for a list": ("    attach: http://h:1\n", 5, "pools.chat.attach", "http://h:1", "put it in [brackets]"),
    "number for a name": ("    model: 7\n", 5, "pools.chat.model", "7", "put it in quotes"),
    "min above max": ("    scaling:\n      min: 3\n      max: 2\n", 6, "pools.chat.scaling.min", "3", ""),
    "kv thresholds cross": ("    scaling: {in: {kv: 0.9}}\n", 5, "pools.chat.scaling.in.kv", "in.kv 0.9 and out.kv 0.85", "at once"),
    "shape beyond context": ("    scaling: {shape: {prompt: 16384}}\n", 5, "pools.chat.scaling.shape", "16584 tokens", ""),
    "model beyond context": ("models: {chat: {context: 20000}}\n", 5, "models.chat.context", "20000", ""),
    "memory": ("    hardware: small\nhardware: {small: {memory: 1GB}}\n", 5, "pools.chat.hardware", "2.0GB (2 × 1.0GB)", ""),
    "kv below context": (
        "profiles: {p: {base: tiny, kv: 100}}\n",
        5,
        "profiles.p.kv",
        "16384",
        "inherited from tiny: set profiles.p.context to at most 100; ",
    ),
    "a spread that falls": (
        "profiles: {p: {base: tiny, spread: {p5: 0.8, p95: 0.9}}}\n",
        5,
        "profiles.p.spread",
        "p90: 1, p95: 0.9",
        "those left out are the base's, or 1",
    ),
    "a warm-up like the rest": (
        "profiles: {p: {base: tiny, warm_up: {passes: 200}}}\n",
        5,
        "profiles.p.warm_up.factor",
        "200 first steps that take as long as all others",
        "or leave passes out",
    ),
    "a warm-up of no steps": (
        "profiles: {p: {base: tiny, warm_up: {factor: 2}}}\n",
        5,
        "profiles.p.warm_up.passes",
        "nothing",
        "say how many",
    ),
    "a warm-up that is faster": ("profiles: {p: {base: tiny, warm_up: {factor: 0.5}}}\n", 5, "profiles.p.warm_up.factor", "0.5", ""),
    "no time at all": ("profiles: {p: {base: tiny, spread: {p5: 0}}}\n", 5, "profiles.p.spread.p5", "0", ""),
    "a weight that is next to nothing": (
        "teams: {a: {weight: 1.0e-300, keys: [{key: sk-aaaaaaaa}]}}\n",
        5,
        "teams.a.weight",
        "1.0e-300",
        "write 0.001 or more",
    ),
    "no weight at all": ("teams: {t: {weight: 0}}\n", 5, "teams.t.weight", "0", ""),
    "a grant of next to nothing": ("grants: {t: {weight_max: 1e-9}}\n", 5, "grants.t.weight_max", "1e-9", "write 0.001 or more"),
    "half a profile": ("profiles: {p: {base: tiny, cold_start: {weights: 16}}}\n", 5, "profiles.p.cold_start.weights", "16", "write 16GB"),
    "shipped name": ("profiles: {tiny: {base: tiny}}\n", 5, "profiles.tiny", 'second profile "tiny"', "base: tiny"),
    "same rank": ("tiers: {interactive: {}, x: {rank: 0, ttft: 1s, longest_wait: 1s}}\n", 5, "tiers.x.rank", "0", "interactive has it"),
    "tier without ttft": ("tiers: {x: {rank: 0, longest_wait: 1s}}\n", 5, "tiers.x.ttft", "nothing", "add it"),
    "tier not of the team": (
        "teams: {t: {tiers: [batch], keys: [{key: abcdefgh, tier: standard}]}}\n",
        5,
        "teams.t.keys[0].tier",
        '"standard"',
        "",
    ),
    "alias taken": ("models: {chat: {aliases: [b]}, b: {}}\n    \n", 5, "models.chat.aliases[0]", '"b"', "models.b"),
    "calendar above max": ("calendar: [{name: n, from: 01:00, to: 02:00, min: 5}]\n", 5, "calendar[0].min", "5", ""),
    "calendar at one time": ("calendar: [{name: n, from: 01:00, to: 01:00, min: 1}]\n", 5, "calendar[0].to", "same time", "24:00"),
    "no such date": (
        "calendar: [{name: n, date: 2026-02-30, from: 01:00, to: 02:00, min: 1}]\n",
        5,
        "calendar[0].date",
        "2026-02-30",
        "no such day",
    ),
    "a date and days": (
        "calendar: [{name: n, date: 2026-02-20, days: all, from: 01:00, to: 02:00, min: 1}]\n",
        5,
        "calendar[0].date",
        "days as well",
        "a date comes once",
    ),
    "impossible time": ("calendar: [{name: n, from: 01:00, to: 25:00, min: 1}]\n", 5, "calendar[0].to", "25:00", "24 hours"),
    "one address for two": ("gateway: {listen: 127.0.0.1:8081}\n", 5, "gateway.listen", "127.0.0.1:8081", "change"),
    "port only": ("gateway: {listen: 8080}\n", 5, "gateway.listen", "8080", "127.0.0.1:8080"),
    "too many relay workers": ("gateway: {workers: 17}\n", 5, "gateway.workers", "17", "at most 16"),
    "relay workers in words": ("gateway: {workers: many}\n", 5, "gateway.workers", "many", ""),
    "impossible port": ("gateway: {listen: h:70000}\n", 5, "gateway.listen", "h:70000", "65535"),
    "body above bodies": ("limits: {body: 1GB}\n", 5, "limits.body", "larger", ""),
    "webhook": ("alerts: {webhook: hooks.example}\n", 5, "alerts.webhook", "hooks.example", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_where_it_stands(name: str) -> None:
    extra, line, path, found, hint = MISTAKES[name]
    text = POOL + extra
    if name == "alias taken":
        text = text.replace("    profile", "    model: chat\n    profile", 1)
        line += 1
    if name == "text for a list":
        text = text.replace("    engine: {kind: emulated}\n", "")
        line -= 1
    problem = only_problem(text)
    assert (problem.file, problem.line, problem.path) == ("forebay.yaml", line, path)
    assert found in problem.found
    assert hint in problem.hint
    assert problem.allowed


ENGINES: dict[str, tuple[str, str, str]] = {
    "none": ("{profile: tiny}", "pools.c.engine", "attach: [http://host:port]"),
    "both": ("{attach: [http://h:1], engine: {kind: emulated}}", "pools.c.engine.kind", "either attach or engine"),
    "emulated command": ("{profile: tiny, engine: {kind: emulated, command: 's {port}'}}", "pools.c.engine.command", "either"),
    "command missing": ("{profile: tiny, engine: {kind: command}}", "pools.c.engine.command", "{port}"),
    "no profile": ("{engine: {kind: emulated}}", "pools.c.profile", "profile"),
    "no port": ("{profile: tiny, engine: {command: vllm serve}}", "pools.c.engine.command", "{port}"),
    "no port in a list": ("{profile: tiny, engine: {command: [vllm, serve]}}", "pools.c.engine.command", "{port}"),
    "unknown placeholder": ("{profile: tiny, engine: {command: 's {port} {prot}'}}", "pools.c.engine.command", "{port}"),
    "unbalanced quotes": ('{profile: tiny, engine: {command: "s {port} \'x"}}', "pools.c.engine.command", "{port}"),
    "path": ("{attach: [http://h:1/v1]}", "pools.c.attach[0]", "http://host:port"),
    "https": ("{attach: [https://h:1]}", "pools.c.attach[0]", "http://host:port"),
    "no scheme": ("{attach: [h:1]}", "pools.c.attach[0]", "http://host:port"),
    "no url": ("{attach: []}", "pools.c.attach", "http://host:port"),
    "twice": ("{attach: [http://h:1, http://h:1/]}", "pools.c.attach[1]", "each engine once"),
    "twice in two cases": ("{attach: [http://h:1, http://H:1]}", "pools.c.attach[1]", "each engine once"),
    "twice with zeros": ("{attach: [http://h:8000, http://h:08000]}", "pools.c.attach[1]", "each engine once"),
    "twice by name": ("{attach: [http://localhost:1, http://127.0.0.1:1]}", "pools.c.attach[1]", "each engine once"),
    "other count": ("{attach: [http://h:1], scaling: {max: 3}}", "pools.c.scaling.max", "1, the number of attached engines"),
    "ramp without cold start": ("{attach: [http://h:1], scaling: {ramp: 1/s/s}}", "pools.c.scaling.cold_start", "a duration"),
}


@pytest.mark.parametrize("name", ENGINES)
def test_how_engines_come_to_be_is_said_once_and_rightly(name: str) -> None:
    pool, path, allowed = ENGINES[name]
    problem = only_problem(f"pools: {{c: {pool}}}")
    assert problem.path == path
    assert allowed in problem.allowed


def test_a_speed_that_a_command_does_not_take_is_told_with_both_lines() -> None:
    problem = only_problem(POOL.replace("{kind: emulated}", "{command: 's {port}'}") + "speed: 20\n")
    assert (problem.line, problem.found) == (4, "a command without {speed}, and a speed of 20 on line 5")


class TestAllAtOnce:
    def test_every_problem_is_told_in_the_order_of_lines(self) -> None:
        problems = problems_of("speed: fast\npools:\n  a: {profile: nix, engine: {kind: emulated}}\n  b: {attach: [x]}\nzzz: 1\n")
        assert [(problem.line, problem.path) for problem in problems] == [
            (1, "speed"),
            (3, "pools.a.profile"),
            (4, "pools.b.attach[0]"),
            (5, "zzz"),
        ]

    def test_the_message_has_a_line_for_each_and_their_number(self) -> None:
        with pytest.raises(BadSpec) as caught:
            spec_of(POOL + '    scaling: {min: "two", mx: 3}\n')
        lines = str(caught.value).splitlines()
        assert lines[0] == 'forebay.yaml:5: pools.chat.scaling.min: found "two"; allowed: a whole number ≥ 0 and ≤ 10000'
        assert lines[1].startswith("forebay.yaml:5: pools.chat.scaling.mx: found an unknown key; allowed: min, max,")
        assert lines[1].endswith('; did you mean "max"?')
        assert lines[2] == "2 problems in forebay.yaml; nothing was started"
        assert caught.value.exit_code == 2

    def test_very_many_are_counted(self) -> None:
        with pytest.raises(BadSpec) as caught:
            spec_of(POOL + "".join(f"k{number}: 1\n" for number in range(500)))
        assert caught.value.count == 500
        assert len(caught.value.problems) == 200
        assert "… and 300 more" in str(caught.value)

    def test_a_wrong_definition_is_not_told_again_where_it_is_used(self) -> None:
        text = "profiles: {p: {base: tiny, gpus: x}}\nhardware: {h: {memory: 1}}\npools: {c: {profile: p, hardware: h, engine: {kind: emulated}}}\n"
        assert [problem.path for problem in problems_of(text)] == ["profiles.p.gpus", "hardware.h.memory"]

    def test_a_profile_without_base_must_be_whole(self) -> None:
        paths = {problem.path for problem in problems_of(POOL + "profiles: {p: {gpus: 1, step: {base: 1ms}}}\n")}
        assert {"profiles.p.kv", "profiles.p.step.per_kv_token", "profiles.p.cold_start.weights"} <= paths
        assert "profiles.p.price" not in paths


@pytest.mark.parametrize(
    "shape",
    [
        lambda key: f"teams: {{t: {{keys: [{key}]}}}}",
        lambda key: f"teams: {{t: {{keys: {key}}}}}",
        lambda key: f"teams: {{t: {{keys: [{{key: {key}, tier: nix}}]}}}}",
        lambda key: f"teams: {{t: {{keys: [{{{key}: interactive}}]}}}}",
        lambda key: f"teams: {{t: {{keys: [{{key: [{key}]}}]}}}}",
        lambda key: f"teams: {{t: {{keys: [{{key: '{key} x'}}]}}}}",
        lambda key: f"teams: {{t: {{keys: [{{key: {key}}}]}}, u: {{keys: [{{key: {key}}}]}}}}",
    ],
)
@pytest.mark.parametrize("key", ["sk-abcdefghijklmnop", "supersecretkey1234"])
def test_a_key_is_never_shown_whole(shape: Callable[[str], str], key: str) -> None:
    with pytest.raises(BadSpec) as caught:
        spec_of(POOL + shape(key) + "\n")
    assert key not in str(caught.value)
    assert "teams." in str(caught.value)
