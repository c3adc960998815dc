"""What `check` found, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pymc as pm
from pymc.distributions.custom import CustomDistRV

from pymc_dp.ladder.check.releases import ROUNDING, SIGMAS, SIMULATED

_TELLS = 0.25  # an error above which a point tells nothing
_AGREES = 0.3  # the largest difference, with its error, that is called agreement


@dataclass(frozen=True)
class Check:
    """What `check` found; printed, it says so in words.

    Attributes
    ----------
    agrees : bool or None
        Whether the densities agree; None if that cannot be told.
    table : pandas.DataFrame
        A row for each point: ``log_density`` of the package, ``monte_carlo``, their ``difference``
        and its standard ``error``, and ``compared``, the releases as they were "published" or
        "simulated" ones near them. Parameters that are single numbers have a column each.
    text : str
        What is said.
    """

    agrees: bool | None
    table: pd.DataFrame
    text: str

    def __repr__(self) -> str:
        """Return what was found, in words."""
        return self.text


def in_words(
    model: pm.Model, names: Sequence[str], points: list, rows: list[tuple], compared: str
) -> Check:
    """Return what was found at points, of which `rows` have the numbers of the table."""
    table = pd.DataFrame(rows, columns=["log_density", "monte_carlo", "difference", "error"])
    single = [i for i, value in enumerate(points[0]) if not np.ndim(value)]
    for place, i in enumerate(single):
        table.insert(place, names[i], [point[i].item() for point in points])
    table["compared"] = compared
    known, off = table["error"] < _TELLS, table["difference"].abs()
    # NaN is no density. A number there is a difference, whatever it is.
    excess = (off - SIGMAS * table["error"]).mask(table["log_density"].isna(), np.inf)
    differs = known & (excess > ROUNDING)
    within = (off + table["error"])[known].max()
    what = {
        "published": "of the published values",
        "simulated": f"of {SIMULATED} releases simulated near the published one, together",
    }[compared]
    agrees: bool | None = None
    if differs.any():
        agrees, worst = False, table.loc[excess[differs].idxmax()]
        where = "".join(f", {names[i]} = {worst[names[i]]:.5g}" for i in single)
        instead = "Please report the model"
        if custom := [rv.name for rv in model.basic_RVs if isinstance(rv.owner.op, CustomDistRV)]:
            instead = f"Do logp and random of {custom[0]!r} contradict each other? {instead} if not"
        text = (
            f"differs by {abs(worst['difference']):.2g} (error {worst['error']:.1g}) at point "
            f"{worst.name}{where}: the log density {what} is {worst['log_density']:.6g}, and "
            f"{worst['monte_carlo']:.6g} over records that were drawn from the model as it is "
            f"written; at {differs.sum()} of {len(table)} points. {instead}"
        )
    elif known.sum() <= len(table) / 2:
        text = (
            f"cannot tell: of the records that were drawn too few come near what was released at "
            f"{len(table) - known.sum()} of {len(table)} points, as the noise is narrow beside "
            f"their number. Check the model with wider noise of the same law, with fewer records, "
            f"or a single entry of the release"
        )
    elif within > _AGREES:
        text = f"cannot tell: agrees within {within:.1g} only. seconds=200, say, tells more"
    else:
        agrees = True
        text = (
            f"agrees within {within:.1g} at {known.sum()} of {len(table)} points: log densities "
            f"{what}, beside the mean over records that were drawn"
        )
    return Check(agrees, table, text)
