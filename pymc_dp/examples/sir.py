"""The stochastic SIR epidemic from a privatised curve: a model that can only be simulated.

The numbers of infected members of a population at ten times are confidential. Each is released by
the binomial mechanism: n members are drawn with replacement, from the population and m
pseudo-members on either side, and how many of them are infected is published. The curve is drawn by
a simulator (`sir_simulator`), whose likelihood is intractable; the model is an ordinary PyMC model
all the same, with the simulator as a `pm.CustomDist`, and is fitted by sequential neural estimation
of the posterior (SPPE) and of the likelihood (SPLE).

Two epidemics: one in a population of a million, with rates in the range of measles, whose release
and reference are given (Xiong, Ju & Zhang, 2024); and the influenza of 1978 in an English boarding
school, 763 boys, privatised here with a seed that is printed. Particle importance sampling, which
is exact in the limit but made for this model, gives the reference for the school, and what a curve
with next to no noise would say.

Run it with ``python -m pymc_dp.examples.sir [--epsilon E] [--method sppe|sple|both|none]
[--rounds R] [--simulations N] [--output DIR]``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
from pymc_dp.examples import comparison
from pymc_dp.examples.sir_simulator import (
    Epidemic,
    Weighted,
    binomial_log_mass,
    posterior,
    simulate,
)

# Anonymous (1978). Influenza in a boarding school. British Medical Journal 1, 587.
BOYS, IN_BED = 763, (1, 3, 8, 28, 76, 222, 293, 257, 237, 192)

# Okabe and Ito's colours, which colour-blind readers can tell apart.
ALMOST = "ε = 1000"  # its noise is that of four boys: next to no privacy
COLOURS = {
    ALMOST: "#009E73",
    "particles": "#000000",
    "sppe": "#0072B2",
    "sple": "#D55E00",
}


@dataclass(frozen=True)
class Study:
    """An epidemic and what was released of its curve.

    Attributes
    ----------
    title : str
        What it is called.
    epidemic : Epidemic
        What is public about it.
    mechanism : BinomialMechanism
        How its curve was released,
    released : numpy.ndarray of int
        and what came out.
    confidential : numpy.ndarray of int, optional
        The curve itself, where it is known.
    reference : mapping, optional
        Published mean and standard deviation of the quantities of `quantities`.
    """

    title: str
    epidemic: Epidemic
    mechanism: dp.BinomialMechanism
    released: np.ndarray
    confidential: np.ndarray | None = None
    reference: Mapping[str, tuple[float, float]] | None = None

    @property
    def log_mass(self) -> np.ndarray:
        """Log mass of every released number given each I from 0 to K."""
        n, m, population = (float(p.data) for p in self.mechanism.parameters)
        return binomial_log_mass(self.released, int(n), m, int(population))

    @property
    def unbiased(self) -> np.ndarray:
        """The releases on the scale of the confidential numbers: right on average."""
        n, m, population = (float(p.data) for p in self.mechanism.parameters)
        return self.released / n * (population + 2 * m) - m


def measles() -> Study:
    """Return the problem with a published release; 0.5 and 0.2 are variances."""
    population = 1_000_000
    return Study(
        title="Measles setting, a population of a million",
        epidemic=Epidemic(
            population=population,
            infected=1,
            times=np.arange(10) * 17.0,
            prior_mean=np.log([0.4, 0.125]),
            prior_sd=np.sqrt([0.5, 0.2]),
        ),
        mechanism=dp.BinomialMechanism(draws=1000, pseudo_count=1000, population=population),
        released=np.array([1, 31, 614, 263, 123, 47, 18, 9, 5, 3]),
        # From a long run of another sampler, checked by particle MCMC.
        reference={
            "log β": (-0.4958, 0.0635),
            "log γ": (-3.013, 0.0269),
            "R₀": (12.436, 1.0245),
        },
    )


def school(epsilon: float, seed: int) -> Study:
    """Privatise the influenza curve, with a total privacy loss of epsilon.

    Half as many pseudo-members as members on either side tell the most about a curve: more
    draws need more pseudo-members, among whom the infected ones are lost.
    """
    days = len(IN_BED)
    draws = max(1, round(epsilon * BOYS / (2 * days)))
    mechanism = dp.BinomialMechanism(draws, 1 / math.expm1(epsilon / (days * draws)), BOYS)
    released = pm.draw(mechanism.dist(np.array(IN_BED)), random_seed=seed)
    return Study(
        title=f"Influenza in a boarding school, ε = {epsilon:g}",
        epidemic=Epidemic(
            population=BOYS,
            infected=1,
            times=np.arange(days, dtype=float),
            # A boy is ill for about two days, and infects one or so a day: within a factor of 3 to
            # 7 (two standard deviations).
            prior_mean=np.log([1.0, 0.5]),
            prior_sd=np.array([1.0, 0.5]),
        ),
        mechanism=mechanism,
        released=released,
        confidential=np.array(IN_BED),
    )


def draw_curve(log_beta, log_gamma, times, rng, size, *, population, infected):
    """Draw curves of a batch of rates, as `pm.CustomDist` asks for them."""
    beta, gamma = np.exp(log_beta), np.exp(log_gamma)
    if size is not None:
        beta, gamma = np.broadcast_to(beta, size), np.broadcast_to(gamma, size)
    # The times are a parameter, and come with the dimensions of a batch; they are all the same.
    times = times.reshape(-1, times.shape[-1])[0]
    return simulate(rng, beta, gamma, times, population=population, infected=infected)


def build(study: Study) -> pm.Model:
    """Write the model of the confidential curve, with what was released of it."""
    epidemic = study.epidemic
    draw = partial(draw_curve, population=epidemic.population, infected=epidemic.infected)
    with pm.Model() as model:
        log_beta, log_gamma = (
            pm.Normal(name, mean, sd)
            for name, mean, sd in zip(
                ("log_beta", "log_gamma"), epidemic.prior_mean, epidemic.prior_sd, strict=True
            )
        )
        curve = pm.CustomDist(
            "curve",
            log_beta,
            log_gamma,
            epidemic.times,
            random=draw,
            signature="(),(),(t)->(t)",
            dtype="int64",
        )
        dp.PrivateObservation("release", curve, study.mechanism, observed=study.released)
    return model


def quantities(log_rates: np.ndarray) -> dict[str, np.ndarray]:
    """Name the draws of log beta and log gamma, (draw, 2), and of R0 = beta / gamma."""
    log_beta, log_gamma = log_rates.T
    return {"log β": log_beta, "log γ": log_gamma, "R₀": np.exp(log_beta - log_gamma)}


def log_rates(idata: DataTree) -> np.ndarray:
    """Return the draws of log beta and log gamma: (draw, 2)."""
    found = (idata["posterior"][name].to_numpy().ravel() for name in ("log_beta", "log_gamma"))
    return np.stack(list(found), axis=1)


def particles(study: Study, rng: np.random.Generator, **kwargs) -> Weighted:
    """Sample the exact posterior given the release, by particle importance sampling."""
    return posterior(study.epidemic, study.log_mass, rng, **kwargs)


DRAWS = 10_000  # resampled from weighted draws


def fit(study: Study, options, console: Console, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the draws of log beta and log gamma of every method."""
    found = {}
    exact = {}
    if study.confidential is not None or not options.no_particles:
        run = partial(particles, study, rng, draws=options.draws)
        exact["particles"] = comparison.timed(console, "particles", run)
    if study.confidential is not None:
        # Little noise takes many particles, and a start from what is known already.
        run = partial(
            particles,
            school(1000.0, options.seed),
            rng,
            draws=options.draws // 2,
            particles=400,
            rounds=2,
            start=exact["particles"],
        )
        exact[ALMOST] = comparison.timed(console, f"particles, {ALMOST}", run)
    for name, weighted in exact.items():
        console.print(f"Effective draws, {name}: {weighted.ess:,.0f}", highlight=False)
        found[name] = weighted.resample(rng, DRAWS)
    for method, idata in comparison.neural_fits(build(study), options, console):
        found[method] = log_rates(idata)
    return found


