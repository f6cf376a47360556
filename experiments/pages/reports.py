"""How long a report of a session takes to be written, and to be drawn by a headless Chromium.

    python experiments/pages/reports.py reports.csv

The sessions are those of the tests of pages: made-up candidates, of which a quarter have times. A page is
drawn when the second frame after its load event is; `drawn_s` counts from the start of the navigation.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.browser import chromium
from tests.support.page_sessions import recorded_session
from tilesight.pages.render import html
from tilesight.pages.session_page import session_page

COUNTS = (400, 5000)
REPEATS = 7
DRAWN = """async () => {
    for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
    return performance.now() / 1e3;
}"""
COLUMNS = ("candidates", "repeat", "bytes", "written_s", "drawn_s", "load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    with (
        out.open("w", newline="", encoding="utf-8") as file,
        TemporaryDirectory() as folder,
        chromium() as browser,
    ):
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for count in COUNTS:
            session = recorded_session(count, count // 4)
            rows = []
            for repeat in range(REPEATS):
                path = Path(folder) / f"{count}.html"
                began = time.perf_counter()
                path.write_text(html(session_page(session)), encoding="utf-8")
                written_s = time.perf_counter() - began
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.goto(path.as_uri(), wait_until="load")
                drawn_s = page.evaluate(DRAWN)
                page.close()
                rows.append(
                    {
                        "candidates": count,
                        "repeat": repeat,
                        "bytes": path.stat().st_size,
                        "written_s": round(written_s, 4),
                        "drawn_s": round(drawn_s, 4),
                        "load": round(os.getloadavg()[0], 1),
                    }
                )
            writer.writerows(rows)
            written, drawn = (median(row[name] for row in rows) for name in ("written_s", "drawn_s"))
            print(f"{count} candidates: written in {written:.2f} s, drawn in {drawn:.2f} s (medians)")


if __name__ == "__main__":
    main()
