"""The demand that a controller kept of one pool, read beside it: whole five-minute buckets of the last weeks."""

from pathlib import Path

from forebay.adapters.sqlite import SqliteStore
from forebay.app.files import STORE_FILE
from forebay.controller.demand import BUCKET_S, laid_out
from forebay.domain.scaling import History
from forebay.ports import DEMAND_BUCKETS_MAX


def kept(path: Path, pool: str) -> History | None:
    """Requests, prompt and output tokens of ``pool`` by bucket, what isn't known as NaN; None where nothing is kept of it.

    ``path``: the state folder, or its file, which is only read. Raises BadInput where there is none, and what `SqliteStore` does.
    """
    store = SqliteStore(path / STORE_FILE if path.is_dir() else path, read_only=True)
    try:
        buckets = [bucket for bucket in store.demand(pool) if bucket.bucket_s == BUCKET_S]
    finally:
        store.close()
    if not buckets:
        return None
    # A world that ran ahead of time may have left buckets far from the others.
    end_wall_s = buckets[-1].start_wall_s + BUCKET_S
    since_wall_s = end_wall_s - DEMAND_BUCKETS_MAX * BUCKET_S
    return laid_out([bucket for bucket in buckets if bucket.start_wall_s >= since_wall_s], end_wall_s)
