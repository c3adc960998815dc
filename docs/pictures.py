"""Run the code of how-to pages, and draw its picture: ``python docs/pictures.py [PAGE ...]``."""

import re
import sys
from pathlib import Path

import numpy as np
import pymc as pm

from pymc_dp.examples.report import BLUE, GREEN, ORANGE, draws, ends, figure, legend

DOCS = Path(__file__).parent
LABELS = {
    "confidential data": GREEN,
    "published, noise ignored": ORANGE,
    "published, noise modelled": BLUE,
}
SIZE = {"draws": 1000, "tune": 1000, "chains": 2, "random_seed": 1}


def intervals(ax, found, names, truth):
    """Draw 90% intervals of each group, and the truth."""
    place = np.arange(len(names))
    for k, (label, colour) in enumerate(LABELS.items()):
        low, middle, high = found[label]
        at = place + 0.22 * (k - 1)
        ax.vlines(at, low, high, color=colour, lw=3, label=label)
        ax.plot(at, middle, "o", ms=4, color=colour)
    ax.hlines(truth, place - 0.38, place + 0.38, color="black", lw=1, label="truth")
    ax.set_xticks(place, names)


def group_totals(page):
    """Draw the mean stay of each clinic."""
    sizes, number, mean = page["sizes"], page["number"], page["mean"]
    found = {"published, noise modelled": ends(draws(page["idata"], "theta"), 0.9)}
    for label in ("confidential data", "published, noise ignored"):
        with pm.Model():
            theta = pm.Normal(
                "theta", pm.Normal("level", 10, 5), pm.HalfNormal("between", 5), shape=8
            )
            within = pm.Normal("within", 4, 0.5)
            if label == "confidential data":
                clinic = np.repeat(np.arange(8), sizes)
                x = np.concatenate(page["stays"]).clip(0, 30)
                law = pm.Normal.dist(theta[clinic], within)
                pm.Censored("x", law, lower=0, upper=30, observed=x)
            else:
                pm.Normal("mean", theta, within / np.sqrt(number), observed=mean)
            found[label] = ends(draws(pm.sample(**SIZE), "theta"), 0.9)
    drawn = figure(1, 1, (8, 3.6))
    [ax] = drawn.axes
    names = [f"{name}\nn = {n}" for name, n in zip("ABCDEFGH", sizes, strict=True)]
    intervals(ax, found, names, page["truth"])
    ax.set(ylabel="mean stay, days", title="90% intervals of each clinic")
    return drawn


def main(*pages):
    """Run the code of each page, and draw."""
    block = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for draw in (group_totals,):
        if pages and draw.__name__ not in pages:
            continue
        page = {}
        for code in block.findall((DOCS / f"{draw.__name__}.md").read_text()):
            exec(code, page)
        drawn = draw(page)
        legend(drawn)
        drawn.savefig(DOCS / "images" / f"{draw.__name__}.png", dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
