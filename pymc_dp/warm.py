"""Compile ahead what models need: ``python -m pymc_dp.warm [PAGE ...]``.

Runs the models of how-to pages, or of scripts and pages of one's own, with a few draws each. What
that compiles is kept on disk, so that later processes start at once: in the build of a container,
before the tests of a project. Models of a kind share the most of it, whatever their data; what
depends on the lengths of a model is compiled for these lengths.

Parameters
----------
PAGE
    Name of a how-to page, as ``regression``; or the path of a page or a Python script, which is
    run up to its first `dp.sample`. By default, the nine pages that most models are like.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PAGES = (
    "mean_and_variance", "noisy_rows", "overlapping_tables", "means_by_group", "changed_answers",
    "regression", "public_covariates", "revenue", "counts_and_means",
)  # fmt: skip
_CELL = re.compile(r"^```\{code-cell\}\n(?::tags:[^\n]*\n+)?(.*?)^```$", re.MULTILINE | re.DOTALL)
_DRAWS = 20  # so few that they take no time


class _EnoughError(Exception):
    """The model has been sampled."""


def code_of(page: str) -> str:
    """Return the code of a page up to the cell that samples, or that of a script.

    Raises
    ------
    ValueError
        No such page, or nothing in it that samples.
    """
    path = Path(page)
    if not path.suffix:
        here = Path(__file__).parent
        folders = here / "_howto", here.parent / "docs" / "howto"  # of a wheel, of a checkout
        path = next((f / f"{page}.md" for f in folders if f.is_dir()), path)
    if not path.is_file():
        raise ValueError(f"there is no page {page!r}: write a path, or one of {', '.join(PAGES)}")
    text = path.read_text(encoding="utf-8")
    cells = _CELL.findall(text) if path.suffix == ".md" else [text]
    last = next((i for i, cell in enumerate(cells) if "dp.sample(" in cell), None)
    if last is None:
        raise ValueError(f"{page}: nothing in it calls dp.sample")
    return "\n".join(cells[: last + 1])


def warm(pages: Sequence[str] = PAGES) -> None:
    """Compile what pages or scripts need; print how long each took.

    Parameters
    ----------
    pages : sequence of str
        Names of how-to pages, or paths.
    """
    import pymc_dp as dp

    original = dp.sample

    def sample(*args: Any, **kwargs: Any) -> None:
        kwargs |= {"draws": _DRAWS, "tune": _DRAWS, "progressbar": False, "quiet": True}
        original(*args, **kwargs)
        raise _EnoughError

    codes = {page: code_of(page) for page in pages}
    dp.sample = sample  # type: ignore[assignment]
    try:
        for page, code in codes.items():
            began = time.perf_counter()
            with suppress(_EnoughError):
                exec(compile(code, page, "exec"), {"__name__": "__warm__"})
            sys.stdout.write(f"{page}: {time.perf_counter() - began:.1f} s\n")
    finally:
        dp.sample = original


def main() -> None:
    """Run from the command line."""
    summary = (__doc__ or "").partition("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m pymc_dp.warm", description=summary)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"a path, or {', '.join(PAGES)}")
    options = parser.parse_args()
    try:
        warm(options.pages or PAGES)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
