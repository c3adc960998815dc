"""Normal records with a released mean and variance: the collapsed rungs.

Takes about two minutes. The baselines are what people have today: PyMC's
own default sampler (nutpie) on the confidential records, and a plain numpy Gibbs sampler with the
published updates (scale mixture for the mean, inversion of incomplete gammas for the variance).
"""

import time

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from rich.console import Console
from rich.table import Table
from scipy import special

import pymc_dp as dp
from pymc_dp.examples.blood_lead import build
from pymc_dp.kernels.moments.gaussian_chain import run_sweeps
from pymc_dp.reading.model import Reading
from pymc_dp.routes import gaussian as fused

SWEEPS = 300_000
DRAWS = 50_000


def published_sweeps(kernel, count: int, seed: int = 0) -> float:
    """Seconds a sweep of a plain numpy Gibbs sampler with the published updates."""
    rng = np.random.default_rng(seed)
    n, a = kernel.n, (kernel.n - 1) / 2
    b1, lam = 1 / kernel.lam_mean, kernel.lam_var
    mu, s2, ybar, var = kernel.z_mean, kernel.z_var, kernel.z_mean, kernel.z_var
    began = time.thread_time()
    for _ in range(count):
        omega2 = 1 / rng.wald(1 / (b1 * max(abs(kernel.z_mean - ybar), 1e-12)), b1**-2)
        precision = n / s2 + 1 / omega2
        ybar = (n / s2 * mu + kernel.z_mean / omega2) / precision
        ybar += rng.standard_normal() / np.sqrt(precision)
        s2 = min(s2, 0.99 * (n - 1) / (2 * lam))  # the restriction that the paper needs
        rate = a / s2
        lower = special.gammainc(a, (rate - lam) * kernel.z_var)
        upper = special.gammaincc(a, (rate + lam) * kernel.z_var)
        log_left = -a * np.log1p(-lam / rate) - lam * kernel.z_var + np.log(lower + 1e-300)
        log_right = -a * np.log1p(lam / rate) + lam * kernel.z_var + np.log(upper + 1e-300)
        u = rng.random()
        if np.log(rng.random()) < -np.logaddexp(0, log_right - log_left):
            var = special.gammaincinv(a, u * lower) / (rate - lam)
        else:
            var = special.gammainccinv(a, u * upper) / (rate + lam)
        mu = ybar + np.sqrt(s2 / n) * rng.standard_normal()
        s2 = ((n - 1) * var + n * (ybar - mu) ** 2) / 2 / rng.standard_gamma((n - 2) / 2)
    return (time.thread_time() - began) / count


def kernel_table(console: Console) -> None:
    """Time of a sweep of the fused kernel, beside the plain sampler."""
    table = Table(title="Fused Gibbs kernel: one sweep, one thread")
    for column in ("model", "n", "ns a sweep", "ESS a sweep, mu", "sigma2", "plain numpy / ours"):
        table.add_column(column, justify="right")
    for prior in ("flat", "informative"):
        for bounded in (False, True):
            model = build(prior, bounded)
            base = fused.kernel_model(model, fused.covered(Reading(model)))
            for n in (10.0, 43.0, 1e6, 1e9) if prior == "flat" else (43.0,):
                kernel = base._replace(
                    n=n, lam_mean=base.lam_mean * n / 43, lam_var=base.lam_var * n / 43
                )
                rng = np.random.default_rng(1)
                state = run_sweeps(rng, fused.start(kernel, rng), kernel, 1, np.empty((2000, 2)))
                out = np.empty((SWEEPS, 2))
                times = []
                for _ in range(3):
                    began = time.thread_time()  # other processes do not count
                    state = run_sweeps(rng, state, kernel, 1, out)
                    times.append((time.thread_time() - began) / SWEEPS)
                ours = float(np.median(times))
                ess = [float(az.ess(out[None, :, j])) / SWEEPS for j in (0, 1)]
                ratio = ""
                if prior == "flat" and not bounded and n == 43.0:
                    ratio = f"{published_sweeps(kernel, 5_000) / ours:.0f}"
                table.add_row(
                    f"{prior}{', bounded' if bounded else ''}",
                    f"{n:g}",
                    f"{ours * 1e9:.0f}",
                    f"{ess[0]:.3f}",
                    f"{ess[1]:.3f}",
                    ratio,
                )
    console.print(table)


