"""One pool at the desk: its machine, its meters, its outliers, and the requests that are inside; and what they are to the desk."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.estimate import Estimator
from forebay.admission.machine import Admission
from forebay.admission.outliers import Outliers
from forebay.admission.quotas import OverCap
from forebay.admission.spill import SpillAdmission
from forebay.domain.profile import Profile
from forebay.domain.roster import RosterPool
from forebay.engine.steptime import step_s
from forebay.gateway.firsts import FirstContents, Overruns
from forebay.gateway.lacking import Lacking
from forebay.gateway.meters import TierMeter
from forebay.gateway.shape_errors import ShapeErrors
from forebay.gateway.silence import Silences
from forebay.gateway.sizing import Sizing
from forebay.spec.types import Pool, Spec

if TYPE_CHECKING:
    from forebay.gateway.long_context import LongContext
    from forebay.gateway.overflow import Ways


LEARN_ALL: Final = 64
LEARN_EVERY: Final = 4
TIMED_EVERY: Final = 32
"""Of those from which something is learned (a multiple of `LEARN_EVERY`)."""
UNKNOWN_CONTEXT_TOKENS = 2**31
UNKNOWN_INPUT_TOKENS = 8192
"""Of one input that is only read, as for embeddings, where the model's context isn't known."""
STALL_STEPS = 20
"""A replica whose streams all get nothing for so many of its longest steps has stalled…"""
STALL_S_MIN = 5.0
"""…if that is at least so long (world seconds)…"""
STALL_S_UNKNOWN = 30.0
"""…and where no profile says how long a step takes."""
PREFILL_TOKENS_PER_S_MIN: Final = 250.0
"""At this pace prompts are prefilled where no profile tells: as on a CPU."""
STEP_S_UNKNOWN = 0.1
"""There a token is taken to take so long, until it was measured."""


class Ticketed:
    """A request as far as its end needs it."""

    __slots__ = ("ticket",)

    ticket: int


class Caller(Ticketed, ABC):
    """A request as the desk knows it."""

    __slots__ = ("kept_at", "quiet_until_s")

    kept_at: str
    """The one replica that can serve it, since that keeps what it goes on from; empty: any may."""
    quiet_until_s: float
    """Before this it has no times to look at (in a pool without ways out), and is owed no tokens: most that wait are so."""

    @abstractmethod
    def dispatch(self, effect: Dispatch) -> None:
        """It has a permit: send it."""

    @abstractmethod
    def resumable(self) -> int | None:
        """How many more tokens would be prompt to whoever went on with it now, 0 where nothing of its answer is with its client.

        None: it keeps its place, since that can't be exact, or its answer has ended and would only be made a second time.
        """

    @abstractmethod
    def requeued(self) -> None:
        """Its permit is another's: stop the engine, forget what is not with the client yet, and wait."""

    @abstractmethod
    def refused(self, effect: Refuse) -> None:
        """It has none and will get none."""

    @abstractmethod
    def overflowed(self, effect: Refuse) -> bool:
        """Whether it goes elsewhere instead of being refused."""

    @abstractmethod
    def shut(self, effect: Refuse) -> None:
        """The gateway ends before it does."""

    @abstractmethod
    def over_limit(self, over: OverCap) -> None:
        """Its team has as much as it may have: it does not even wait."""

    @abstractmethod
    def sweep(self, now_s: float) -> None:
        """Look at its times."""

    @abstractmethod
    def break_off(self) -> None:
        """It has failed by a fault of ours: hang up at both ends, and count nothing of it."""

    @abstractmethod
    def streaming(self) -> tuple[str, float] | None:
        """The replica that owes it tokens, and since when it got none."""

    @abstractmethod
    def owes_whole(self) -> str:
        """The replica that owes it an answer which comes whole, and has not begun; empty: none."""

    @abstractmethod
    def last_read(self) -> tuple[float, float, float]:
        """Of one that holds a permit: when something was last read of its answer, or it was sent, how long it may be silent, and take."""

    @abstractmethod
    def asked_at(self) -> str:
        """The address of its replica."""

    @abstractmethod
    def asked_for(self) -> bytes:
        """The path that its engine was asked for."""

    @abstractmethod
    def adopted(self, hop: bytes) -> bool:
        """Whether it is on that hop, which has ended at its other end; if so it is counted here."""

    @abstractmethod
    def moved_from(self, replica: str, why: str) -> None:
        """``replica`` has stopped working: go on elsewhere if it runs there."""


