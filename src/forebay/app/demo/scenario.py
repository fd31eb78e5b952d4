"""The worked example's numbers: a morning that climbs from 100 to 400 requests a minute in ten minutes.

One replica serves 50 a minute and needs five minutes to start. The declared ramp, 30 per minute per minute, times those
five minutes is 150 a minute that will have come before any replica asked for now can help: three replicas of buffer.
So the fleet stands at 2 + 3 = 5 overnight, and goes to 8 + 3 = 11.
"""

import random

import msgspec

from forebay.demand.arrivals import arrivals
from forebay.demand.trace import TraceRow

SPEED = 20.0
TTFT_S = 10.0
NIGHT_PER_MIN, DAY_PER_MIN = 100.0, 400.0
RAMP_PER_MIN2 = 30.0
REPLICA_PER_MIN = 50.0
COLD_START_S = 300.0
GPU_HOUR_USD = 3.0
PROMPT_TOKENS, OUTPUT_TOKENS = 500, 30
STATE = "state"
"""Its state folder, beside the configuration."""
KEY = "sk-demo-interactive"


class Scenario(msgspec.Struct, frozen=True):
    """The phases, in seconds of the emulated world; the calm and the steps of scale-in are shortened to fit the show."""

    settle_s: float = 480.0
    ramp_s: float = 600.0
    day_s: float = 420.0
    fall_s: float = 60.0
    evening_s: float = 480.0

    @property
    def total_s(self) -> float:
        """From the first request to the last."""
        return self.settle_s + self.ramp_s + self.day_s + self.fall_s + self.evening_s

    def rate_per_s(self, at_s: float) -> float:
        """Requests per second at ``at_s``: night, ramp, day, fall, evening."""
        climbed_s = at_s - self.settle_s
        fallen_s = climbed_s - self.ramp_s - self.day_s
        climbed, fallen = climbed_s / self.ramp_s, fallen_s / self.fall_s
        share = 1.0 - min(1.0, fallen) if fallen > 0 else min(1.0, max(0.0, climbed))
        return (NIGHT_PER_MIN + share * (DAY_PER_MIN - NIGHT_PER_MIN)) / 60.0

    def rows(self, seed: int) -> list[TraceRow]:
        """The requests, the same for both stories: evenly paced with a jitter, as a crowd of many users is."""
        chance = random.Random(f"{seed}/demo arrivals")
        shapes = random.Random(f"{seed}/demo shapes")
        return [
            TraceRow(at_s, round(PROMPT_TOKENS * shapes.uniform(0.8, 1.2)), round(OUTPUT_TOKENS * shapes.uniform(0.8, 1.2)))
            for at_s in arrivals(self.rate_per_s, self.total_s, chance, cv=1.0)
        ]


def spec_yaml(buffer: bool) -> str:
    """The configuration of one story; all but ``buffer`` is the same."""
    return f"""\
# The worked example of `forebay demo`, {"with" if buffer else "without"} the warm buffer.
speed: {SPEED:g}
gateway: {{listen: 127.0.0.1:0}}
admin: {{listen: 127.0.0.1:0}}
state: {STATE}
hardware:
  demo-gpu: {{memory: 80GB, gpus: 1, price: {GPU_HOUR_USD}}}
models:
  demo: {{context: 8192}}
tiers:
  interactive: {{rank: 0, ttft: {TTFT_S:g}s, longest_wait: 30m}}
teams:
  demo:
    keys: [{{key: {KEY}, tier: interactive}}]
pools:
  chat:
    model: demo
    profile: demo
    hardware: demo-gpu
    engine: {{kind: emulated}}
    slo: {{ttft: {TTFT_S:g}s, itl: 1s, attainment: 0.95}}
    scaling:
      min: 2
      max: 16
      buffer: {"true" if buffer else "false"}
      ramp: {RAMP_PER_MIN2:g}/min/min
      ramp_quantile: 0.95
      replica_rate: {REPLICA_PER_MIN:g}/min
      shape: {{prompt: {PROMPT_TOKENS}, output: {OUTPUT_TOKENS}}}
      cold_start: {COLD_START_S:g}s
      interval: 2s
      starts: 8
      drain: 5m
      # Shortened for the show: a real fleet keeps the default calm of 15 minutes and steps of 10 %.
      in: {{calm: 1m, step: 0.5}}
"""
