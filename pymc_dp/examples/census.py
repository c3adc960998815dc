"""Counts in a three-level geography, published with discrete Gaussian noise on every level.

As in the noisy measurement files of a census, the count of every tract and of every county is
released with discrete Gaussian noise, the counties with less of it, and the totals of the states
are published as they are. The counts here are simulated: events (persons, births, cases) in tracts
of known size, with rates that vary between counties and between the tracts of a county.

The model is that of the confidential counts. Given its state's total, a state's table is
multinomial; `TableGibbs` draws it with the total kept and every release accounted for, and NUTS
the rates. The naive analysis takes the published tract counts for the true ones.

Run it with ``python -m pymc_dp.examples.census [--tracts N] [--cores C] [--output DIR]``.
With very many tracts, set ``OPENBLAS_NUM_THREADS=1``: else the threads of the linear algebra, which
has little to do here, take the cores from the chains.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp

STATES, TRACTS_IN_COUNTY = 4, 10
SIGMA = {"tract": 12.0, "county": 6.0}  # of the noise
LEVEL = 0.9  # of the intervals

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"


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


def interval(draws: np.ndarray) -> np.ndarray:
    """Equal-tailed interval over the first axis: the ends are on the first axis of the result."""
    return np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def intervals(data: Geography, idata: DataTree) -> dict[str, tuple]:
    """Return the truth, the naive and the exact interval of every quantity."""
    draws = (idata["posterior"][name].to_numpy() for name in ("count", "rate"))
    counts, rates = (x.reshape(-1, *data.size.shape) for x in draws)
    z = stats.norm.ppf((1 + LEVEL) / 2)
    published = {"tracts": data.tracts, "counties": data.counties}
    found = {}
    for (name, value), sigma, draws, truth in zip(
        published.items(),
        SIGMA.values(),
        (counts, by_county(counts)),
        (data.counts, by_county(data.counts)),
        strict=True,
    ):
        around = np.stack([value - z * sigma, value + z * sigma])
        found[f"counts of {name}"] = truth, around, interval(draws)
    naive = np.maximum(data.tracts, 0)  # Poisson counts, as if they were the true ones
    ends = [
        np.where(naive > 0, stats.gamma.ppf((1 - LEVEL) / 2, np.maximum(naive, 1)), 0.0),
        stats.gamma.ppf((1 + LEVEL) / 2, naive + 1),
    ]
    found["rates of tracts"] = data.rates, np.stack(ends) / data.size, interval(rates)
    return found


def summary(found: dict[str, tuple]) -> Table:
    """Tabulate how often the intervals cover the truth, and how wide they are."""
    table = Table(title=f"{LEVEL:.0%} intervals", box=SIMPLE_HEAD)
    for column in ("", "naive: cover", "median width", "exact: cover", "median width"):
        table.add_column(column, justify="right")
    for name, (truth, *both) in found.items():
        cells = []
        for low, high in both:
            cells.append(f"{np.mean((low <= truth) & (truth <= high)):.1%}")
            cells.append(f"{np.median(high - low):.4g}")
        table.add_row(name, *cells)
    return table


def picture(found: dict[str, tuple]) -> Figure:
    """Draw the intervals of the first tracts beside the truth."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    for axis, name in zip(
        figure.subplots(2, 1), ("counts of tracts", "rates of tracts"), strict=True
    ):
        truth, naive, exact = (np.asarray(x) for x in found[name])
        where = np.arange(min(40, truth.shape[1]))
        for shift, ends, colour, label in (
            (-0.15, naive, ORANGE, "naive"),
            (0.15, exact, BLUE, "noise modelled"),
        ):
            low, high = ends[:, 0, where]
            axis.vlines(where + shift, low, high, color=colour, lw=2.5, label=label)
        axis.scatter(where, truth[0, where], color="black", s=14, zorder=3, label="truth")
        axis.set_title(f"{LEVEL:.0%} intervals for the {name}", loc="left")
        axis.set_xlabel("tract of the first state")
        axis.set_xlim(-1, len(where))
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=3, frameon=False, loc="outside lower center")
    return figure


def main(arguments: Sequence[str] | None = None) -> dict[str, tuple]:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tracts", type=int, default=400, help="about how many; default 400")
    parser.add_argument("--draws", type=int, default=500, help="of each of two chains")
    parser.add_argument("--cores", type=int, help="two run the chains side by side")
    parser.add_argument("--output", type=Path, help="folder for the picture")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.WARNING)
    console = Console()
    data = simulate(options.tracts, options.seed)
    began = time.perf_counter()
    idata = fit(build(data), options.draws, options.seed, cores=options.cores)
    console.print(
        f"{data.counts.size:,} tracts in {by_county(data.counts).size:,} counties of {STATES} "
        f"states: {time.perf_counter() - began:.0f} s"
    )
    drawn = idata["posterior"]["count"].to_numpy().sum(axis=-1)
    console.print(f"State totals hold in every draw: {bool(np.all(drawn == data.totals))}")
    found = intervals(data, idata)
    console.print(summary(found))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        picture(found).savefig(options.output / "census.png", dpi=120)
    return found


if __name__ == "__main__":
    main()
