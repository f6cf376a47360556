"""Reports as text and HTML."""

from __future__ import annotations

from tilesight.reports.report import Report, Reported


class Answer(Reported):
    def report(self) -> Report:
        report = Report()
        report.text("What it is <b>", bold=True)
        report.table(["name", "us"], [["x", "1.5"]], right=["us"])
        report.line("a=1," * 40)
        return report


def test_a_report_is_wrapped_but_for_lines_to_copy() -> None:
    report = Report()
    report.text("word " * 40)
    report.line("x" * 200)
    *paragraph, copied = report.plain(60).splitlines()
    assert len(paragraph) > 3
    assert max(map(len, paragraph)) <= 60
    assert copied == "x" * 200


def test_headings_are_bold() -> None:
    assert [bold for _, bold in Answer().report().lines()] == [True, True, False, False]


def test_print_and_notebooks_show_the_same_text() -> None:
    text, html = str(Answer()), Answer()._repr_html_()
    assert text.splitlines()[1:3] == ["name   us", "x     1.5"]
    assert html.startswith("<pre")
    assert "What it is &lt;b&gt;</span>" in html
    assert "x     1.5" in html
    assert "font-weight: bold" in html
    assert "a=1," * 40 in html


def test_a_report_takes_the_parts_of_another() -> None:
    both = Report()
    both.text("first")
    both.add(Answer().report())
    assert both.plain().splitlines()[0] == "first"
    assert both.plain().splitlines()[1:] == str(Answer()).splitlines()
