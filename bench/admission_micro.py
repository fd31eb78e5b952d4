"""What the admission machine costs per request, alone: CPU time of the process, the least of many rounds, and bytecodes. Usage:

    .venv/bin/python bench/admission_micro.py [--rounds 20] [--json PATH] [--profile CASE]

A request is: arrive, first token, two reports of 32 tokens, finish. ``free``: it starts at once. ``through``: 5,000 wait and each waits
its turn behind them, so that a start comes with each end. ``past``: 5,000 of the lowest tier wait, and what comes is of the top one and
starts at once. ``kv``: one replica with 256 sequences whose KV is full, and one that does not fit is asked about. ``near``: as ``free``, and each of 2 KB
is looked for in what 4 replicas have cached of 64 conversations.
Two trees are compared by running it alternately with ``PYTHONPATH`` set to each.
"""

import argparse
import cProfile
import gc
import json
import pstats
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from forebay.admission.machine import Admission
from forebay.admission.prefixes import prefix_of
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import DEFAULT_TIERS

WAITING = 5000
TURNS = 256
TEAMS = tuple(f"team-{number}" for number in range(16))
SHAPE = Shape(500, 120)
USAGE = Usage(480, 70)
KV_SEQUENCES = 256


def pool(sequences: int, kv_tokens: int, replicas: int = 4) -> Admission:
    made = Admission("bench", DEFAULT_TIERS, 2 * WAITING)
    capacity = Capacity(kv_tokens, sequences, 10**9, 1e4, 1e3, 131_072)
    made.set_roster(RosterPool("bench", tuple(RosterReplica(f"r{n}", f"http://r{n}", capacity) for n in range(replicas))), 0.0)
    return made


class Free:
    """Room for all."""

    tier = "interactive"

    def __init__(self) -> None:
        self.pool = pool(1000, 10**9)
        self.ticket = 0
        self.now_s = 0.0

    def turn(self) -> None:
        self.ticket += 1
        self.now_s += 0.001
        ticket, machine, now_s = self.ticket, self.pool, self.now_s
        machine.arrive(ticket, self.tier, TEAMS[ticket & 15], SHAPE, now_s)
        machine.first_token(ticket, now_s)
        machine.emitted(ticket, 32)
        machine.emitted(ticket, 32)
        machine.finish(ticket, USAGE, now_s)


class Near(Free):
    """Where its beginning is cached; hashing its body is counted too."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = [b'{"model":"m","messages":' + b"%4d" % number * 500 + b"}" for number in range(64)]

    def turn(self) -> None:
        self.ticket += 1
        self.now_s += 0.001
        ticket, machine, now_s = self.ticket, self.pool, self.now_s
        body = self.bodies[ticket & 63]
        prefix = prefix_of(body, len(body), SHAPE.prompt_tokens, "m")
        machine.arrive(ticket, self.tier, TEAMS[ticket & 15], SHAPE, now_s, prefix=prefix)
        machine.first_token(ticket, now_s)
        machine.emitted(ticket, 32)
        machine.emitted(ticket, 32)
        machine.finish(ticket, USAGE, now_s)


class Past(Free):
    """Past 5,000 that wait."""

    def __init__(self) -> None:
        self.pool = pool(WAITING, 10**6)
        self.ticket = 0
        self.now_s = 0.0
        large = Shape(100_000, 10_000)
        while self.pool.waiting < WAITING:
            self.ticket += 1
            self.pool.arrive(self.ticket, "batch", TEAMS[self.ticket & 15], large, 0.0)


class Through(Free):
    """Each request behind 5,000; all slots are taken."""

    tier = "standard"

    def __init__(self) -> None:
        self.pool = pool(64, 10**9)
        self.ticket = 0
        self.now_s = 0.0
        self.running: list[int] = []
        while self.pool.waiting < WAITING:
            self.ticket += 1
            self.running += [e.ticket for e in self.arrive()]

    def arrive(self) -> list[Any]:
        return self.pool.arrive(self.ticket, self.tier, TEAMS[self.ticket & 15], SHAPE, self.now_s, 1e9)

    def turn(self) -> None:
        self.ticket += 1
        self.now_s += 0.001
        machine, now_s = self.pool, self.now_s
        self.arrive()
        ticket = self.running[self.ticket & 63]
        machine.first_token(ticket, now_s)
        machine.emitted(ticket, 32)
        machine.emitted(ticket, 32)
        (effect,) = machine.finish(ticket, USAGE, now_s)
        self.running[self.ticket & 63] = effect.ticket


class Kv:
    """Full memory: the one asked about comes and goes, and a stream reports in between."""

    def __init__(self) -> None:
        chance = random.Random(1)
        self.pool = pool(512, 400_000, replicas=1)
        self.now_s = 0.0
        self.ticket = 0
        self.running: list[int] = []
        while len(self.running) < KV_SEQUENCES:
            self.ticket += 1
            shape = Shape(chance.randint(600, 1500), chance.randint(50, 900))
            if self.pool.arrive(self.ticket, "standard", "t", shape, 0.0):
                self.running.append(self.ticket)
                self.pool.emitted(self.ticket, chance.randint(1, 40))
            else:
                self.pool.abandon(self.ticket, 0.0)

    def turn(self) -> None:
        self.ticket += 1
        self.pool.emitted(self.running[self.ticket % KV_SEQUENCES], 1)
        # Each is a little smaller than the one before, so that no refusal that is remembered answers for it.
        self.pool.arrive(self.ticket, "standard", "t", Shape(90_000 - self.ticket % 40_000, 100), self.now_s)
        self.pool.abandon(self.ticket, self.now_s)


def least_us(turn: Callable[[], None], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(TURNS):
            turn()
        best = min(best, (time.process_time() - begun) / TURNS * 1e6)
    return best


def bytecodes(turn: Callable[[], None]) -> float:
    codes = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal codes
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        codes += event == "opcode"
        return trace

    sys.settrace(trace)
    for _ in range(64):
        turn()
    sys.settrace(None)
    return codes / 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--profile", choices=["free", "near", "past", "through", "kv"])
    args = parser.parse_args()
    result = {}
    for case in (Free, Near, Past, Through, Kv):
        name = case.__name__.lower()
        made = case()
        gc.collect()
        if args.profile == name:
            profiler = cProfile.Profile()
            profiler.enable()
            least_us(made.turn, 20)
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        result[name] = {"us": round(least_us(made.turn, args.rounds), 2), "bytecodes": round(bytecodes(made.turn), 1)}
        made.pool.check()
    print(f"{'':8}{'µs':>9}{'bytecodes':>12}")
    for name, row in result.items():
        print(f"{name:8}{row['us']:9.2f}{row['bytecodes']:12.1f}")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
