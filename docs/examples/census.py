"""A state's people by county, tract and kind, with discrete Gaussian noise at every level.

As in the noisy measurement files of a census, the number of people of each of 24 kinds (six ages,
two sexes, two kinds of housing) is released for the state, for every county and for every tract,
with less noise for the larger areas. The state's total is published as it is. Counties have
between 10 and 40 tracts. The people here are simulated.

The model is that of the confidential counts: the state's people are split into kinds, those of each
kind into counties, and those of a county into its tracts, with shares that have flat priors.
`TreeGibbs` draws all counts, and integrates the shares out. Weighted least squares, the usual
analysis, combines the noisy counts of a county with those of its tracts; its intervals know neither
that counts are from zero on, nor how people are spread.

Run it with ``python3 run.py example census [--tracts N] [--cores C] [--output DIR]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
import report

KINDS = 24
WIDTHS = (10, 25, 40)  # tracts of a county
PEOPLE_IN_TRACT = 4000
SIGMA = {"state": 3.0, "county": 6.0, "tract": 12.0}  # of the noise
SPREAD = {"county": 3.0, "tract": 4.0}  # how alike counties, and tracts of one, are
LEVEL = 0.95  # of the intervals


@dataclass(frozen=True)
class Geography:
    """Counts of a state, by kind, and of its counties; tracts by how many tracts a county has.

    Attributes
    ----------
    width : number of tracts of every county.
    counts : what is confidential: `state` (kind), `county` (kind, county), and for each width
        `tract 10` (kind, county of this width, tract).
    released : the same with noise.
    """

    width: np.ndarray
    counts: dict[str, np.ndarray]
    released: dict[str, np.ndarray]

    @property
    def total(self) -> int:
        """The number of people, which is published as it is."""
        return int(self.counts["state"].sum())


def level(name: str) -> str:
    """Return the level of an entry of `Geography.counts`."""
    return name.split()[0]


def simulate(tracts: int, seed: int) -> Geography:
    """Simulate about `tracts` tracts and release them."""
    rng = np.random.default_rng(seed)
    each = max(1, round(tracts / sum(WIDTHS)))  # counties of every width
    width = np.repeat(WIDTHS, each)
    split = rng.multinomial
    counts = {"state": split(PEOPLE_IN_TRACT * width.sum(), rng.dirichlet(np.full(KINDS, 0.6)))}
    shares = rng.dirichlet(np.full(width.size, SPREAD["county"]), KINDS)
    counts["county"] = split(counts["state"], shares)
    for n in WIDTHS:
        shares = rng.dirichlet(np.full(n, SPREAD["tract"]), (KINDS, each))
        counts[f"tract {n}"] = split(counts["county"][:, width == n], shares)
    released = {}
    for name, confidential in counts.items():
        draw = dp.DiscreteGaussianMechanism(SIGMA[level(name)]).dist(confidential)
        released[name] = pm.draw(draw, random_seed=rng)
    return Geography(width, counts, released)


def build(data: Geography) -> pm.Model:
    """Write the model of the confidential counts, with what was published of them."""
    counties = data.width.size
    with pm.Model() as model:
        kinds = pm.Dirichlet("kinds", np.ones(KINDS))
        state = pm.Multinomial("state", data.total, kinds)
        share = pm.Dirichlet("share", np.ones((KINDS, counties)))
        county = pm.Multinomial("county", state, share)
        counts = {"state": state, "county": county}
        for n in WIDTHS:
            people = county[:, data.width == n]
            share = pm.Dirichlet(f"share {n}", np.ones((*people.type.shape, n)))
            counts[f"tract {n}"] = pm.Multinomial(f"tract {n}", people, share)
        for name, confidential in counts.items():
            noise = dp.DiscreteGaussianMechanism(SIGMA[level(name)])
            released = data.released[name]
            dp.PrivateObservation(f"noisy {name}", confidential, noise, observed=released)
    return model


def fit(model: pm.Model, draws: int, seed: int, **kwargs) -> DataTree:
    """Sample it; the shares are not kept."""
    names = ["state", "county", *(f"tract {n}" for n in WIDTHS)]
    with model:
        return dp.sample(
            draws=draws, tune=draws // 2, chains=2, var_names=names, random_seed=seed,
            compute_convergence_checks=False, **kwargs,
        )  # fmt: skip


def least_squares(data: Geography) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return estimates and standard deviations by weighted least squares, of all levels.

    Up the tree each area's count is averaged with the sum of its parts, by precision; down again
    the parts are moved to add up to it, by their variances.
    """
    estimate, variance = np.empty_like(data.counts["county"], float), np.empty(data.width.size)
    for n in WIDTHS:
        of = data.width == n
        parts = data.released[f"tract {n}"].sum(-1)
        by = 1 / SIGMA["county"] ** 2, 1 / (n * SIGMA["tract"] ** 2)
        estimate[:, of] = (by[0] * data.released["county"][:, of] + by[1] * parts) / sum(by)
        variance[of] = 1 / sum(by)
    by = 1 / SIGMA["state"] ** 2, 1 / variance.sum()
    state = (by[0] * data.released["state"] + by[1] * estimate.sum(1)) / sum(by)
    gain = variance / variance.sum()
    estimate += gain * (state - estimate.sum(1))[:, None]
    variance = variance - gain * variance + gain**2 / sum(by)
    found = {
        "state": (state, np.full(state.shape, sum(by) ** -0.5)),
        "county": (estimate, np.broadcast_to(np.sqrt(variance), estimate.shape)),
    }
    for n in WIDTHS:
        noisy, of = data.released[f"tract {n}"], data.width == n
        alone, above = SIGMA["tract"] ** 2, variance[of][:, None]
        tracts = noisy + (estimate[:, of] - noisy.sum(-1))[..., None] / n
        spread = np.sqrt(alone - alone / n + above / n**2)
        found[f"tract {n}"] = tracts, np.broadcast_to(spread, tracts.shape)
    return found


