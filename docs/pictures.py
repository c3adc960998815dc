"""Run the code of how-to pages, and draw its picture: ``python docs/pictures.py [PAGE ...]``."""

import re
import sys
from pathlib import Path

import numpy as np

from pymc_dp.examples.report import BLUE, GREEN, ORANGE, draws, ends, figure, legend

DOCS = Path(__file__).parent
LABELS = {
    "confidential data": GREEN,
    "published, noise ignored": ORANGE,
    "published, noise modelled": BLUE,
}


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


def changed_answers(page):
    """Draw the share that says never in each region."""
    region, shares = page["region"], page["shares"]
    found = {"published, noise modelled": ends(draws(page["idata"], "p")[..., 0], 0.9)}
    rng = np.random.default_rng(1)
    for label, answers in zip(LABELS, (page["truth"], page["reports"]), strict=False):
        count = np.bincount(3 * region + answers, minlength=15).reshape(5, 3)[:, 0]
        found[label] = ends(rng.beta(1 + count, 402 - count, (4000, 5)), 0.9)  # Dirichlet's share
    drawn = figure(1, 1, (8, 3.6))
    [ax] = drawn.axes
    intervals(ax, found, list("ABCDE"), shares[:, 0])
    ax.axhline(1 / 3, color="black", lw=0.8, ls=":")
    ax.text(4.45, 1 / 3, "1/3", va="bottom", ha="right")
    ax.set(ylabel="share of 'never'", xlabel="region", title="90% intervals of each region")
    return drawn


def overlapping_tables(page):
    """Draw the counts of all cells."""
    table, published = page["table"], page["published"]
    cells = np.eye(48).reshape(48, *table.shape)
    M = np.concatenate([cells.sum(axis=k + 1).reshape(48, -1) for k in range(3)], axis=1).T
    squares = np.linalg.lstsq(M, np.concatenate([z.ravel() for z in published]), rcond=None)[0]
    low, _, high = ends(draws(page["idata"], "c"), 0.9)
    order, place = np.argsort(table.ravel(), kind="stable"), np.arange(48)
    drawn = figure(1, 1, (9, 3.6))
    [ax] = drawn.axes
    ax.axhline(0, color="black", lw=0.8)
    ax.vlines(place, low[order], high[order], color=BLUE, lw=4, alpha=0.5, label="posterior, 90%")
    ax.plot(place, squares[order], "o", ms=4, color=ORANGE, label="least squares")
    ax.plot(place, table.ravel()[order], "_", ms=8, mew=2, color=GREEN, label="confidential")
    ax.set(xlabel="cells, from the smallest", ylabel="people", xticks=[])
    return drawn


def main(*pages):
    """Run the code of each page, and draw."""
    block = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for draw in (changed_answers, overlapping_tables):
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
