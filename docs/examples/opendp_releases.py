"""A mean, a variance and a histogram that OpenDP released: from the files to the posterior.

A clinic knows the systolic blood pressure of 600 patients. With OpenDP its curator publishes the
mean and the variance, each value clamped to 60 to 200 mmHg, and how many patients fall into each
of six classes, for a total privacy loss ε of replacing one patient. Each number becomes a
`pymc_dp.Release`, and what leaves the clinic is its JSON text. The analyst reads the texts, writes
a model of the confidential pressures, and gets the posterior of their mean, standard deviation and
the share above 140 mmHg. Beside it stands the posterior that the clinic itself could compute from
the records.

The patients are simulated. OpenDP draws its noise from the system's source of randomness, so that
every run publishes other numbers.

Run it with ``python3 run.py example opendp_releases [--epsilon E] [--draws N] [--output DIR]
[--seed S]``; it needs ``pip install "pymc-dp[opendp]"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
import report

PATIENTS, RANGE = 600, (60.0, 200.0)
EDGES = (100.0, 120.0, 130.0, 140.0, 160.0)
CLASSES = ("under 100", "100 to 120", "120 to 130", "130 to 140", "140 to 160", "160 and over")
HIGH = 140.0
LAW = (128.0, 17.0)  # of the simulated pressures: mean and standard deviation
PRIOR = (120.0, 30.0, 30.0)  # mean and sd of that of the mean; scale of that of the sd
LABELS = ("mean (mmHg)", "standard deviation (mmHg)", f"share above {HIGH:g} mmHg")


def simulate(seed: int) -> np.ndarray:
    """Draw the confidential pressures."""
    return np.random.default_rng(seed).normal(*LAW, PATIENTS)


def publish(pressure: np.ndarray, epsilon: float) -> dict[str, str]:
    """Release the three statistics with OpenDP, as JSON texts; this is the curator's part."""
    try:
        import opendp.prelude as od
    except ImportError as error:
        raise ImportError(
            'this example releases data with OpenDP: pip install "pymc-dp[opendp]"'
        ) from error
    od.enable_features("contrib")
    context = od.Context.compositor(
        data=pressure.tolist(),
        # The number of patients is public. Replacing one takes one out and adds one.
        privacy_unit=od.unit_of(contributions=2),
        privacy_loss=od.loss_of(epsilon=epsilon),
        split_evenly_over=3,
        domain=od.vector_domain(od.atom_domain(T=float, nan=False), size=len(pressure)),
    )
    clamped = context.query().clamp(RANGE)
    classes = context.query().find_bin(list(EDGES))
    queries = {
        "mean": clamped.mean().laplace(),
        "variance": clamped.variance().laplace(),
        "histogram": classes.count_by_categories(
            list(range(len(CLASSES))), null_category=False
        ).laplace(),
    }
    described: dict[str, dict[str, Any]] = {
        "histogram": {"dims": "class", "coords": {"class": CLASSES}}
    }
    return {
        name: dp.Release.from_opendp(
            query, query.release(), name=name, **described.get(name, {})
        ).to_json()
        for name, query in queries.items()
    }


def build(texts: Mapping[str, str]) -> pm.Model:
    """Write the model of the confidential pressures, with what was published of them."""
    releases = {name: dp.Release.from_json(text) for name, text in texts.items()}
    with pm.Model() as model:
        mu = pm.Normal("mu", *PRIOR[:2])
        sigma = pm.HalfNormal("sigma", PRIOR[2])
        pressure = pm.Normal("pressure", mu, sigma, shape=PATIENTS)
        clamped = pressure.clip(*RANGE)
        below = [(pressure < edge).sum() for edge in EDGES]
        counts = [b - a for a, b in zip([0, *below], [*below, PATIENTS], strict=True)]
        dp.PrivateObservation("mean", clamped.mean(), releases["mean"])
        dp.PrivateObservation("variance", clamped.var(ddof=1), releases["variance"])
        dp.PrivateObservation("histogram", counts, releases["histogram"])
    return model