def effective_rate(idata) -> dict[str, float]:
    """Effective draws a second of the sampling stage."""
    posterior = idata["posterior"]
    seconds = posterior.attrs["sampling_time"]
    return {name: float(az.ess(posterior)[name]) / seconds for name in ("mu", "sigma2")}


def sample_table(console: Console) -> None:
    """Effective draws a second of `dp.sample`, beside nutpie on the records."""
    table = Table(title=f"dp.sample, two chains on two cores, {DRAWS:,} draws each")
    for column in ("model", "route", "ESS/s mu", "ESS/s sigma2", "ours / nutpie on records"):
        table.add_column(column, justify="right")
    plain = None
    for prior in ("flat", "informative"):
        for bounded in (False, True):
            model = build(prior, bounded)
            idata = dp.sample(model, draws=DRAWS, chains=2, cores=2, random_seed=1, quiet=True)
            ours = effective_rate(idata)
            ratio = ""
            if plain is None:
                records = _plain_nutpie(model)
                plain = effective_rate(records)
                ratio = f"{ours['mu'] / plain['mu']:.0f} / {ours['sigma2'] / plain['sigma2']:.0f}"
                table.add_row(
                    "flat", "nutpie on the records", f"{plain['mu']:,.0f}",
                    f"{plain['sigma2']:,.0f}", "1 / 1",
                )  # fmt: skip
            table.add_row(
                f"{prior}{', bounded' if bounded else ''}",
                idata["posterior"].attrs["route"],
                f"{ours['mu']:,.0f}",
                f"{ours['sigma2']:,.0f}",
                ratio,
            )
    marginal = dp.sample(
        build("flat", False),
        rung="marginal",
        draws=20_000,
        chains=2,
        cores=2,
        random_seed=1,
        progressbar=False,
        quiet=True,
    )
    rate = effective_rate(marginal)
    table.add_row(
        "flat", "nutpie on the marginal", f"{rate['mu']:,.0f}", f"{rate['sigma2']:,.0f}", ""
    )
    console.print(table)


def _plain_nutpie(model):
    """PyMC's own way: the same density without our tags, on the 43 records."""
    released = model["release"]
    value = model.rvs_to_values[released].data
    scale = released.owner.inputs[2].data
    with pm.Model():
        mu = pm.Flat("mu")
        sigma2 = pm.HalfFlat("sigma2", initval=300.0)
        lead = pm.Normal("lead", mu, pt.sqrt(sigma2), shape=43)
        statistic = pt.stack([lead.mean(), lead.var(ddof=1)])
        pm.Laplace("release", statistic, scale, observed=value)
        return pm.sample(
            draws=5_000,
            chains=2,
            cores=2,
            random_seed=1,
            nuts_sampler="nutpie",
            initvals={"mu": 34.0, "lead": np.linspace(-40, 110, 43)},
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )


def step_table(console: Console) -> None:
    """Time of a recorded draw of the Gibbs steps inside PyMC."""
    table = Table(title="pm.sample(step=dp.steps(model)) on the statistics rung, one process")
    for column in ("model", "us a draw"):
        table.add_column(column, justify="right")
    for prior in ("flat", "informative"):
        for bounded in (False, True):
            collapsed = dp.collapse(build(prior, bounded), to="statistics")
            arguments = {
                "chains": 1,
                "cores": 1,
                "progressbar": False,
                "quiet": True,
                "random_seed": 1,
                "compute_convergence_checks": False,
            }
            with collapsed:
                step = dp.steps(collapsed)
                pm.sample(step=step, draws=50, tune=50, **arguments)  # compiled after this
                idata = pm.sample(step=step, draws=20_000, tune=0, **arguments)
            seconds = idata["posterior"].attrs["sampling_time"]
            table.add_row(
                f"{prior}{', bounded' if bounded else ''}", f"{seconds / 20_000 * 1e6:.0f}"
            )
    console.print(table)


def main(console: Console) -> None:
    """Print all tables."""
    kernel_table(console)
    sample_table(console)
    step_table(console)
