"""Two states of the package beside each other: ``python3 run.py bench --against COMMIT [ROW ...]``.

Each row is sampled by both in turn, in processes of their own, with the same models and draws. A
row is slower where the median of its ratios is above `MOST`, and all of them are above 1.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
MOST = 1.25
ROUNDS = 3
# Rows of different routes, of a few seconds each: what the night compares.
SOME = (
    "blood-lead-flat", "clamped-normal-100", "means-Laplace", "zero-inflated-200", "design-Laplace",
    "regression-10", "table-2x2", "Bernoulli-groups", "Exponential-groups", "two-way-marginals",
)  # fmt: skip
CALL = """
import json, sys
from benchmarks import measure
print(json.dumps(measure.measure(sys.argv[1], measure.OURS)["calls"][1:]))
"""


def compare(commit: str, rows: Sequence[str]) -> bool:
    """Print the ratios of CPU seconds, now to then; return whether a row is slower."""
    slower = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), commit], check=True)
        try:
            sides = [_linked(Path(folder, "then"), tree), _linked(Path(folder, "now"), ROOT)]
            for row in rows or SOME:
                found = [[_seconds(side, row) for side in sides] for _ in range(ROUNDS)]
                missing = [k for k in (0, 1) if not all(one[k] for one in found)]
                if missing:
                    print(f"{row}: no call in time {'now' if 1 in missing else 'then'}", flush=True)
                    continue
                ratios = [np.median(now) / np.median(then) for then, now in found]
                low, middle, high = np.quantile(ratios, [0.0, 0.5, 1.0])
                then, now = (np.median([np.median(one[k]) for one in found]) for k in (0, 1))
                verdict = "slower" if middle > MOST and low > 1 else ""
                print(
                    f"{row}: {then:.2f} -> {now:.2f} CPU s a call, ratio {middle:.2f} "
                    f"({low:.2f} to {high:.2f}) {verdict}",
                    flush=True,
                )
                slower += [row] if verdict else []
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    if slower:
        print(f"Slower than at {commit} by more than a quarter: {', '.join(slower)}")
    return bool(slower)


def _linked(folder: Path, tree: Path) -> Path:
    """Put the package of a tree beside the rows as they are now."""
    folder.mkdir()
    (folder / "pymc_dp").symlink_to(tree / "pymc_dp")
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    return folder


def _seconds(side: Path, row: str) -> list[float]:
    """Return CPU seconds of the warm calls of our side of a row; none where none ended."""
    run = [sys.executable, "-c", CALL, row]
    environment = {**os.environ, "PYTHONPATH": str(side)}
    done = subprocess.run(run, cwd=side, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return [call["seconds"] for call in json.loads(lines[-1])] if lines else []
