"""One machine's Store: a SQLite file."""

from forebay.adapters.sqlite.store import SqliteStore, StoreCorrupt, StoreFailed, StoreFull

__all__ = ["SqliteStore", "StoreCorrupt", "StoreFailed", "StoreFull"]
