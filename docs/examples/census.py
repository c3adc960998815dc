"""Counts in a three-level geography, published with discrete Gaussian noise on every level.

As in the noisy measurement files of a census, the count of every tract and of every county is
released with discrete Gaussian noise, the counties with less of it, and the totals of the states
are published as they are. The counts here are simulated: events (persons, births, cases) in tracts
of known size, with rates that vary between counties and between the tracts of a county.

The model is that of the confidential counts. Given its state's total, a state's table is
multinomial; `TableGibbs` draws it with the total kept and every release accounted for, and NUTS
the rates. The naive analysis takes the published tract counts for the true ones.

Run it with ``python3 run.py example census [--tracts N] [--cores C] [--output DIR]``.
With very many tracts, set ``OPENBLAS_NUM_THREADS=1``: else the threads of the linear algebra, which
has little to do here, take the cores from the chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
import report

STATES, TRACTS_IN_COUNTY = 4, 10
SIGMA = {"tract": 12.0, "county": 6.0}  # of the noise
LEVEL = 0.9  # of the intervals


@dataclass(frozen=True)
class Geography:
    """A simulated geography; arrays are (state, tract), the tracts of a county in a row."""

    size: np.ndarray
    rates: np.ndarray
    counts: np.ndarray
    tracts: np.ndarray
    counties: np.ndarray

    @property
    def totals(self) -> np.ndarray:
        """The published totals of the states."""
        return self.counts.sum(axis=1)


def by_county(table):
    """Sum over the tracts of every county; the tracts are on the last axis."""
    return table.reshape((*table.shape[:-1], -1, TRACTS_IN_COUNTY)).sum(-1)


def simulate(tracts: int, seed: int) -> Geography:
    """Simulate about `tracts` tracts and release them."""
    rng = np.random.default_rng(seed)
    counties = max(2, round(tracts / STATES / TRACTS_IN_COUNTY))
    shape = (STATES, counties * TRACTS_IN_COUNTY)
    size = rng.integers(500, 4000, shape)
    county = np.repeat(rng.normal(0, 0.5, (STATES, counties)), TRACTS_IN_COUNTY, axis=1)
    rates = np.exp(-4 + county + rng.normal(0, 0.3, shape))
    counts = rng.poisson(size * rates)
    released = []
    for statistic, sigma in ((counts, SIGMA["tract"]), (by_county(counts), SIGMA["county"])):
        draw = dp.DiscreteGaussianMechanism(sigma).dist(statistic)
        released.append(pm.draw(draw, random_seed=rng))
    return Geography(size, rates, counts, *released)


def build(data: Geography) -> pm.Model:
    """Write the model of the confidential counts, with what was published of them."""
    states, tracts = data.size.shape
    with pm.Model() as model:
        mean = pm.Normal("mean", -4, 1)
        between = pm.HalfNormal("between", 1)  # sd of log rates between counties,
        within = pm.HalfNormal("within", 1)  # and between the tracts of one
        # Rates that all began alike would speak, the more of them the louder, for no spread at all.
        shape = states, tracts // TRACTS_IN_COUNTY
        county = pm.Normal("county", mean, between, shape=shape, initval="prior")
        centre = pt.repeat(county, TRACTS_IN_COUNTY, axis=1)
        log_rate = pm.Normal("log_rate", centre, within, shape=(states, tracts), initval="prior")
        expected = data.size * pt.exp(log_rate)
        # Poisson counts, given that their sums over the states are known.
        pm.Poisson("total", expected.sum(axis=1), observed=data.totals)
        share = expected / expected.sum(axis=1, keepdims=True)
        counts = pm.Multinomial("counts", n=data.totals, p=share)
        tract, county_noise = (dp.DiscreteGaussianMechanism(s) for s in SIGMA.values())
        dp.PrivateObservation("tracts", counts, tract, observed=data.tracts)
        dp.PrivateObservation("counties", by_county(counts), county_noise, observed=data.counties)
        # What is kept of every draw, at half the size.
        pm.Deterministic("count", counts.astype("int32"))
        pm.Deterministic("rate", pt.exp(log_rate).astype("float32"))
    return model


def fit(model: pm.Model, draws: int, seed: int, **kwargs) -> DataTree:
    """Sample it: NUTS for the rates, exact draws of the tables."""
    with model:
        return pm.sample(
            draws,
            tune=draws,
            chains=2,
            var_names=["mean", "between", "within", "count", "rate"],
            random_seed=seed,
            compute_convergence_checks=False,
            **kwargs,
        )


def intervals(data: Geography, idata: DataTree) -> dict[str, tuple]:
    """Return the truth, the naive and the exact interval of every quantity."""
    counts, rates = report.draws(idata, "count"), report.draws(idata, "rate")
    z = stats.norm.ppf((1 + LEVEL) / 2)
    found = {}
    for name, published, sigma, draws, truth in (
        ("tracts", data.tracts, SIGMA["tract"], counts, data.counts),
        ("counties", data.counties, SIGMA["county"], by_county(counts), by_county(data.counts)),
    ):
        naive = np.stack([published - z * sigma, published + z * sigma])
        found[f"counts of {name}"] = truth, naive, report.ends(draws, LEVEL)[[0, 2]]
    count = np.maximum(data.tracts, 0)  # Poisson counts, as if they were the true ones
    low = stats.gamma.ppf((1 - LEVEL) / 2, np.maximum(count, 1)) * (count > 0)
    naive = np.stack([low, stats.gamma.ppf((1 + LEVEL) / 2, count + 1)]) / data.size
    found["rates of tracts"] = data.rates, naive, report.ends(rates, LEVEL)[[0, 2]]
    return found


def summary(found: dict[str, tuple]) -> Table:
    """Tabulate how often the intervals cover the truth, and how wide they are."""
    rows = []
    for name, (truth, *both) in found.items():
        row = [name]
        for low, high in both:
            row += [f"{report.covered(truth, low, high):.1%}", f"{np.median(high - low):.4g}"]
        rows.append(row)
    headings = ("", "naive: cover", "median width", "exact: cover", "median width")
    return report.table(f"{LEVEL:.0%} intervals", headings, rows)


def picture(found: dict[str, tuple]) -> Figure:
    """Draw the intervals of the first tracts beside the truth."""
    figure = report.figure(2, 1, (10, 6))
    for ax, name in zip(figure.axes, ("counts of tracts", "rates of tracts"), strict=True):
        truth, naive, exact = found[name]
        where = np.arange(min(40, truth.shape[1]))
        for shift, (low, high), colour, label in (
            (-0.15, naive, report.ORANGE, "naive"),
            (0.15, exact, report.BLUE, "noise modelled"),
        ):
            ax.vlines(where + shift, low[0, where], high[0, where], color=colour, lw=2.5,
                      label=label)  # fmt: skip
        ax.scatter(where, truth[0, where], color="black", s=14, zorder=3, label="truth")
        ax.set_title(f"{LEVEL:.0%} intervals for the {name}", loc="left")
        ax.set(xlabel="tract of the first state", xlim=(-1, len(where)))
    report.legend(figure)
    return figure


def main(arguments: Sequence[str] | None = None) -> dict[str, tuple]:
    """Run the example."""
    args = report.options(__doc__, arguments, tracts=400, draws=2000, cores=int, output=Path)
    data = simulate(args.tracts, args.seed)
    tracts, counties = data.counts.size, by_county(data.counts).size
    with report.timed(f"{tracts:,} tracts in {counties:,} counties of {STATES} states"):
        idata = fit(build(data), args.draws, args.seed, cores=args.cores)
    drawn = idata["posterior"]["count"].to_numpy().sum(axis=-1)
    found = intervals(data, idata)
    report.say(
        f"State totals hold in every draw: {bool(np.all(drawn == data.totals))}", summary(found)
    )
    if args.output:
        report.write(args.output, census=picture(found))
    return found


if __name__ == "__main__":
    main()
