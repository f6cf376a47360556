"""The performance database: what was tried, what came of it, and what still holds.

    with open_store("sqlite:///performance.db") as store:
        known = store.recall(context)
        session_id = store.begin(context, Effort.QUICK, seed=0, options={}, census=space.census())
        store.record(session_id, context, trial)
        store.finish(session_id, State.COMPLETE)

Values of the line go in and come out; rows, SQL and drivers stay inside. docs/database.md describes tables and views.
"""

from .best import Best
from .layers import LayeredStore, open_layers
from .queries import export, frame, overview, query
from .store import Store, open_store

__all__ = ["Best", "LayeredStore", "Store", "export", "frame", "open_layers", "open_store", "overview", "query"]
