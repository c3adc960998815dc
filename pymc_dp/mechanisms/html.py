"""Tables in HTML, as Jupyter shows mechanisms, releases and explanations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> str:
    """Build a table of texts, which are escaped; colours are those of the page.

    Parameters
    ----------
    title : str
        Caption.
    rows : iterable of sequences of str
        Cells. Without `columns` the first of each row is its heading.
    columns : sequence of str, optional
        Headings.
    """

    def line(cells: Sequence[str], headings: int) -> str:
        # Jupyter aligns cells to the right, and would join lines.
        style = "text-align: left; white-space: pre-wrap"
        tags = ["th" if i < headings else "td" for i in range(len(cells))]
        tagged = (
            f'<{t} style="{style}">{escape(c)}</{t}>' for t, c in zip(tags, cells, strict=True)
        )
        return f"<tr>{''.join(tagged)}</tr>"

    head = f"<thead>{line(columns, len(columns))}</thead>" if columns else ""
    body = "".join(line(row, 0 if columns else 1) for row in rows)
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"
