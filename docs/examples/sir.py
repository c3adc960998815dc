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

Run it with ``python3 run.py example sir [--epsilon E] [--method sppe|sple|both|none]
[--rounds R] [--simulations N] [--output DIR]``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import batched
from pathlib import Path

import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
import report
from sir_simulator import (
    Epidemic,
    Weighted,
    binomial_log_mass,
    posterior,
    simulate,
)

# Anonymous (1978). Influenza in a boarding school. British Medical Journal 1, 587.
BOYS, IN_BED = 763, (1, 3, 8, 28, 76, 222, 293, 257, 237, 192)

ALMOST = "ε = 1000"  # its noise is that of four boys: next to no privacy
COLOURS = {
    ALMOST: report.GREEN,
    "particles": "black",
    "sppe": report.BLUE,
    "sple": report.ORANGE,
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
    return np.stack([report.draws(idata, name) for name in ("log_beta", "log_gamma")], axis=1)


def particles(study: Study, rng: np.random.Generator, **kwargs) -> Weighted:
    """Sample the exact posterior given the release, by particle importance sampling."""
    return posterior(study.epidemic, study.log_mass, rng, **kwargs)


DRAWS = 10_000  # resampled from weighted draws


def fit(study: Study, options, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the draws of log beta and log gamma of every method."""
    exact = {}
    if study.confidential is not None or not options.no_particles:
        with report.timed("particles"):
            exact["particles"] = particles(study, rng, draws=options.draws)
    if study.confidential is not None:
        # Little noise takes many particles, and a start from what is known already.
        size = {"draws": options.draws // 2, "particles": 400, "rounds": 2}
        almost, start = school(1000.0, options.seed), exact["particles"]
        with report.timed(f"particles, {ALMOST}"):
            exact[ALMOST] = particles(almost, rng, start=start, **size)
    found = {}
    for name, weighted in exact.items():
        report.say(f"Effective draws, {name}: {weighted.ess:,.0f}")
        found[name] = weighted.resample(rng, DRAWS)
    for method, idata in report.neural_fits(build(study), options):
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
    figure = report.figure(len(fits), 2, (11, 3.9 * len(fits)), width_ratios=[3, 2])
    for (study, found), (left, right) in zip(fits, batched(figure.axes, 2), strict=True):
        _draw_curves(left, study, found, rng)
        _draw_r0(right, study, found)
    return figure


def _draw_curves(ax, study: Study, found: dict[str, np.ndarray], rng) -> None:
    """Draw the predictions of every method from the release."""
    for method, draws in found.items():
        if method == ALMOST:
            continue
        times, curves = predictive(study, draws, rng)
        low, middle, high = report.ends(curves, 0.9)
        ax.fill_between(times, low, high, color=COLOURS[method], alpha=0.15, lw=0)
        ax.plot(times, middle, color=COLOURS[method], lw=1.8, label=f"{method}: median and 90%")
    times = study.epidemic.times
    ax.plot(times, study.unbiased, "x", color=report.PINK, label="released")
    if study.confidential is not None:
        ax.plot(times, study.confidential, "o", ms=5, color=report.GREEN, label="confidential")
    ax.set(xlabel="day", ylabel="infected")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_title(f"{study.title}: new epidemics that take off", loc="left", fontsize=11)
    ax.legend(frameon=False)


def _draw_r0(ax, study: Study, found: dict[str, np.ndarray]) -> None:
    r0 = {method: quantities(draws)["R₀"] for method, draws in found.items()}
    low = min(np.quantile(x, 0.002) for x in r0.values())
    high = max(np.quantile(x, 0.99) for x in r0.values())
    grid = np.linspace(low, high, 400)
    for method, values in r0.items():
        # Weighted draws come several times, which must not make the curve less smooth.
        density = stats.gaussian_kde(values, len(np.unique(values)) ** -0.2)(grid)
        ax.plot(grid, density, color=COLOURS[method], lw=2, label=method)
    if study.reference is not None:
        mean, sd = study.reference["R₀"]
        ax.axvline(mean, color=report.GREY, ls="--", lw=1.2, label="reference: mean ± sd")
        ax.axvspan(mean - sd, mean + sd, color=report.GREY, alpha=0.1, lw=0)
    ax.set(xlabel="R₀", yticks=[], ylim=(0, 1.25 * ax.get_ylim()[1]), xlim=(low, high))
    ax.set_title("Basic reproduction number", loc="left", fontsize=11)
    ax.legend(frameon=False, loc="upper right")
    ax.spines["left"].set_visible(False)


def main(
    arguments: Sequence[str] | None = None,
) -> list[tuple[Study, dict[str, np.ndarray]]]:
    """Run the example."""
    args = report.options(
        __doc__, arguments, epsilon=10.0, study=("both", "measles", "school"),
        **report.NEURAL, no_particles=False, draws=2000, output=Path,
    )  # fmt: skip
    rng = np.random.default_rng(args.seed)
    studies = [measles()] * (args.study != "school")
    studies += [school(args.epsilon, args.seed)] * (args.study != "measles")
    results = []
    for study in studies:
        epsilon = float(np.sum(study.mechanism.epsilon())) * len(study.released)
        report.say(
            f"[bold]{study.title}[/]",
            f"{study.mechanism}, ten times: ε = {epsilon:.3f}; "
            f"released: {', '.join(map(str, study.released))}"
            + (f" (privatised with seed {args.seed})" if study.confidential is not None else ""),
        )
        found = fit(study, args, rng)
        named = {method: quantities(draws) for method, draws in found.items()}
        reference = study.reference or report.moments(named.pop("particles"))
        report.say(report.comparison(reference, named))
        results.append((study, found))
    if args.output:
        report.write(args.output, sir=picture(results, args.seed))
    return results


if __name__ == "__main__":
    main()