def intervals(data: Geography, idata: DataTree) -> dict[str, tuple]:
    """Return the truth, the interval of least squares and the exact one, of every level."""
    z = stats.norm.ppf((1 + LEVEL) / 2)
    parts: dict[str, list[tuple]] = {}
    for name, (estimate, sd) in least_squares(data).items():
        exact = report.ends(report.draws(idata, name), LEVEL)[[0, 2]].reshape(2, -1)
        ends = np.stack([estimate - z * sd, estimate + z * sd]).reshape(2, -1)
        parts.setdefault(level(name), []).append((data.counts[name].ravel(), ends, exact))
    return {
        name: tuple(np.concatenate(of_all, axis=-1) for of_all in zip(*found, strict=True))
        for name, found in parts.items()
    }


def summary(found: dict[str, tuple]) -> Table:
    """Tabulate how often the intervals cover the truth, and how wide they are."""
    rows = []
    for name, (truth, *both) in found.items():
        row = [f"people of a {name}"]
        for low, high in both:
            row += [f"{report.covered(truth, low, high):.1%}", f"{np.mean(high - low):.4g}"]
        rows.append(row)
    headings = ("", "least squares: cover", "mean width", "exact: cover", "mean width")
    return report.table(f"{LEVEL:.0%} intervals", headings, rows)


def picture(found: dict[str, tuple]) -> Figure:
    """Draw the intervals of the rarest kind in some counties, beside the truth."""
    counties = found["county"][0].size // KINDS
    truth, rival, exact = (x.reshape(*x.shape[:-1], KINDS, counties) for x in found["county"])
    kind = np.argmin(truth.sum(1))
    where = np.arange(min(30, counties))
    figure = report.figure(1, 1, (10, 4))
    [ax] = figure.axes
    for shift, ends, colour, label in (
        (-0.15, rival, report.ORANGE, "least squares"),
        (0.15, exact, report.BLUE, "exact"),
    ):
        low, high = ends[:, kind, where]
        ax.vlines(where + shift, low, high, color=colour, lw=2.5, label=label)
    ax.scatter(where, truth[kind, where], color="black", s=14, zorder=3, label="truth")
    ax.axhline(0, color=report.GREY, lw=0.8)
    ax.set_title(f"{LEVEL:.0%} intervals for the people of the rarest kind", loc="left")
    ax.set(xlabel="county", xlim=(-1, len(where)))
    report.legend(figure)
    return figure


def main(arguments: Sequence[str] | None = None) -> dict[str, tuple]:
    """Run the example."""
    args = report.options(__doc__, arguments, tracts=300, draws=1000, cores=int, output=Path)
    data = simulate(args.tracts, args.seed)
    tracts, counties = data.width.sum(), data.width.size
    with report.timed(f"{tracts:,} tracts with {KINDS} kinds of people in {counties} counties"):
        idata = fit(build(data), args.draws, args.seed, cores=args.cores)
    drawn = idata["posterior"]
    total = bool((drawn["state"].sum("state_dim_0") == data.total).all())
    agree = bool((drawn["county"].sum("county_dim_1") == drawn["state"].to_numpy()).all())
    found = intervals(data, idata)
    report.say(f"Totals hold in every draw: {total and agree}", summary(found))
    if args.output:
        report.write(args.output, census=picture(found))
    return found


if __name__ == "__main__":
    main()
