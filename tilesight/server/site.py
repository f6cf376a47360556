"""The pages by their addresses: what is listed, and reports that are made when they are asked for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import DatabaseError, InputError, TileSightError
from ..pages.values import Page
from . import browse, markup
from .source import ServedData


@dataclass(frozen=True, slots=True)
class Answer:
    """The status of HTTP and the text of a page."""

    status: int
    html: str


class Site:
    """The pages of a source. Threads may ask at once."""

    def __init__(self, source: ServedData, *, debug: bool = False) -> None:
        self._source, self._debug = source, debug
        self._lists: Mapping[str, Callable[[Mapping[str, str]], str]] = {
            "": lambda query: browse.home(source, query),
            "records": lambda query: browse.records(source, query),
            "kernels": lambda _query: browse.kernels(source),
            "dispatch": lambda _query: browse.dispatch_tables(source),
            "tables": lambda _query: browse.tables(source),
            "model": lambda _query: self._report("", "Cost model", self._model()),
        }
        self._of_one: Mapping[str, Callable[[str, Mapping[str, str]], str]] = {
            "session": lambda name, _query: self._report("../", "Sessions", self._session(name)),
            "kernel": lambda name, _query: self._report("../", "Kernels", self._kernel(name)),
            "dispatch": lambda name, _query: self._report("../", "Dispatch tables", self._table(name)),
            "table": lambda name, query: browse.table(source, name, query),
        }

    def answer(self, parts: Sequence[str], query: Mapping[str, str]) -> Answer:
        """The page at an address.

        Args:
            parts: of the path, without escapes; [""] is the first page.
            query: of the address, by name.
        """
        root = "../" * (len(parts) - 1)
        try:
            if len(parts) == 1 and parts[0] in self._lists:
                return Answer(200, self._lists[parts[0]](query))
            if len(parts) == 2 and parts[0] in self._of_one:
                return Answer(200, self._of_one[parts[0]](parts[1], query))
            return Answer(404, browse.fault(root, "There is no such page."))
        except InputError as error:
            return Answer(404, browse.fault(root, str(error)))
        except DatabaseError as error:
            return Answer(503, browse.fault(root, str(error)))
        except TileSightError as error:
            return Answer(500, browse.fault(root, str(error)))
        except Exception as error:  # a fault of one page must not end the others
            if self._debug:
                traceback.print_exc()
            else:
                print(f"error in TileSight itself: {type(error).__name__}: {error}", file=sys.stderr)
            text = f"Error in TileSight itself: {type(error).__name__}; `tilesight serve --debug` shows more."
            return Answer(500, browse.fault(root, text))

    def _report(self, root: str, here: str, page: Page) -> str:
        from ..pages.render import html

        return html(page, markup.navigation(browse.links(root), here))

    def _session(self, name: str) -> Page:
        from ..pages.session_page import session_page

        if not name.isdecimal() or not name.isascii():
            raise InputError(f"'{name}' is no session: its id is a whole number")
        return session_page(self._source.opened.recorded_session(int(name)))

    def _kernel(self, name: str) -> Page:
        from ..database.lookups.best import best
        from ..database.lookups.browse import within
        from ..pages.kernel_page import records_page

        found = self._source.read(
            lambda connection: within(connection, "this report", lambda: best(connection, name))
        )
        return records_page(name, found)

    def _table(self, name: str) -> Page:
        from ..api.reporting import vendor_sizes
        from ..pages.table_page import table_page

        table, store = self._source.table(name), self._source.store
        return table_page(table, {} if store is None else vendor_sizes(table, store))

    def _model(self) -> Page:
        from ..costmodel.learned.model_file import read_card, shipped
        from ..pages.card_page import card_page

        return card_page(read_card(shipped()))
