"""Measure every speed claim on this machine, in one run, as ratios.

``python -m benchmarks [counts] [factorization] [gaussian] [neural] [records] [regression]
[studies]`` runs those that are named, by default all.
"""

import sys

from rich.console import Console

from benchmarks import counts, factorization, gaussian, neural, records, regression, studies

PARTS = {
    "counts": counts.main,
    "factorization": factorization.main,
    "gaussian": gaussian.main,
    "neural": neural.main,
    "records": records.main,
    "regression": regression.main,
    "studies": studies.main,
}


def main() -> None:
    """Run the parts named on the command line."""
    names = sys.argv[1:] or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"unknown benchmark {unknown[0]!r}: {', '.join(PARTS)}")
    for name in names:
        PARTS[name](Console(width=110))


if __name__ == "__main__":
    main()
