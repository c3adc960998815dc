"""Measure `dp.sample` beside the best model by hand: ``python3 run.py bench [ROW ...]``.

By default all rows, in about an hour on two cores; those that were measured at this commit are left
out, so that a run that was stopped goes on. Results are kept in `benchmarks/results/` as they come;
``--report`` makes `benchmarks/results.md` of all that is there,
and measures nothing. ``routes [MODEL ...]`` measures every open route, and fits what
`pymc_dp/routes/costs.json` expects of them. ``first [PAGE ...]`` measures what a user of a how-to
page waits for before the first posterior, with and without compiled code on disk.
``growth [KIND ...]`` measures time and memory of eight kinds of models at three sizes.
``--against COMMIT`` samples ten rows, or those named, with the package of both states in turn, and
fails where one is slower by a quarter.
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

from benchmarks.measure import is_measured, run
from benchmarks.report import report, table
from benchmarks.rows import ROWS


def main() -> None:
    """Run the rows named on the command line."""
    parser = argparse.ArgumentParser(prog="python3 run.py bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--report", action="store_true", help="only make the table of results")
    parser.add_argument("--fit", action="store_true", help="of routes: only fit their costs")
    parser.add_argument("--explain", action="store_true", help="of first: dp.explain alone")
    parser.add_argument("--against", metavar="COMMIT", help="compare with another state, in turn")
    options = parser.parse_intermixed_args()
    if options.rows[:1] == ["routes"]:
        from benchmarks import routes

        return routes.main(options.rows[1:], only_fit=options.fit)
    if options.rows[:1] == ["first"]:
        from benchmarks import first

        return first.main(options.rows[1:], explain=options.explain)
    if options.rows[:1] == ["growth"]:
        from benchmarks import growth

        return growth.main(options.rows[1:])
    if wrong := [name for name in options.rows if name not in ROWS]:
        parser.error(f"unknown row {wrong[0]!r}: {', '.join(ROWS)}")
    if options.report:
        return print(report())
    if options.against:
        from benchmarks.against import compare

        sys.exit(compare(options.against, options.rows))
    # CPU time is measured, so that rows may run beside each other.
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        left = options.rows or [name for name in ROWS if not is_measured(name)]
        for found in as_completed(pool.submit(run, name) for name in left):
            print(table([found.result()]), flush=True)
    report()
    return None


if __name__ == "__main__":
    main()
