"""Pool analyses of several synthetic files."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit


class Pooled(NamedTuple):
    """What several synthetic files say together.

    Attributes
    ----------
    estimate : means of the estimates.
    sd : their standard deviations, for the population that the confidential rows are drawn from.
    df : degrees of freedom of the t law of (truth - estimate) / sd; infinite for a Normal law.
    """

    estimate: Any
    sd: Any
    df: Any

    def interval(self, level: float = 0.95) -> tuple[Any, Any]:
        """Return the ends of the interval that has a level."""
        if not 0 < level < 1:
            raise ValueError(f"level={level!r} is no probability between 0 and 1")
        at = 0.5 + level / 2.0
        width = self.sd * np.where(np.isinf(self.df), ndtri(at), stdtrit(self.df, at))
        return self.estimate - width, self.estimate + width


def rubin(
    estimates: ArrayLike | xr.DataArray,
    variances: ArrayLike | xr.DataArray,
    *,
    relative_size: float = 1.0,
) -> Pooled:
    r"""Pool the analyses of fully synthetic files: Rubin's rules for such files.

    Each of m files, `dp.predict_records` say, is analysed as if it were confidential rows. With the
    mean :math:`\bar q` and variance b of the estimates, and the mean :math:`\bar u` of their
    squared standard errors [1]_,

    .. math::

        T = (1 + 1/m)\, b - \bar u, \qquad
        \nu = (m - 1) \left(1 - \frac{\bar u}{(1 + 1/m)\, b}\right)^2,

    and (truth - :math:`\bar q`) / :math:`\sqrt T` has a t law with :math:`\nu` degrees of freedom.
    b has the sampling of the synthetic rows, too, which is why :math:`\bar u` is taken off. The
    rules hold under noise of a release where the files are drawn from its posterior [3]_.

    Where T is negative, or 0, it is replaced by :math:`\bar u` times `relative_size` [2]_, with a
    Normal law: the sampling of the confidential rows alone. A T close to zero has few degrees of
    freedom and very wide intervals. Both happen with few files: take 50 or more.

    Parameters
    ----------
    estimates : array or DataArray
        One estimate a file: an array (m,), or (m, ...) with axes for parameters; a DataArray has
        its files along chain and draw. An array (chain, draw) has no labels: ravel it first.
    variances : array or DataArray
        Squared standard errors, as the analysis of each file reports them, of the same shape.
    relative_size : float, optional
        Rows of a synthetic file over confidential rows: 1, as `dp.predict_records` has it for
        `LogLinear`, by default. It only matters where T is negative.

    Returns
    -------
    Pooled
        ``estimate``, ``sd`` and ``df``, one for each parameter, and ``interval(level=0.95)``.

    Raises
    ------
    ValueError
        Fewer than two files, other shapes, numbers that are not finite, negative variances, a
        relative size that is not positive.

    References
    ----------
    .. [1] T. E. Raghunathan, J. P. Reiter, D. B. Rubin (2003). Multiple imputation for statistical
       disclosure limitation. Journal of Official Statistics 19(1), 1-16.
    .. [2] J. P. Reiter (2002). Satisfying disclosure requirements with synthetic data sets. Journal
       of Official Statistics 18(4), 531-543.
    .. [3] O. Räisä, J. Jälkö, S. Kaski, A. Honkela (2023). Noise-aware statistical inference with
       differentially private synthetic data. AISTATS.

    Examples
    --------
    >>> import numpy as np, pymc_dp as dp
    >>> means = [4.1, 5.0, 4.4, 5.9, 4.9]  # of five synthetic files
    >>> pooled = dp.rubin(means, np.full(5, 0.1))
    >>> low, high = pooled.interval(0.9)
    >>> print(f"{pooled.estimate:.2f}, sd {pooled.sd:.2f}, from {low:.2f} to {high:.2f}")
    4.86, sd 0.68, from 3.18 to 6.54
    """
    labelled = isinstance(estimates, xr.DataArray)
    q, u = (x if isinstance(x, xr.DataArray) else xr.DataArray(x) for x in (estimates, variances))
    if labelled and q.shape == u.shape and not isinstance(variances, xr.DataArray):
        u = q.copy(data=u)
    if q.sizes != u.sizes:
        raise ValueError(
            f"estimates= and variances= need the same shape, not {dict(q.sizes)} and "
            f"{dict(u.sizes)}: write the squared standard error of each estimate"
        )
    over = [d for d in ("chain", "draw") if d in q.dims] if labelled else q.dims[:1]
    m = int(np.prod([q.sizes[d] for d in over])) if over else 0
    if m < 2:
        where = "along chain and draw" if labelled else "along the first axis"
        raise ValueError(f"estimates= needs two files or more {where}, not {m}")
    q, u = xr.align(q, u, join="exact")
    if not (np.isfinite(q).all() and np.isfinite(u).all() and (u >= 0).all()):
        raise ValueError(
            "estimates= and variances= have to be finite, and variances= not negative: leave out "
            "files whose analysis failed"
        )
    if not (np.isfinite(relative_size) and relative_size > 0):
        raise ValueError(
            f"relative_size={relative_size!r} is no number > 0: write the rows of a synthetic file "
            f"over the confidential rows"
        )
    within, between = u.mean(over), (1.0 + 1.0 / m) * q.var(over, ddof=1)
    total, is_known = between - within, between > within
    sd = np.sqrt(xr.where(is_known, total, relative_size * within))
    df = (m - 1) * (total / between.where(is_known)) ** 2
    pooled = q.mean(over), sd, df.fillna(np.inf)
    return Pooled(*(x if labelled else x.to_numpy()[()] for x in pooled))
