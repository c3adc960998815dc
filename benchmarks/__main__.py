"""Measure every speed claim on this machine, in one run, as ratios.

``python -m benchmarks [counts] [factorization] [gaussian] [latent] [neural] [records]
[regression] [studies] [trials]`` runs those that are named, by default all.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

from rich.console import Console

PARTS = (
    "counts",
    "factorization",
    "gaussian",
    "latent",
    "neural",
    "records",
    "regression",
    "studies",
    "trials",
)


def main() -> None:
    """Run the parts named on the command line."""
    names = sys.argv[1:] or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"unknown benchmark {unknown[0]!r}: {', '.join(PARTS)}")
    if "neural" in names and find_spec("torch") is None:
        print("neural is left out without torch: python3 run.py bench --neural")
        names.remove("neural")
    for name in names:
        import_module(f"benchmarks.{name}").main(Console(width=110))


if __name__ == "__main__":
    main()