def quantities(mu: np.ndarray, sigma: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is reported, of draws of the two parameters."""
    return dict(zip(LABELS, (mu, sigma, stats.norm.sf(HIGH, mu, sigma)), strict=True))


def fit(model: pm.Model, draws: int, seed: int) -> DataTree:
    """Sample the posterior given the releases."""
    return dp.sample(model, draws=draws, chains=4, random_seed=seed, progressbar=False)


def non_private(pressure: np.ndarray, draws: int, seed: int) -> dict[str, np.ndarray]:
    """Draw from the posterior given the records themselves, on a fine grid."""
    n, mean, sd = len(pressure), pressure.mean(), pressure.std()
    reach = np.linspace(-6, 6, 601)
    mu = mean + reach[:, None] * sd / np.sqrt(n)
    sigma = sd * np.exp(reach / np.sqrt(2 * n))
    logp = -n * np.log(sigma) - n * (sd**2 + (mean - mu) ** 2) / (2 * sigma**2)
    logp += stats.norm.logpdf(mu, *PRIOR[:2]) + stats.halfnorm.logpdf(sigma, scale=PRIOR[2])
    weight = np.exp(logp - logp.max()) * sigma  # the grid is even in log sigma
    rng = np.random.default_rng(seed)
    cell = rng.choice(weight.size, size=draws, p=weight.ravel() / weight.sum())
    # Anywhere within the cell, so that no histogram shows the grid.
    within = rng.uniform(-0.5, 0.5, size=(2, draws)) * (reach[1] - reach[0])
    row, column = reach[np.array(np.unravel_index(cell, weight.shape))] + within
    return quantities(mean + row * sd / np.sqrt(n), sd * np.exp(column / np.sqrt(2 * n)))


def published(texts: Mapping[str, str]) -> Table:
    """Tabulate what left the clinic."""
    rows = []
    for name, text in texts.items():
        release = dp.Release.from_json(text)
        assert release.privacy is not None
        value = ", ".join(f"{x:.5g}" for x in release.value.ravel())
        [scale] = release.mechanism.parameters
        noise = f"{type(release.mechanism).__name__}(scale={float(scale.eval()):.3g})"
        rows.append((name, value, noise, release.privacy.epsilon))
    headings = ("release", "value", "noise", "ε")
    return report.table("What was published", headings, rows, number=".3f")


def picture(ours: report.Draws, reference: report.Draws) -> Figure:
    """Draw the posterior given the releases over the one given the records."""
    title = f"Blood pressure of {PATIENTS} patients: what privacy costs"
    figure = report.figure(1, 3, (11, 3.6), title)
    for ax, name in zip(figure.axes, LABELS, strict=True):
        low, high = np.quantile(np.concatenate([ours[name], reference[name]]), [0.002, 0.998])
        bins = np.linspace(low, high, 60).tolist()
        for draws, colour, what in (
            (reference[name], report.GREEN, "non-private: the records themselves"),
            (ours[name], report.BLUE, "private: the three OpenDP releases"),
        ):
            ax.hist(draws, bins, density=True, histtype="stepfilled", fc=(colour, 0.3), ec=colour,
                    lw=1.6, label=what)  # fmt: skip
        ax.set(xlabel=name, yticks=[])
        ax.spines["left"].set_visible(False)
    report.legend(figure)
    return figure


def main(arguments: Sequence[str] | None = None) -> dict[str, report.Draws]:
    """Run the example."""
    args = report.options(__doc__, arguments, epsilon=1.0, draws=2000,
                          output=Path("opendp_output"))  # fmt: skip
    pressure = simulate(args.seed)
    try:
        texts = publish(pressure, args.epsilon)
    except ImportError as error:
        raise SystemExit(str(error)) from None
    report.say(published(texts), f"\nThe mean, as it left the clinic:\n{texts['mean']}\n")
    args.output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (args.output / f"{name}.json").write_text(text, encoding="utf-8")

    with report.timed("posterior"):
        idata = fit(build(texts), args.draws, args.seed)
    ours = quantities(report.draws(idata, "mu"), report.draws(idata, "sigma"))
    reference = non_private(pressure, 20_000, args.seed)
    r_hat, ess = report.convergence(idata, "mu", "sigma")
    report.say(
        report.comparison(
            report.moments(reference),
            {"private": ours},
            "Posterior given the releases, beside that given the records (reference)",
        ),
        f"Worse R-hat {r_hat}, smaller bulk ESS {ess}",
    )
    report.write(args.output, posteriors=picture(ours, reference))
    return {"private": ours, "non-private": reference}


if __name__ == "__main__":
    main()