def predictive(study: Study, draws: np.ndarray, rng: np.random.Generator) -> tuple:
    """Return a fine grid of times and curves of new epidemics, of those that take off.

    One in ten or so dies out by chance, with its first cases.
    """
    times = np.linspace(0, study.epidemic.times[-1], 120)
    beta, gamma = np.exp(draws[rng.choice(len(draws), 500)]).T
    k, infected = study.epidemic.population, study.epidemic.infected
    curves = simulate(rng, beta, gamma, times, population=k, infected=infected)
    return times, curves[curves.max(axis=1) > 0.02 * k]


def picture(fits: Sequence[tuple[Study, dict[str, np.ndarray]]], seed: int) -> Figure:
    """Draw, for every study, what was released, what is predicted, and R0."""
    rng = np.random.default_rng(seed)
    figure = Figure(figsize=(11, 3.9 * len(fits)), layout="constrained")
    axes = figure.subplots(len(fits), 2, squeeze=False, width_ratios=[3, 2])
    for (study, found), (left, right) in zip(fits, axes, strict=True):
        _draw_curves(left, study, found, rng)
        _draw_r0(right, study, found)
    return figure


def _draw_curves(ax: Axes, study: Study, found: dict[str, np.ndarray], rng) -> None:
    """Draw the predictions of every method from the release."""
    for method in found:
        if method == ALMOST:
            continue
        times, curves = predictive(study, found[method], rng)
        low, middle, high = np.quantile(curves, [0.05, 0.5, 0.95], axis=0)
        colour = COLOURS[method]
        ax.fill_between(times, low, high, color=colour, alpha=0.15, lw=0)
        ax.plot(times, middle, color=colour, lw=1.8, label=f"{method}: median and 90%")
    times = study.epidemic.times
    ax.scatter(times, study.unbiased, s=30, marker="x", color="#CC79A7", zorder=4, label="released")
    if study.confidential is not None:
        ax.scatter(
            times, study.confidential, s=22, color=COLOURS[ALMOST], zorder=3, label="confidential"
        )
    ax.set(xlabel="day", ylabel="infected")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_title(f"{study.title}: new epidemics that take off", loc="left", fontsize=11)
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_r0(ax: Axes, study: Study, found: dict[str, np.ndarray]) -> None:
    r0 = {method: quantities(draws)["R₀"] for method, draws in found.items()}
    low = min(np.quantile(x, 0.002) for x in r0.values())
    high = max(np.quantile(x, 0.99) for x in r0.values())
    grid = np.linspace(low, high, 400)
    for method, values in r0.items():
        # Weighted draws come several times, which must not make the curve less smooth.
        width = len(np.unique(values)) ** -0.2
        density = stats.gaussian_kde(values, width)(grid)
        ax.plot(grid, density, color=COLOURS[method], lw=2, label=method)
    if study.reference is not None:
        mean, sd = study.reference["R₀"]
        ax.axvline(mean, color="#666666", ls="--", lw=1.2, label="reference: mean ± sd")
        ax.axvspan(mean - sd, mean + sd, color="#666666", alpha=0.1, lw=0)
    ax.set(xlabel="R₀", yticks=[], ylim=(0, 1.25 * ax.get_ylim()[1]), xlim=(low, high))
    ax.set_title("Basic reproduction number", loc="left", fontsize=11)
    ax.legend(frameon=False, loc="upper right")
    ax.spines[["top", "right", "left"]].set_visible(False)