class PoolDesk:
    """One pool: its machine, its meters, and the requests that are inside."""

    __slots__ = (
        "_chooses",
        "_finished",
        "_prefix_routing",
        "adapters",
        "admission",
        "base",
        "calls",
        "context_tokens",
        "engine",
        "errors",
        "firsts",
        "foreign",
        "head",
        "input_tokens_max",
        "lacking",
        "last_ejected",
        "long",
        "meters",
        "model",
        "name",
        "outliers",
        "overruns",
        "peer",
        "region",
        "roster",
        "roster_at_s",
        "routed",
        "silences",
        "sizing",
        "stall_s",
        "step_s",
        "ways",
    )

    def within(self, residency: tuple[str, ...]) -> bool:
        """Whether a team of this ``residency`` may be served here."""
        return not (residency and self.region) or self.region in residency

    def __init__(self, spec: Spec, pool: Pool, estimator: Estimator) -> None:
        self.name = pool.name
        self.model = pool.model
        self.region = pool.region
        self.adapters = frozenset(pool.adapters)
        self.lacking = Lacking()

        def outlook(team: str, emitted_tokens: int) -> int | None:
            return estimator.expected_output(team, pool.model, emitted_tokens)

        def resumable(ticket: int) -> int | None:
            call = self.calls.get(ticket)
            return None if call is None else call.resumable()

        weights = {team.name: team.weight for team in spec.teams}
        self.admission: Admission | SpillAdmission = Admission(pool.name, spec.tiers, pool.queued_max, weights, outlook, resumable)
        self.base = self.head = b""
        """What comes before the path of a request, and header lines of the pool's own: for other people's engines."""
        self.foreign = False
        """Its engines are other people's."""
        self.peer = ""
        """It is another gateway's, of this name."""
        self.ways: Ways | None = None
        """Out of the pool."""
        self.long: LongContext | None = None
        """Where its long requests go."""
        self.calls: dict[int, Caller] = {}
        self.meters = {tier.name: TierMeter(pool.name, tier, pool.slo.itl_s) for tier in spec.tiers}
        models = {model.name: model for model in spec.models}
        declared = models[pool.model].context_tokens if pool.model in models else 0
        bounds = [tokens for tokens in (declared, pool.profile.context_tokens if pool.profile else 0) if tokens]
        self.context_tokens = min(bounds) if bounds else UNKNOWN_CONTEXT_TOKENS
        self.input_tokens_max = self.context_tokens if bounds else UNKNOWN_INPUT_TOKENS
        self.engine = pool.engine
        self.errors = ShapeErrors()
        self.sizing = Sizing(pool.estimate)
        self.firsts = FirstContents()
        self.overruns = Overruns()
        self.outliers = Outliers()
        self.silences = Silences()
        longest_s = _longest_step_s(pool.profile)
        self.step_s = longest_s or STEP_S_UNKNOWN
        """What a token of one sequence takes at most."""
        self.stall_s = max(STALL_S_MIN, STALL_STEPS * longest_s) if longest_s else STALL_S_UNKNOWN
        self.roster = RosterPool(pool.name, ())
        """As the controller gave it, at…"""
        self.roster_at_s = 0.0
        self.last_ejected = ""
        """Which replica was the last to leave routing for a fault, and for which; empty: none has."""
        self.routed: tuple[str, ...] = ()
        """Its replicas, but for those that are ejected."""
        self._finished = 0
        self._prefix_routing = pool.prefix_routing
        self._chooses = False
        """There is a choice of replicas, and what they have cached counts."""

    def routes(self, now_s: float) -> RosterPool:
        """The roster without what is ejected."""
        roster = self.roster
        if self.lacking:
            self.lacking.keep([replica.id for replica in roster.replicas], now_s)
        out = self.outliers.out
        replicas = tuple(replica for replica in roster.replicas if replica.id not in out) if out else roster.replicas
        self.routed = tuple(replica.id for replica in replicas)
        self._chooses = self._prefix_routing and len(replicas) > 1
        expected_s = roster.next_ready_in_s
        if expected_s is not None:
            expected_s = max(0.0, expected_s - (now_s - self.roster_at_s))
        return RosterPool(roster.pool, replicas, roster.posture, expected_s)

    @property
    def by_prefix(self) -> bool:
        """Whether what prompts begin with counts: there is a choice of replicas, or so little memory that it matters what they share."""
        if self._chooses:
            return True
        admission = self.admission
        return self._prefix_routing and isinstance(admission, Admission) and admission.tight

    @property
    def asks_key(self) -> bool:
        """Nothing of it is in routing, and engines of it ask for a key: that is why."""
        return not self.routed and bool(self.roster.asking or self.outliers.asking)

    def foreseen_s(self, admission: Admission, ticket: int, *, longest: bool = False, steps: float | None = None) -> tuple[float, float]:
        """Of a dispatched request, by the roster and the profile: for its prompt, with those before it, and for its tokens (``steps``)."""
        prefill_s, tokens, expected_steps = admission.foreseen_work(ticket, longest=longest)
        if not admission.prefill_is_known:
            prefill_s = max(prefill_s, tokens / PREFILL_TOKENS_PER_S_MIN)
        return prefill_s, (expected_steps if steps is None else steps) * self.step_s

    def took_whole(self, ticket: int, seconds: float, output_tokens: int) -> None:
        """An answer that came whole took so long; all are measured at first, then a sample."""
        if self._finished > LEARN_ALL and self._finished % TIMED_EVERY:
            return
        admission = self.admission
        if not isinstance(admission, SpillAdmission):
            prefill_s, decode_s = self.foreseen_s(admission, ticket, steps=output_tokens)
            self.overruns.answered(seconds, prefill_s + decode_s)

    def should_learn(self) -> bool:
        """Whether the next finished request teaches the estimator: all at first, then a sample, which teaches the same for less."""
        self._finished += 1
        return self._finished <= LEARN_ALL or not self._finished % LEARN_EVERY


def _longest_step_s(profile: Profile | None) -> float:
    """0: nobody says."""
    if profile is None:
        return 0.0
    return step_s(profile.law, profile.sequences_max, profile.kv_tokens, profile.prefill_chunk_tokens)
