"""An installed package samples the README's model shortly: python -I tests/smoke.py."""

import numpy as np
import pymc as pm

import pymc_dp as dp


def main() -> None:
    """Sample shortly; say which version did."""
    with pm.Model():
        mu = pm.Normal("mu", 30, 20)
        sigma = pm.HalfNormal("sigma", 20)
        lead = pm.Normal("lead", mu, sigma, shape=43)
        dp.PrivateObservation(
            "release",
            [lead.mean(), lead.var(ddof=1)],
            dp.LaplaceMechanism.from_epsilon([0.25, 0.25], sensitivity=[100 / 43, 100**2 / 43]),
            observed=[34.3, 2224.8],
        )
        idata = dp.sample(draws=50, tune=50, chains=2, random_seed=1, progressbar=False)
    for name in ("mu", "sigma"):
        draws = idata.posterior[name].values
        if draws.shape != (2, 50) or not np.isfinite(draws).all() or not draws.std() > 0:
            raise SystemExit(f"{name}: {draws}")
    print("pymc_dp", dp.__version__)  # noqa: T201


# Windows and macOS start chains in processes that import this file.
if __name__ == "__main__":
    main()
