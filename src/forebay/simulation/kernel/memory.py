"""The fleet's records by their place, as bare addresses: one pointer goes from kernel function to kernel function instead of twenty arrays.

Arrays as arguments are taken apart and counted at every call, which makes the kernel slow, and its compilation take minutes. So
the `WORLD` record holds each array's address, and ``request_at(fleet, who)`` is the record there: fields can be read and written.
There are no bounds checks. Whoever owns the arrays keeps them alive, and calls `attach` whenever one was replaced.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from forebay.simulation.kernel import layout
from forebay.simulation.kernel.compiling import also_digest


def _records(array: str, dtype: "np.dtype[Any]", stride: str = "") -> Callable[..., Any]:
    """The accessor of ``array``: ``at(fleet, place)``, or ``at(fleet, row, place)`` where a row holds ``fleet.stride`` records."""
    record = numba.from_dtype(dtype)
    also_digest(f"{array} {dtype.descr} {dtype.itemsize} {stride}")

    def read(context: Any, builder: Any, fleet_type: Any, fleet: Any, field: str) -> Any:
        long = context.get_value_type(types.int64)
        place = builder.gep(fleet, [long(0), long(fleet_type.offset(field))])
        return builder.load(builder.bitcast(place, long.as_pointer()))

    def at_place(context: Any, builder: Any, fleet_type: Any, fleet: Any, place: Any) -> Any:
        long = context.get_value_type(types.int64)
        address = builder.add(read(context, builder, fleet_type, fleet, layout.address_of(array)), builder.mul(place, long(dtype.itemsize)))
        return builder.inttoptr(address, context.get_value_type(record))

    def at(_typing: Any, fleet: Any, _place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return at_place(context, builder, signature.args[0], *given)

        return record(fleet, types.int64), generate

    def at_row(_typing: Any, fleet: Any, _row: Any, _place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            world, row, place = given
            width = read(context, builder, signature.args[0], world, stride)
            return at_place(context, builder, signature.args[0], world, builder.add(builder.mul(row, width), place))

        return record(fleet, types.int64, types.int64), generate

    made: Callable[..., Any] = intrinsic(at_row if stride else at)
    return made


request_at = _records("requests", layout.REQUEST)
replica_at = _records("replicas", layout.REPLICA)
slot_at = _records("slots", layout.SLOT, "sequences_max")
residue_at = _records("residues", layout.COUNT, "block")
share_at = _records("shares", layout.COUNT, "tiers")
tier_at = _records("promises", layout.TIER)
line_at = _records("lines", layout.LINE)
arrival_at = _records("arrivals", layout.ARRIVAL)
clock_at = _records("clock", layout.CLOCK)
choice_at = _records("choice", layout.CHOICE)
freed_at = _records("freed_rows", layout.PLACE)
group_at = _records("groups", layout.GROUP)
key_at = _records("keys", layout.KEY)
old_key_at = _records("old_keys", layout.KEY)
reading_at = _records("readings", layout.READING)
bucket_at = _records("sketches", layout.BUCKET, "buckets")
sum_at = _records("sums", layout.SUM)
recent_at = _records("recent", layout.BUCKET, "buckets")
bound_at = _records("bounds", layout.BOUND)
factor_at = _records("factors", layout.FACTOR)
scratch_at = _records("scratch", layout.HELD)
log_at = _records("log", layout.LOG)
