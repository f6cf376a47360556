"""The performance database: every candidate that was tried, its results, and where they still hold.

with open_store("sqlite:///performance.db") as store:
        known = store.recall(context)
        session_id = store.begin(context, Effort.QUICK, seed=0, options={}, census=space.census())
        store.record(session_id, context, trial)
        store.finish(session_id, State.COMPLETE)

The package takes and returns values of `tilesight.records`; rows, SQL and drivers are internal.
docs/database.md describes tables and views.
"""

from .exchange.queries import export, frame, overview, query
from .layers import LayeredStore, open_layers
from .lookups.best import Best
from .store import Store, open_store

__all__ = [
    "Best",
    "LayeredStore",
    "Store",
    "export",
    "frame",
    "open_layers",
    "open_store",
    "overview",
    "query",
]
