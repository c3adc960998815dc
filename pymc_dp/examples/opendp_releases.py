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

Run it with ``python -m pymc_dp.examples.opendp_releases [--epsilon E] [--draws N] [--output DIR]
[--seed S]``; it needs ``pip install "pymc-dp[opendp]"``.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
from pymc_dp.examples import comparison

PATIENTS, RANGE = 600, (60.0, 200.0)
EDGES = (100.0, 120.0, 130.0, 140.0, 160.0)
CLASSES = ("under 100", "100 to 120", "120 to 130", "130 to 140", "140 to 160", "160 and over")
HIGH = 140.0
LAW = (128.0, 17.0)  # of the simulated pressures: mean and standard deviation
PRIOR = (120.0, 30.0, 30.0)  # mean and sd of that of the mean; scale of that of the sd
LABELS = {
    "mu": "mean (mmHg)",
    "sigma": "standard deviation (mmHg)",
    "high": f"share above {HIGH:g} mmHg",
}
# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, GREEN = "#0072B2", "#009E73"


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
    described = {"histogram": {"dims": "class", "coords": {"class": CLASSES}}}
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
    return {"mu": mu, "sigma": sigma, "high": stats.norm.sf(HIGH, mu, sigma)}


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
    table = Table(title="What was published", title_justify="left", title_style="bold", box=None)
    for column in ("release", "value", "noise", "ε"):
        table.add_column(column)
    for name, text in texts.items():
        release = dp.Release.from_json(text)
        assert release.privacy is not None
        value = ", ".join(f"{x:.1f}" if isinstance(x, float) else str(x) for x in _flat(release))
        [scale] = release.mechanism.parameters
        noise = f"{type(release.mechanism).__name__}(scale={float(scale.eval()):.3g})"
        table.add_row(name, value, noise, f"{release.privacy.epsilon:.3f}")
    return table


def _flat(release: dp.Release) -> list:
    return release.value.ravel().tolist()


def picture(ours: comparison.Draws, reference: comparison.Draws) -> Figure:
    """Draw the posterior given the releases over the one given the records."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for ax, (name, label) in zip(figure.subplots(1, 3), LABELS.items(), strict=True):
        low, high = np.quantile(np.concatenate([ours[name], reference[name]]), [0.002, 0.998])
        bins = np.linspace(low, high, 60)
        for draws, colour, what in (
            (reference[name], GREEN, "non-private: the records themselves"),
            (ours[name], BLUE, "private: the three OpenDP releases"),
        ):
            ax.hist(draws, bins, density=True, color=colour, alpha=0.3)
            ax.hist(draws, bins, density=True, color=colour, histtype="step", lw=1.6, label=what)
        ax.set_xlabel(label)
        ax.set_yticks([])
        ax.spines[["top", "right", "left"]].set_visible(False)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, ncols=2, frameon=False, loc="outside lower center")
    figure.suptitle(f"Blood pressure of {PATIENTS} patients: what privacy costs")
    return figure


def main(arguments: Sequence[str] | None = None) -> dict[str, comparison.Draws]:
    """Run the example."""
    parser = argparse.ArgumentParser(
        prog="python -m pymc_dp.examples.opendp_releases",
        description=__doc__.split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--epsilon", type=float, default=1.0, help="in total; default 1")
    parser.add_argument("--draws", type=int, default=2000, help="of each of four chains")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("opendp_output"),
        help="folder for the releases and the picture; default %(default)s",
    )
    parser.add_argument("--seed", type=int, default=1, help="of data and draws, not of the noise")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.WARNING)
    console = comparison.console()

    pressure = simulate(options.seed)
    try:
        texts = publish(pressure, options.epsilon)
    except ImportError as error:
        parser.exit(1, f"{error}\n")
    console.print(published(texts))
    text = texts["mean"]
    console.print(f"\nThe mean, as it left the clinic:\n{text}\n", highlight=False, soft_wrap=True)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (options.output / f"{name}.json").write_text(text, encoding="utf-8")

    model = build(texts)
    idata = comparison.timed(console, "posterior", lambda: fit(model, options.draws, options.seed))
    posterior = idata["posterior"].to_dataset()[["mu", "sigma"]]
    ours = quantities(*(posterior[name].to_numpy().ravel() for name in ("mu", "sigma")))
    reference = non_private(pressure, 20_000, options.seed)
    console.print()
    console.print(
        comparison.comparison(
            {LABELS[k]: v for k, v in comparison.moments(reference).items()},
            {"private": {LABELS[k]: v for k, v in comparison.moments(ours).items()}},
            "Posterior given the releases, beside that given the records (reference)",
        )
    )
    r_hat = max(float(x) for x in az.rhat(posterior).data_vars.values())
    ess = min(float(x) for x in az.ess(posterior).data_vars.values())
    console.print(f"Worse R-hat {r_hat:.3f}, smaller bulk ESS {ess:,.0f}", highlight=False)
    path = options.output / "posteriors.png"
    picture(ours, reference).savefig(path, dpi=130)
    console.print(f"Written: {path}, and the releases", highlight=False, soft_wrap=True)
    return {"private": ours, "non-private": reference}


if __name__ == "__main__":
    main()
