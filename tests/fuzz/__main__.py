"""Judge random models: ``run.py python --test -m tests.fuzz --seeds 0 500 [--to FILE]``."""

import argparse
import sys

from tests.fuzz.judging import run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seeds", nargs=2, type=int, required=True, metavar=("FIRST", "LAST"))
parser.add_argument("--to", help="a file to which a line is added for each model")
arguments = parser.parse_args()
counts, bad = run(*arguments.seeds, arguments.to)
sys.stdout.write("\n".join([str(dict(counts)), *bad, ""]))
