"""Open-loop replay: every row is sent when it is due, whatever became of the rows before it.

One timer walks the rows and one Protocol per connection takes the answers; there is no task per request. The clock
may run fast (``speed``): rows come by world time, and everything reported is world seconds. The generator measures
itself as well, its lag and its CPU, and says when it may have been the bottleneck.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from forebay.demand.trace import TraceRow
from forebay.domain.errors import BadInput, ForebayError
from forebay.loadgen.http import Client, Outcome, parse_target
from forebay.loadgen.models import first_model
from forebay.loadgen.prompts import Prompts, RequestMaker
from forebay.loadgen.report import Progress, Record, ReplayReport
from forebay.loadgen.sending import Sending
from forebay.loadgen.tally import Totals, quantiles
from forebay.ports.clock import Clock, TimerHandle

EARLY_REAL_S = 0.0005
"""A row is sent up to this much early: timers of fast loops have whole milliseconds, and spinning would cost a core."""
BURST_ROWS_MAX = 64
"""Rows sent before answers are looked at again."""
PROGRESS_REAL_S = 0.25
RECORDS_MAX = 1_000_000
CPU_BOUND = 0.90
LAG_P99_BOUND_REAL_S = 0.050
BYTES_PER_TOKEN_MAX = 16.0


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become requests. Durations are world seconds."""

    target: str
    """``http://HOST:PORT``, with or without ``/v1``."""
    model: str = ""
    """Empty: the first that ``/v1/models`` names."""
    chat: bool = True
    """``/v1/chat/completions``, else ``/v1/completions``."""
    key: str = ""
    """API key of tiers without one of their own; empty: no Authorization header."""
    keys: tuple[tuple[str, str], ...] = ()
    """(tier, API key)."""
    service_tier: bool = False
    """Send the row's tier as ``service_tier``."""
    bytes_per_token: float = 4.0
    ignore_eos: bool = True
    """Ask engines to go on to the wanted length; endpoints that refuse unknown fields want it off."""
    timeout_s: float = 1800.0
    """From when a request is due to its last byte, retries included."""
    connections_max: int = 4096
    obey_retry_after: bool = False
    retries_max: int = 3
    ttft_s: tuple[tuple[str, float], ...] = ()
    """(tier, promise): what attainment is measured against; tier "" stands for all others."""
    records: bool = False
    """Keep one Record per request, up to ``RECORDS_MAX``."""


async def run(
    rows: Iterable[TraceRow],
    options: ReplayOptions,
    clock: Clock,
    chance: random.Random,
    on_progress: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
    cpu_s: Callable[[], float] = time.thread_time,
) -> ReplayReport:
    """Send ``rows`` (in order of time; 0 is now) and return what was measured once every request has ended.

    ``stop``: no row is sent after it is set; what is under way is awaited. Raises BadInput for options that make no
    sense or a broken row met on the way, ForebayError where the target can't be reached or names no model.
    """
    replay = Run(rows, options, clock, chance, on_progress, cpu_s)
    return await replay.go(stop)


