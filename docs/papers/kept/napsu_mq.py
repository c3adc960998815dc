"""Make napsu_mq.json: `python docs/papers/kept/napsu_mq.py adult_pairs.json`, about 15 CPU minutes.

The file has the confidential tables of Adult's ten pairs: `n`, `levels`, and `pairs`, a list of
`of` and `counts`. Columns are coded as NAPSU-MQ's code does; it is no part of this repository.
Parts can be made alone: name them, `exact`, `clt` or `coverage`, after the file.
"""

import json
import sys
from pathlib import Path
from time import process_time

import arviz_stats as az
import numpy as np
import pymc as pm

import pymc_dp as dp

HERE = Path(__file__).with_suffix(".json")
SIGMAS = {"0.1": 230.5, "0.3": 79.9, "0.5": 48.9, "1": 25.1}
FEW = {"cores": 1, "quiet": True, "progressbar": False, "random_seed": 3}


class Adult:
    """The tables, releases of them, and models."""

    def __init__(self, file):
        known = json.loads(Path(file).read_text())
        self.n, self.levels = known["n"], known["levels"]
        self.counts = {tuple(p["of"]): np.array(p["counts"], float) for p in known["pairs"]}

    def release(self, sigma, repeat):
        """Return the tables with noise."""
        rng = np.random.default_rng([int(sigma * 10), repeat])
        return {k: v + rng.normal(0, sigma, v.shape) for k, v in self.counts.items()}

    def model(self, sigma, repeat=0):
        """Return a model of a release, and its rows."""
        with pm.Model() as model:
            rows = dp.LogLinear("rows", self.levels, list(self.counts), self.n, concentration=40.0)
            for pair, z in self.release(sigma, repeat).items():
                data, noise = pm.Data(f"{'_'.join(pair)}_z", z), dp.GaussianMechanism(sigma)
                dp.PrivateObservation("_".join(pair), rows.margin(*pair), noise, observed=data)
        return model, rows


def quantities(tables):
    """Return the five quantities of the page, as functions of tables with leading axes."""
    sex, hours, gain, age = (
        tables[k]
        for k in [("sex", "income"), ("hours", "income"), ("gain", "income"), ("age", "marital")]
    )
    bins = hours.sum(-1)
    return {
        "share of high incomes, women": sex[..., 0, 1] / sex[..., 0, :].sum(-1),
        "mean bin of hours": bins @ np.arange(5.0) / bins.sum(-1),
        "people with gain": gain[..., 1, :].sum(-1),
        "log odds ratio, sex and income": np.log(
            sex[..., 1, 1] * sex[..., 0, 0] / (sex[..., 1, 0] * sex[..., 0, 1])
        ),
        "share married, third age bin": age[..., 2, 0] / age[..., 2, :].sum(-1),
    }


def without_model(tables, sigma, n):
    """Return standard errors by the delta method: of sampling, as if of counts, and of noise."""
    sampling, noise = {}, {}
    for name in quantities(tables):
        of_sampling, of_noise = 0.0, 0.0
        for pair, z in tables.items():
            slope = np.zeros(z.shape)
            for cell in np.ndindex(*z.shape):
                for sign in (1, -1):
                    moved = z.copy()
                    moved[cell] += sign * 0.5
                    slope[cell] += sign * quantities({**tables, pair: moved})[name]
            p = z / n
            of_sampling += n * ((slope**2 * p).sum() - (slope * p).sum() ** 2)
            of_noise += sigma**2 * (slope**2).sum()
        sampling[name], noise[name] = np.sqrt(max(of_sampling, 0.0)), np.sqrt(of_noise)
    return sampling, noise


def probabilities(rows, idata):
    """Return the probabilities of the cells of all cliques, (chain, draw, cell)."""
    found = [rows.probabilities(idata, *c, random_seed=9).to_numpy() for c in rows.tree.cliques]
    return np.concatenate([p.reshape(*p.shape[:2], -1) for p in found], axis=-1)


def sampled(adult, sigma, **options):
    """Sample one release; return what it took, and the probabilities of cells."""
    model, rows = adult.model(sigma)
    start = process_time()
    idata = dp.sample(model, draws=1000, tune=500, **options, **FEW)
    taken = process_time() - start
    p = probabilities(rows, idata)
    ess = [float(az.ess(p[..., j])) for j in range(p.shape[-1])]
    rhat = [float(az.rhat(p[..., j])) for j in range(p.shape[-1])]
    return {
        "cpu_s": taken,
        "least_ess": min(ess),
        "median_ess": float(np.median(ess)),
        "rhat": max(rhat),
        "mean": p.mean((0, 1)).tolist(),
        "sd": p.std((0, 1)).tolist(),
    }


def covered(adult, sigma, repeats=15):
    """Return for each release intervals, errors without a model, and the truth."""
    model, rows = adult.model(sigma)
    step, start = dp.CliqueGibbs([rows.rv], model=model, rng=1), model.initial_point()
    found = []
    for repeat in range(repeats):
        z = adult.release(sigma, repeat)
        pm.set_data({f"{'_'.join(k)}_z": v for k, v in z.items()}, model=model)
        step.setup_chain(np.random.default_rng(repeat), 100, 1000)
        point, draws = start, []
        for sweep in range(1100):
            point, _ = step.step(point)
            if sweep >= 100:
                draws.append(point["rows"])
        tables = {k: rows.margin(*k).owner.op.of(np.array(draws)) for k in z}
        values = quantities(tables)
        sampling, noise = without_model(z, sigma, adult.n)
        found.append({
            name: {
                "interval": np.quantile(values[name], [0.025, 0.975]).tolist(),
                "noisy": float(value),
                "sampling": float(sampling[name]),
                "noise": float(noise[name]),
            }
            for name, value in quantities(z).items()
        })  # fmt: skip
    return found


def main():
    """Sample and write."""
    adult, parts = Adult(sys.argv[1]), sys.argv[2:] or ["exact", "clt", "coverage"]
    kept = json.loads(HERE.read_text()) if HERE.exists() else {}
    if "exact" in parts:
        kept["exact"] = {e: sampled(adult, s, chains=4) for e, s in SIGMAS.items()}
    if "clt" in parts:
        options = {"chains": 2, "approximate": "clt"}
        kept["clt"] = {e: sampled(adult, SIGMAS[e], **options) for e in ("0.1", "1")}
    if "coverage" in parts:
        truth = quantities(adult.counts)
        kept["truth"] = {name: float(value) for name, value in truth.items()}
        kept["coverage"] = {e: covered(adult, SIGMAS[e]) for e in ("0.1", "1")}
    HERE.write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
