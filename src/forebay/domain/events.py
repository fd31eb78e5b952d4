"""Things that happened, as values for the log, the store and the console. Listeners render them; logic never logs."""

import msgspec


class Event(msgspec.Struct, frozen=True):
    """``kind`` is of low cardinality (``scale``, ``replica_ready``, ``alert`` …); ``detail`` is flat and small."""

    kind: str
    at_s: float
    wall_s: float
    pool: str = ""
    message: str = ""
    detail: dict[str, str | float | int | bool] = {}
