"""The table of all results, and of what a row gave."""

import json
from typing import Any

import numpy as np

from benchmarks import growth
from benchmarks.measure import CONVERGED, RESULTS, rate
from benchmarks.rows import ROWS

HEAD = """\
# Speed: `dp.sample` beside the best model by hand

Made by `python3 run.py bench --report` of `benchmarks/results/`, each row as it was measured last.
Effective draws (bulk ESS) of the slowest parameter for each second of CPU time: over the whole of a
warm call, compiling included, and over sampling and tuning alone. A cold call is the first one of a
process. By hand, the fastest of a row's forms whose chains agree, R-hat below {converged}: by a
whole call, and by sampling, where that may be another one, which is then named. A side whose chains
do not agree is marked † and has no ratio. A side that took longer than its limit has a tenth
of the draws, or those so far, and says so; where not even one warm call ended, its figures are of
the cold one, and it has no ratio. Ratios are ours to by hand for three seeds:
minimum, median, maximum. A side that says "approximate" has another posterior. z is the largest
difference of posterior means, in Monte Carlo standard errors. Models and numbers of draws are in
`benchmarks/rows.py`; the more draws, the nearer is a call to sampling alone.

"""
COLUMNS = (
    "row", "ours: route", "ESS / s, call", "sampling", "cold s", "by hand: best form",
    "ESS / s, call", "sampling", "cold s", "ratio, call", "ratio, sampling", "z",
    "R-hat, ours", "by hand", "published",
)  # fmt: skip


def figures(side: dict[str, Any]) -> list[str]:
    """Return the rates of a warm call and of its sampling, and the seconds of the cold call."""
    warm = side["calls"][1:] or side["calls"]
    cold = f"{side['calls'][0]['seconds']:.1f}" if side["calls"] else ""
    both = [np.median([c["ess"] / c[of] for c in warm]) if warm else None
            for of in ("seconds", "sampling")]  # fmt: skip
    return [*("" if v is None else f"{v:,.3g}" if v < 100 else f"{v:,.0f}" for v in both), cold]


def rhat(side: dict[str, Any]) -> str:
    """Return the largest R-hat of the warm calls, marked where chains do not agree."""
    calls = side["calls"][1:] or side["calls"]
    found = np.max([c["rhat"] for c in calls]) if calls else None
    return "" if found is None else f"{found:.3f}" + " †" * (not found < CONVERGED)


def ratios(ours: dict[str, Any], other: dict[str, Any], of: str) -> str:
    """Return the least, the median and the largest ratio; nothing where chains do not agree."""
    if not (rate(ours) and rate(other)):
        return ""
    pairs = zip(ours["calls"][1:], other["calls"][1:], strict=False)
    found = sorted(a["ess"] / a[of] / (b["ess"] / b[of]) for a, b in pairs)
    return " / ".join(f"{v:.3g}" for v in (found[0], np.median(found), found[-1]))


def apart(ours: dict[str, Any], other: dict[str, Any]) -> str:
    """Return the largest difference of posterior means, in standard errors."""
    if not (rate(ours) and rate(other)):
        return ""
    a, b = ours["calls"][-1], other["calls"][-1]
    z = np.subtract(a["mean"], b["mean"]) / np.hypot(a["mcse"], b["mcse"])
    return f"{np.abs(z).max():.1f}"


def line(found: dict[str, Any]) -> list[str]:
    """Return the cells of a row."""
    ours, *by_hand = found["sides"]
    route = ours["calls"][-1]["route"] if ours["calls"] else ours["error"]
    if ours["calls"] and ours["error"]:
        route += f" ({ours['error']})"
    # Of those that did not converge or had no warm call, the one that got farthest.
    best = max(by_hand, key=lambda s: (rate(s), len(s["calls"])), default=None)
    cells = [found["row"], route, *figures(ours)]
    if best is None:
        return [*cells, *[""] * 7, rhat(ours), "", found["paper"]]
    accept = any("target_accept" in c for c in best["calls"])
    form = f"{best['form']}, {best['sampler']}" + " at 0.9" * accept
    if len(best["calls"]) < 2 or "tenth" in best["error"]:
        form += f" ({best['error']})"
    quick = max(by_hand, key=lambda s: (rate(s, "sampling"), s is best))
    whole, _, cold = figures(best)
    sampling = figures(quick)[1]
    if quick is not best and rate(quick):
        sampling += f" ({quick['form']}, {quick['sampler']})"
    pairs = (ratios(ours, best, "seconds"), ratios(ours, quick, "sampling"), apart(ours, best))
    return [
        *cells, form, whole, sampling, cold, *pairs, rhat(ours), rhat(best), found["paper"]
    ]  # fmt: skip


def table(results: list[dict[str, Any]]) -> str:
    """Return results in Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(line, results)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def report() -> str:
    """Write `results.md` of all that is kept, and return it."""
    files = {file.stem: file for file in RESULTS.glob("*.json")}
    results = [json.loads(files[name].read_text()) for name in ROWS if name in files]
    made = {(r["date"], r["commit"], r["cpu"], *r["versions"].items()) for r in results}
    text = HEAD.format(converged=CONVERGED) + table(results) + growth.report()
    missing = [name for name in ROWS if name not in files]
    if missing:
        text += f"\nNot measured: {', '.join(missing)}.\n"
    measured = {r["row"]: {side["form"] for side in r["sides"]} for r in results}
    cut = [name for name, forms in measured.items() if not forms.issuperset(ROWS[name].forms)]
    if cut:
        text += f"\nCut short, not all forms by hand are measured: {', '.join(cut)}.\n"
    for date, commit, cpu, *versions in sorted(made):
        packages = ", ".join(" ".join(v) for v in versions)
        text += f"\nMeasured on {date} at {commit}, {cpu}, {packages}.\n"
    (RESULTS.parent / "results.md").write_text(text)
    return text
