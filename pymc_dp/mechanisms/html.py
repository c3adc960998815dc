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
        # Jupyter sets cells to the right; what is wrapped by hand stays so.
        tags = ["th"] * headings + ["td"] * (len(cells) - headings)
        style = "text-align: left; white-space: pre-wrap"
        return "".join(
            f'<{tag} style="{style}">{escape(cell)}</{tag}>'
            for tag, cell in zip(tags, cells, strict=True)
        )

    head = f"<thead><tr>{line(columns, len(columns))}</tr></thead>" if columns else ""
    body = "".join(f"<tr>{line(row, 0 if columns else 1)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"