def main(
    arguments: Sequence[str] | None = None,
) -> list[tuple[Study, dict[str, np.ndarray]]]:
    """Run the example."""
    parser = comparison.parser("sir", __doc__ or "")
    parser.add_argument("--epsilon", type=float, default=10.0,
                        help="total privacy loss of the school's curve; default 10")  # fmt: skip
    parser.add_argument("--study", choices=("measles", "school", "both"), default="both")
    parser.add_argument("--no-particles", action="store_true",
                        help="leave out particle importance sampling for measles")  # fmt: skip
    parser.add_argument("--draws", type=int, default=2000,
                        help="of particle importance sampling; default 2000")  # fmt: skip
    parser.add_argument("--output", type=Path, help="folder for the picture")
    options = parser.parse_args(arguments)
    console = comparison.console()
    rng = np.random.default_rng(options.seed)
    studies = [measles()] * (options.study != "school")
    studies += [school(options.epsilon, options.seed)] * (options.study != "measles")
    results = []
    for study in studies:
        console.print(f"[bold]{study.title}[/]", highlight=False)
        epsilon = float(np.sum(study.mechanism.epsilon())) * len(study.released)
        console.print(
            f"{study.mechanism}, ten times: ε = {epsilon:.3f}; "
            f"released: {', '.join(map(str, study.released))}"
            + (f" (privatised with seed {options.seed})" if study.confidential is not None else ""),
            highlight=False,
        )
        found = fit(study, options, console, rng)
        own = {method: comparison.moments(quantities(x)) for method, x in found.items()}
        reference = study.reference or own.pop("particles")
        console.print(comparison.comparison(reference, own), highlight=False)
        results.append((study, found))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        picture(results, options.seed).savefig(options.output / "sir.png", dpi=120)
    return results


if __name__ == "__main__":
    main()
