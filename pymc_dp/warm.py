"""Compile ahead what models need: ``python -m pymc_dp.warm [PAGE ...]``.

Runs the models of how-to pages, or of your own scripts and pages, up to the first `dp.sample`, with
a few draws, and then `dp.recover`. The compiled code is kept on disk, so that later processes start
at once: run it in the build of a container, or before the tests of a project. Models of a kind
share most of the code, whatever their data; some is compiled for the lengths of the variables.

Parameters
----------
PAGE
    Name of a how-to page, as ``regression``; or the path of a page or of a Python script. A script
    stops after its first `dp.sample`: write one script for each model. The default are nine pages
    that most models resemble, which take some five minutes.
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
_DRAWS = 20  # few, as only compiling matters
_NEVER = "nothing in it calls dp.sample"


class _Enough(BaseException):
    """Ends a script after its first `dp.sample`; its `except Exception` does not catch it."""


def code_of(page: str) -> str:
    """Return the code of a page up to the cell that samples, or all of a script.

    Raises
    ------
    ValueError
        No such page, or no cell of it that samples.
    """
    path = Path(page)
    if not path.suffix:
        here = Path(__file__).parent
        folders = here / "_howto", here.parent / "docs" / "howto"  # of a wheel, of a checkout
        path = next((f / f"{page}.md" for f in folders if f.is_dir()), path)
    if not path.is_file():
        raise ValueError(f"there is no page {page!r}: write a path, or one of {', '.join(PAGES)}")
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return text
    cells = _CELL.findall(text)
    last = next((i for i, cell in enumerate(cells) if "dp.sample(" in cell), None)
    if last is None:
        raise ValueError(f"{page}: {_NEVER}")
    return "\n".join(cells[: last + 1])


def warm(pages: Sequence[str] = PAGES) -> None:
    """Compile what pages or scripts need; print the seconds that each took.

    Parameters
    ----------
    pages : sequence of str
        Names of how-to pages, or paths.

    Raises
    ------
    ValueError
        No such page, or one that does not call `dp.sample`.
    """
    import pymc_dp as dp

    original, arguments = dp.sample, sys.argv

    def sample(*args: Any, **kwargs: Any) -> None:
        few = {"draws": _DRAWS, "tune": _DRAWS, "progressbar": False}
        tree = original(*args, **kwargs | few | {"compute_convergence_checks": False})
        with suppress(NotImplementedError, TypeError, ValueError):  # such as nothing to recover
            dp.recover(kwargs.get("model", *args[:1] or [None]), tree)
        raise _Enough

    codes = {page: code_of(page) for page in pages}
    dp.sample = sample  # type: ignore[assignment]
    try:
        for k, (page, code) in enumerate(codes.items(), start=1):
            sys.stdout.write(f"{k} of {len(codes)}, {page}\n")
            sys.argv, began = [page], time.perf_counter()
            try:
                exec(compile(code, page, "exec"), {"__name__": "__main__", "__file__": page})
            except _Enough:
                seconds = time.perf_counter() - began
                sys.stdout.write(f"{page}: up to its first dp.sample, {seconds:.1f} s\n")
            else:
                raise ValueError(f"{page}: {_NEVER}")
    finally:
        dp.sample, sys.argv = original, arguments


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pymc_dp.warm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"a path, or {', '.join(PAGES)}")
    options = parser.parse_args()
    try:
        warm(options.pages or PAGES)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