class Run:
    """One replay under way; `sending.Sending` is its part for one row."""

    def __init__(
        self,
        rows: Iterable[TraceRow],
        options: ReplayOptions,
        clock: Clock,
        chance: random.Random,
        on_progress: Callable[[Progress], None] | None,
        cpu_s: Callable[[], float],
    ) -> None:
        _check(options)
        self.options = options
        self.clock = clock
        self.totals = Totals(dict(options.ttft_s))
        self.flying: set[Sending] = set()
        self.records: list[Record] = []
        self.records_dropped = 0
        self.stopping = False
        self.started_s = 0.0
        self._target = parse_target(options.target)
        self.client = Client(self._target, options.connections_max)
        self._keys = dict(options.keys)
        self._prompts = Prompts(chance, options.bytes_per_token)
        self._rows: Iterator[TraceRow] = iter(rows)
        self._next: TraceRow | None = None
        self._failed: Exception | None = None
        self._over = asyncio.Event()
        self._timer: TimerHandle | None = None
        self._progress_timer: TimerHandle | None = None
        self._on_progress = on_progress
        self._cpu_s = cpu_s

    def key_of(self, tier: str) -> str:
        """The API key of ``tier``."""
        return self._keys.get(tier, self.options.key)

    async def go(self, stop: asyncio.Event | None) -> ReplayReport:
        """The whole run."""
        options, target = self.options, self._target
        watcher: asyncio.Task[None] | None = None
        try:
            key = options.key or next(iter(self._keys.values()), "")
            model = await first_model(self.client, target, key, options.model)
            self.maker = RequestMaker(
                self._prompts,
                host=target.authority,
                prefix=target.prefix,
                model=model,
                chat=options.chat,
                ignore_eos=options.ignore_eos,
                service_tier=options.service_tier,
            )
            if stop is not None:
                watcher = asyncio.create_task(self._stop_when(stop))
            self.started_s = self.clock.now_s()
            cpu_at_start_s = self._cpu_s()
            self._advance()
            self._pump()
            self._tell()
            await self._over.wait()
            ended_s, cpu_spent_s = self.clock.now_s(), self._cpu_s() - cpu_at_start_s
        finally:
            for timer in (self._timer, self._progress_timer, *(sending.timer for sending in self.flying)):
                if timer is not None:
                    timer.cancel()
            if watcher is not None:
                watcher.cancel()
            await self.client.close()
        if self._failed is not None:
            raise self._failed
        return self._report(ended_s, cpu_spent_s)

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._perhaps_over()

    def _advance(self) -> None:
        """Take the next row; a broken one ends the run."""
        try:
            self._next = next(self._rows, None)
        except (ForebayError, ValueError, OSError) as error:
            self._next = None
            self._failed = error
            self._over.set()

    def _pump(self) -> None:
        """Send what is due, then wait for the next row."""
        if self.stopping:
            return
        horizon_s = self.clock.now_s() + EARLY_REAL_S * self.clock.speed
        sent = 0
        while self._next is not None and sent < BURST_ROWS_MAX:
            due_s = self.started_s + self._next.at_s
            if due_s > horizon_s:
                break
            sending = Sending(self, self._next, due_s)
            self.flying.add(sending)
            self.totals.prompt_tokens += self._next.prompt_tokens
            self.client.send(sending)
            self._advance()
            sent += 1
        if self._next is not None:
            self._timer = self.clock.call_at(self.started_s + self._next.at_s, self._pump)
        self._perhaps_over()

    def concluded(self, sending: Sending) -> None:
        """``sending`` has been counted."""
        self.flying.discard(sending)
        if not self.flying:
            self._perhaps_over()

    def _perhaps_over(self) -> None:
        if not self.flying and (self._next is None or self.stopping):
            self._over.set()

    def keep(self, record: Record) -> None:
        """Keep ``record``, within the bound."""
        if len(self.records) < RECORDS_MAX:
            self.records.append(record)
        else:
            self.records_dropped += 1

    def _tell(self) -> None:
        if self._on_progress is None:
            return
        self._on_progress(self.progress())
        self._progress_timer = self.clock.call_at(self.clock.now_s() + PROGRESS_REAL_S * self.clock.speed, self._tell)

    def progress(self) -> Progress:
        """The run so far."""
        whole = self.totals.merged()
        return Progress(
            self.clock.now_s() - self.started_s,
            whole.requests,
            len(self.flying),
            whole.completed,
            whole.truncated,
            whole.shed,
            whole.errors,
            whole.ttft.quantile(0.5),
            whole.ttft.quantile(0.95),
            self.totals.lag.quantile(0.99),
        )

    def _bound(self, wall_s: float, cpu: float) -> str:
        """Why the generator may have been the bottleneck; empty if it was not."""
        reasons = []
        lag_s = self.totals.lag.quantile(0.99)
        if wall_s > 0 and cpu > CPU_BOUND:
            reasons.append(f"its CPU was {100 * cpu:.0f}% busy")
        if lag_s is not None and lag_s / self.clock.speed > LAG_P99_BOUND_REAL_S:
            waits = (
                f" ({self.client.bound_total} waited for one of {self.options.connections_max} connections)"
                if self.client.bound_total
                else ""
            )
            reasons.append(f"1 % of requests went out {1000 * lag_s / self.clock.speed:.0f} ms or more after they were due{waits}")
        if self.totals.errors_by.get(Outcome.FULL.value):
            reasons.append("requests were given up since no connection was free")
        return "; ".join(reasons)

    def _report(self, ended_s: float, cpu_spent_s: float) -> ReplayReport:
        totals, whole, speed = self.totals, self.totals.merged(), self.clock.speed
        wall_s = (ended_s - self.started_s) / speed
        cpu = cpu_spent_s / wall_s if wall_s > 0 else 0.0
        because = self._bound(wall_s, cpu)
        lag_p99_s = totals.lag.quantile(0.99)
        attainment, attainment_of_all = totals.attainment()
        return ReplayReport(
            requests=whole.requests,
            completed=whole.completed,
            truncated=whole.truncated,
            errors=whole.errors,
            shed=whole.shed,
            statuses=dict(sorted(totals.statuses.items())),
            ttft_s=quantiles(whole.ttft),
            itl_s=quantiles(whole.itl),
            e2e_s=quantiles(whole.e2e),
            longest_gap_s=quantiles(totals.longest_gap),
            generator_lag_s=quantiles(totals.lag),
            by_tier={name: tally.report() for name, tally in totals.tiers.items()},
            truncated_by=totals.truncated_by,
            errors_by=totals.errors_by,
            error_samples=tuple(totals.samples),
            stopped_early=totals.stopped_early,
            usage_missing=totals.usage_missing,
            retry_after=totals.retry_report(),
            generator_bound=bool(because),
            generator_bound_because=because,
            generator_cpu=cpu,
            lag_p99_real_s=None if lag_p99_s is None else lag_p99_s / speed,
            speed=speed,
            started_s=self.started_s,
            duration_s=ended_s - self.started_s,
            wall_s=wall_s,
            chunks=totals.chunks,
            prompt_tokens=totals.prompt_tokens,
            output_tokens=totals.output_tokens,
            connections_opened=self.client.opened_total,
            connection_waits=self.client.bound_total,
            resent=self.client.resent_total,
            unsent=self._next is not None,
            ttft_attainment=attainment,
            ttft_attainment_of_all=attainment_of_all,
            records=tuple(self.records),
            records_dropped=self.records_dropped,
        )


def _check(options: ReplayOptions) -> None:
    wrong = []
    if not 0 < options.bytes_per_token <= BYTES_PER_TOKEN_MAX:
        wrong.append(f"bytes per token {options.bytes_per_token}; allowed: above 0, up to {BYTES_PER_TOKEN_MAX:g}")
    if not (options.timeout_s > 0 and math.isfinite(options.timeout_s)):
        wrong.append(f"timeout {options.timeout_s} s; allowed: above 0")
    if options.connections_max < 1:
        wrong.append(f"{options.connections_max} connections; allowed: 1 or more")
    if options.retries_max < 0:
        wrong.append(f"{options.retries_max} retries; allowed: 0 or more")
    for key in (options.key, *(key for _, key in options.keys)):
        if not key.isascii() or any(character <= " " or character == "\x7f" for character in key):
            wrong.append("an API key with blanks or characters beyond ASCII; allowed: printable ASCII")
    if wrong:
        raise BadInput("; ".join(wrong))
