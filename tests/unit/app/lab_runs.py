"""Made-up results of runs, for what reads them."""

from forebay.simulation.values import Minute, RunResult, TierResult, TierTotals

NONE = TierTotals()


def tier(both=1.0, ttft=None, itl=None, arrived=1000, **totals):
    return TierResult(
        TierTotals(arrived=arrived, **totals), both if ttft is None else ttft, both if itl is None else itl, both, ttft_s={"p95": 0.5}
    )


def run(policy="forebay", seed=0, tiers=None, gpu_hours=100.0, cost_usd=350.0, timeline=(), **more):
    values = {
        "duration_s": 86400.0,
        "requests": 1000,
        "gpu_hours_by_state": {"ready": gpu_hours},
        "replicas_mean": 4.0,
        "replicas_peak": 9,
        "scale_actions": 30,
        "reversals": 6,
        "starts": 12,
        "breaches": 2,
        "longest_breach_s": 120.0,
        "preemptions": 0,
        "alerts": {},
        "first_alert_s": {},
        "decisions": 100,
        "decide_s": 0.02,
        "wall_s": 2.0,
        **more,
    }
    return RunResult(
        policy=policy,
        seed=seed,
        tiers=tiers or {"interactive": tier()},
        gpu_hours=gpu_hours,
        cost_usd=cost_usd,
        timeline=tuple(timeline),
        **values,
    )


def minute(number, **more):
    values = {
        "arrived": 60,
        "arrived_tokens": 60_000,
        "both_met": 60,
        "missed": 0,
        "shed": 0,
        "lanes_waiting": 0,
        "engines_waiting": 0,
        "running": 10,
        "kv_usage": 0.4,
        "gpu_usage": 1.0,
        "ttft_p95_s": 0.4,
        "itl_p95_s": 0.03,
        "desired": 3,
        "ready": 3,
        "starting": 0,
        "draining": 0,
        "reason": "demand",
        **more,
    }
    return Minute(at_s=60.0 * (number + 1), **values)
