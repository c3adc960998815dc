"""Thresholds below which producers leave groups out, by the parameters that they were asked with.

Each function returns the noise of the number that decides, and the threshold. A group whose noisy
number is below is left out: write ``noise.suppressed(below=threshold, empty=True)`` where that
number itself was published, and ``mechanism.suppressed(below=threshold, by=noise, empty=True)``
where another noisy value of the same statistic was. OpenDP's thresholds are stated with its
measurements, and need no function.
"""

from __future__ import annotations

import math

from scipy.special import ndtri

from pymc_dp.mechanisms import GaussianMechanism, GeometricMechanism, LaplaceMechanism

Noisy = LaplaceMechanism | GaussianMechanism | GeometricMechanism


def smartnoise(
    epsilon: float, delta: float, max_contrib: int = 1, *, sigma: float | None = None
) -> tuple[Noisy, float]:
    r"""Threshold tau of SmartNoise SQL (`censor_dims`) on the number of distinct individuals.

    It is :math:`m (1 - \log(2 \delta / m) / \varepsilon)` under Laplace noise, the default, and
    :math:`1 + \sigma \Phi^{-1}((1 - \delta / 2)^{1 / m})` under Gaussian noise.

    Parameters
    ----------
    epsilon, delta : float
        Of `snsql.Privacy`: each column has them.
    max_contrib : int, default 1
        `max_ids` of the table, m.
    sigma : float, optional
        Standard deviation of the noise where it is Gaussian, `mechanism.scale`.

    Returns
    -------
    mechanism, float
        The noise of the number that decides, and the threshold, in the units of that number.

    Raises
    ------
    ValueError
        An epsilon that is not finite and positive, a delta that is not > 0 and < 0.5, contributions
        that are no whole number of at least 1.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> noise, tau = dp.thresholds.smartnoise(epsilon=1.0, delta=1e-5)
    >>> noise, round(tau, 4)
    (LaplaceMechanism(scale=1.0), 11.8198)
    >>> noise.suppressed(below=round(tau, 4), empty=True)
    LaplaceMechanism(scale=1.0).suppressed(below=11.8198, empty=True)
    """
    _check(epsilon, delta, max_contrib)
    if sigma is not None:
        quantile = ndtri((1 - delta / 2) ** (1 / max_contrib))
        return GaussianMechanism(sigma), float(1 + sigma * quantile)
    tau = max_contrib * (1 - math.log(2 * delta / max_contrib) / epsilon)
    return LaplaceMechanism(max_contrib / epsilon), tau


def tumult(epsilon: float, delta: float, max_rows: int = 1) -> tuple[Noisy, float]:
    """Threshold of Tumult Analytics (`get_groups`) on the number of rows.

    It is 2 more than the smallest k that geometric noise exceeds with probability at most delta.

    Parameters
    ----------
    epsilon, delta : float
        The budget of the query.
    max_rows : int, default 1
        Rows that are protected: 1 of `AddOneRow`, the number of `AddMaxRows`.

    Returns
    -------
    mechanism, float
        The noise of the number that decides, and the threshold, in the units of that number.

    Raises
    ------
    ValueError
        An epsilon that is not finite and positive, a delta that is not > 0 and < 0.5, contributions
        that are no whole number of at least 1.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.thresholds.tumult(epsilon=1.0, delta=1e-5)
    (GeometricMechanism(scale=1.0), 13.0)
    """
    _check(epsilon, delta, max_rows)
    epsilon /= max_rows
    delta /= max_rows * math.exp(max_rows * epsilon) if max_rows > 1 else 1.0
    # P(noise > k) = e^{-(k + 1) epsilon} / (1 + e^{-epsilon}) for k >= 0.
    k = -(math.log(delta) + math.log1p(math.exp(-epsilon))) / epsilon - 1
    return GeometricMechanism(1 / epsilon), float(math.ceil(k - 1e-12 * abs(k)) + 2)


def pipelinedp(
    epsilon: float, delta: float, max_partitions: int = 1, *, gaussian: bool = False
) -> tuple[Noisy, float]:
    r"""Threshold of PipelineDP on the number of privacy ids of a partition.

    With :math:`\delta' = 1 - (1 - \delta)^{1 / m}` it is :math:`1 - b \log(2 \delta')` under
    Laplace noise, :math:`b = m / \varepsilon`. Half of delta goes to Gaussian noise, and the
    threshold is :math:`1 + \sigma \Phi^{-1}(1 - \delta')` for the other half. Partitions that are
    selected by "truncated geometric", its default, have no threshold.

    Parameters
    ----------
    epsilon, delta : float
        The budget of the partition selection, as its report says.
    max_partitions : int, default 1
        `max_partitions_contributed`, m.
    gaussian : bool, default False
        `GAUSSIAN_THRESHOLDING` instead of `LAPLACE_THRESHOLDING`.

    Returns
    -------
    mechanism, float
        The noise of the number that decides, and the threshold, in the units of that number.

    Raises
    ------
    ValueError
        An epsilon that is not finite and positive, a delta that is not > 0 and < 0.5, contributions
        that are no whole number of at least 1.

    Notes
    -----
    With a `pre_threshold` partitions with fewer ids are dropped for sure, and the number that
    decides is counted from there: in the model release ``(ids - pre_threshold + 1).clip(0,
    np.inf)``, suppressed with ``empty=True``.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> noise, threshold = dp.thresholds.pipelinedp(epsilon=1.0, delta=1e-5, max_partitions=2)
    >>> noise, round(threshold, 4)
    (LaplaceMechanism(scale=2.0), 24.0258)
    """
    _check(epsilon, delta, max_partitions)
    left = delta / 2 if gaussian else delta
    each = -math.expm1(math.log1p(-left) / max_partitions)
    if gaussian:
        noise = GaussianMechanism.from_epsilon_delta(epsilon, left, math.sqrt(max_partitions))
        return noise, float(1 - noise.sigma.eval() * ndtri(each))
    scale = max_partitions / epsilon
    return LaplaceMechanism(scale), 1 - scale * math.log(2 * each)


def _check(epsilon: float, delta: float, most: int) -> None:
    if not (0 < epsilon < math.inf and 0 < delta < 0.5 and most >= 1 and int(most) == most):
        raise ValueError(
            f"dp.thresholds: epsilon must be finite and > 0, delta > 0 and < 0.5, contributions a "
            f"whole number >= 1; got {epsilon}, {delta}, {most}"
        )
