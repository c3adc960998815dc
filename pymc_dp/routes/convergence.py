"""Whether chains have mixed, by name of the parameter."""

from __future__ import annotations

import logging
from contextlib import suppress

import numpy as np
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pymc.stats.convergence import log_warnings, warn_divergences, warn_treedepth
from xarray import DataTree

from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.model import Reading
from pymc_dp.routes.coordinates import standardised

_log = logging.getLogger("pymc.dp")

LARGEST_R_HAT = 1.01
APART_R_HAT = 1.05  # above which chains disagree about what they are of
MODES_R_HAT = 1.5
FEWEST_DRAWS = 100  # effective ones, of a chain
_MOST_NAMES = 5


def rewrite(reading: Reading) -> str:
    """Return what to write in the place of a series that is moved as it is written."""
    kinds = RandomWalkRV | AutoRegressiveRV
    series = [rv.name for rv in reading.model.free_RVs if isinstance(rv.owner.op, kinds)]
    if series:
        with suppress(Declined):
            moved = standardised(reading, reading)[1]
            series = [name for name in series if name not in moved]
    if not series:
        return ""
    return (
        f"{series[0]!r} is moved as it is written: docs/reference/latent_gaussian.md says what is "
        f"moved in coordinates that suit the data. Write one variable a series, and rates= of "
        f"noise of your own; or its steps, raw = pm.Normal('raw', shape=...), and start + s * "
        f"pt.cumsum(raw) in its place, with target_accept=0.95."
    )


def check_convergence(tree: DataTree, names: list[str], advice: str = "") -> None:
    """Warn, once, of parameters with R-hat above 1.01 or fewer than 100 effective draws a chain.

    Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Bayesian Analysis 16. It takes two
    chains, of 100 draws at least; of shorter ones nothing can be said. Divergences and trees of
    full depth are reported as PyMC does.

    Parameters
    ----------
    tree : DataTree
    names : list of str
        The parameters, as far as the posterior has them.
    advice : str
        What is known to do better, as a sentence.
    """
    log_warnings(warn_divergences(tree) + warn_treedepth(tree))
    posterior = tree["posterior"]
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if chains < 2 or draws < FEWEST_DRAWS:
        _log.info("%d chains of %d draws: too little to tell if they have mixed", chains, draws)
        return
    names = [name for name in names if name in posterior]
    if not names:
        return
    import arviz_stats  # with what it needs, half a second

    with np.errstate(all="ignore"):  # of entries that never change
        r_hat = arviz_stats.rhat(tree, var_names=names)
        ess = arviz_stats.ess(tree, var_names=names)
    bad, apart = [], 1.0
    for name in names:
        of_entries, effective = np.ravel(r_hat[name]), np.ravel(ess[name]) / chains
        varies = ~np.isnan(of_entries)  # chains that stand still at different values: infinite
        worst = of_entries.max(initial=1.0, where=varies)
        fewest = effective.min(initial=np.inf, where=varies & ~np.isnan(effective))
        if posterior[name].dtype.kind == "f" and not varies.any():
            bad.append((0.0, f"{name!r} (has not moved)"))
            apart = np.inf
            continue
        apart = max(apart, worst)
        if worst > LARGEST_R_HAT or fewest < FEWEST_DRAWS:
            bad.append(
                (fewest, f"{name!r} (R-hat {worst:.3f}, {fewest:,.0f} effective draws a chain)")
            )
    if not bad:
        return
    shown = [text for _, text in sorted(bad)[:_MOST_NAMES]]
    more = f" and {len(bad) - _MOST_NAMES} more" if len(bad) > _MOST_NAMES else ""
    what, otherwise = (
        "There are few effective draws, so that means and intervals are rough",
        "Draw more, or write the model in another way.",
    )
    if apart > LARGEST_R_HAT:
        what = "The chains have not quite mixed, so that means and intervals are rough"
    if apart > APART_R_HAT:
        what = "The chains have not mixed, so that the draws do not stand for the posterior"
    if apart > MODES_R_HAT:
        otherwise = (
            "Chains this far apart may each be in a mode of its own, where more draws do not help: "
            "a prior or another release has to tell the modes apart. Or the releases hardly tell "
            "of this variable: look at the R-hat of what you want to know, a sum of its cells say."
        )
    _log.warning(
        "%s: %s%s, of %s. R-hat should be below %s, effective draws a chain above %d. %s",
        what, ", ".join(shown), more, f"{draws:,} draws", LARGEST_R_HAT, FEWEST_DRAWS,
        advice or otherwise,
    )  # fmt: skip
