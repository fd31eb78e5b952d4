"""How long an arrival at the end of a lane would wait: the work ahead of it ÷ the pace at which it goes.

The measured pace of the lane is preferred: it already contains what more important lanes take from it. Where none was
measured, the replicas' declared paces say at least how long the work ahead takes when nothing else comes. Only the
measured one is good enough to refuse a request on.
"""

from collections.abc import Iterable, Sequence

from forebay.admission.lanes import Lane
from forebay.domain.roster import Capacity
from forebay.domain.signal import Known, Signal, Unknown


def measured_wait_s(lanes: Sequence[Lane], lane: Lane, now_s: float) -> Signal:
    """Virtual tokens waiting in ``lane`` and those before it ÷ the lane's measured ones per second; Unknown without a pace."""
    pace = lane.pace.tokens_per_s(now_s, lane.waiting > 0)
    if isinstance(pace, Unknown):
        return pace
    ahead = sum(other.cost_tokens for other in lanes[: lane.index + 1])
    return Known(ahead / pace.value, now_s)


def declared_wait_s(lanes: Sequence[Lane], lane: Lane, capacities: Iterable[Capacity]) -> float | None:
    """The same from the replicas' declared paces: prefill or decoding, whichever takes longer. None without any."""
    prefill_per_s = decode_per_s = 0.0
    for capacity in capacities:
        prefill_per_s += capacity.prefill_tokens_per_s
        decode_per_s += capacity.decode_tokens_per_s
    if prefill_per_s <= 0 or decode_per_s <= 0:
        return None
    before = lanes[: lane.index + 1]
    prompt_tokens = sum(other.prompt_tokens for other in before)
    output_tokens = sum(other.output_tokens for other in before)
    return max(prompt_tokens / prefill_per_s, output_tokens / decode_per_s)
