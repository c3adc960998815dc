"""Warnings that name the parameters whose chains have not mixed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
APART_R_HAT = 1.05  # above it the draws do not represent the posterior
MODES_R_HAT = 1.5  # above it each chain may be in a mode of its own
FEWEST_DRAWS = 100  # effective draws of a chain
_IN_ALL = 400  # effective draws of all chains that they are drawn on for
_LOOKED_AT, _NEARLY_ALL = 40, 0.95  # entries of a variable; the share that has to have mixed
_MOST_NAMES = 5  # in one warning


def rewrite(reading: Reading) -> str:
    """Return how to rewrite a series that NUTS moves as it is written, or an empty string."""
    kinds = RandomWalkRV | AutoRegressiveRV
    series = [rv.name for rv in reading.model.free_RVs if isinstance(rv.owner.op, kinds)]
    if series:
        with suppress(Declined):
            moved = standardised(reading, reading)[1]
            series = [name for name in series if name not in moved]
    if not series:
        return ""
    return (
        f"{series[0]!r} is moved as it is written: docs/reference/latent_gaussian.md says which "
        f"variables NUTS moves in coordinates that suit the data. Write each series as a variable "
        f"of its own, and give a CustomMechanism its rates=; or replace the series by its steps, "
        f"raw = pm.Normal('raw', shape=...) and start + s * pt.cumsum(raw), and sample with "
        f"target_accept=0.95."
    )


def have_mixed(draws: Mapping[str, np.ndarray], names: Sequence[str]) -> bool:
    """Whether some variables have R-hat below 1.01 and 400 effective draws in all.

    Of fewer than 800 draws, half of them are enough; fewer than 100 a chain tell nothing. Of a
    variable with more than 20 entries 95% of them count, as the worst of many estimates is poor.

    Parameters
    ----------
    draws : mapping of arrays of shape (chains, draws, ...)
    names : sequence of str
        Those that `draws` lacks are left out.
    """
    from arviz_stats.base import array_stats  # takes half a second

    for x in (draws[name] for name in names if name in draws):
        chains, length = x.shape[:2]
        if chains < 2 or length < FEWEST_DRAWS:
            return True
        entries = x.reshape(chains, length, -1)
        entries = entries[..., :: max(1, entries.shape[-1] // _LOOKED_AT)].astype("float64")
        entries = entries[..., np.ptp(entries, axis=(0, 1)) > 0.0]
        if entries.shape[-1]:
            axes = {"chain_axis": 0, "draw_axis": 1}
            r_hat, ess = array_stats.rhat(entries, **axes), array_stats.ess(entries, **axes)
            worst = np.quantile(r_hat, _NEARLY_ALL, method="higher")
            fewest = np.quantile(ess, 1.0 - _NEARLY_ALL, method="lower")
            if worst > LARGEST_R_HAT or fewest < min(_IN_ALL, chains * length / 2):
                return False
    return True


def check_convergence(tree: DataTree, names: list[str], advice: str = "") -> None:
    """Warn of parameters with R-hat above 1.01 or fewer than 100 effective draws a chain.

    Both limits are those of Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Bayesian
    Analysis 16. With one chain, or fewer than 100 draws a chain, nothing is checked. Divergences
    and trees of full depth are reported as PyMC does.

    Parameters
    ----------
    tree : DataTree
    names : list of str
        The parameters; those that the posterior lacks are left out.
    advice : str
        A sentence that says what is known to mix better.
    """
    log_warnings(warn_divergences(tree) + warn_treedepth(tree))
    posterior = tree["posterior"]
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if chains < 2 or draws < FEWEST_DRAWS:
        _log.info("%d chains of %d draws are too few to tell if they have mixed", chains, draws)
        return
    names = [name for name in names if name in posterior]
    if not names:
        return
    import arviz_stats  # takes half a second

    with np.errstate(all="ignore"):  # entries that never change divide by 0
        r_hat = arviz_stats.rhat(tree, var_names=names)
        ess = arviz_stats.ess(tree, var_names=names)
    unmixed, largest = [], 1.0
    for name in names:
        r_hats, effective = np.ravel(r_hat[name]), np.ravel(ess[name]) / chains
        varies = ~np.isnan(r_hats)  # infinite if chains stand still at different values
        worst = r_hats.max(initial=1.0, where=varies)
        fewest = effective.min(initial=np.inf, where=varies & ~np.isnan(effective))
        if posterior[name].dtype.kind == "f" and not varies.all():
            still = np.argwhere(~varies.reshape(posterior[name].shape[2:]))
            where = "" if not varies.any() else f"[{', '.join(map(str, still[0]))}]"
            more = f", nor have {len(still) - 1} more entries" if where and len(still) > 1 else ""
            unmixed.append((0.0, f"{name!r}{where} (has not moved{more})"))
            largest = np.inf
            continue
        largest = max(largest, worst)
        if worst > LARGEST_R_HAT or fewest < FEWEST_DRAWS:
            unmixed.append(
                (fewest, f"{name!r} (R-hat {worst:.3f}, {fewest:,.0f} effective draws a chain)")
            )
    if not unmixed:
        return
    shown = [text for _, text in sorted(unmixed)[:_MOST_NAMES]]
    unnamed = f" and {len(unmixed) - _MOST_NAMES} more" if len(unmixed) > _MOST_NAMES else ""
    finding, default_advice = (
        "There are few effective draws, so that means and intervals are rough",
        "Draw more, or write the model in another way.",
    )
    if largest > LARGEST_R_HAT:
        finding = "The chains have not quite mixed, so that means and intervals are rough"
    if largest > APART_R_HAT:
        finding = "The chains have not mixed, so that the draws do not stand for the posterior"
    if largest > MODES_R_HAT:
        default_advice = (
            "Chains this far apart may each be in a mode of its own. More draws do not help then: "
            "a prior or another release has to tell the modes apart. Or the releases say little of "
            "this variable: then check the R-hat of the quantity that you report, such as a sum of "
            "its cells."
        )
    _log.warning(
        "%s: %s%s, after %s. R-hat should be below %s, effective draws a chain above %d. %s",
        finding, ", ".join(shown), unnamed, f"{draws:,} draws a chain", LARGEST_R_HAT, FEWEST_DRAWS,
        advice or default_advice,
    )  # fmt: skip
