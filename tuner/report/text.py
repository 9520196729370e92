"""The report as text, for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from .content import Report
from .summary import Summary
from .table import Table


def renderables(report: Report) -> Iterator[RenderableType]:
    """Yield what is to be printed, part by part; nothing in it is read as markup."""
    yield from _head(report.summary)
    for section in report.sections:
        yield Text()
        yield Text(section.title.upper(), style="bold")
        for line in section.lines:
            yield Text(line)
        for table in section.tables:
            yield Text()
            if table.caption != section.title:
                yield Text(table.caption, style="italic")
            yield _table(table)
    yield Text()
    yield Text("COMMANDS", style="bold")
    for what, command in report.commands:
        yield Text(f"# {what}")
        yield Text(command)


def _head(summary: Summary) -> Iterator[RenderableType]:
    yield Text(f"{summary.study}: {summary.word}", style="bold")
    yield Text(summary.sentence)
    for mark in summary.marks:
        yield Text(mark)
    for setting in summary.settings:
        yield Text(f"  {setting}")
    grid = RichTable(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        grid.add_column(overflow="fold")
    for fact in summary.facts:
        grid.add_row(Text(fact.name), Text(fact.value), Text(fact.remark))
    yield grid
    if summary.needed:
        yield Text(f"needed: {summary.needed}")


def _table(table: Table) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, show_header=any(column.name for column in table.columns))
    for column in table.columns:
        drawn.add_column(Text(column.name), justify="right" if column.kind == "number" else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell.text) for cell in row))
    return drawn
