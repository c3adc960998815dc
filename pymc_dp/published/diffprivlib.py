"""Releases of diffprivlib: its mechanism objects, read by their classes, and its `tools` by name.

The library itself is never imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pymc_dp import mechanisms
from pymc_dp.mechanisms import GaussianMechanism, GeometricMechanism, LaplaceMechanism, Mechanism
from pymc_dp.published.privacy import Privacy
from pymc_dp.published.tables import positions
from pymc_dp.published.value import Published

_WHO = "from_diffprivlib"
_QUANTILES = {"median": None, "quantile": "quant", "percentile": "percent"}
# What to write for mechanisms and tools that are not read.
_INSTEAD = {
    "LaplaceBoundedNoise": "its noise is Laplace, drawn again until it is within the object's "
    "_noise_bound: write dp.CustomMechanism with that density",
    "GeometricFolded": "its whole numbers are reflected at the bounds: write dp.CustomMechanism "
    "with that mass, or release with GeometricTruncated",
    "Bingham": "it releases a direction drawn around an eigenvector, no noisy number",
    "std": 'it is the root of a noisy variance: read dp.Release.from_diffprivlib("var", value**2, '
    "...), and release the variance in the model",
}
_TOOLS = (
    *("mean", "var", "sum", "count_nonzero", "histogram", "histogramdd", "histogram2d"),
    *_QUANTILES,
)


def from_diffprivlib(
    cls: type[Published], mechanism: Any, value: ArrayLike, **described: Any
) -> Published:
    r"""Read the noise of a value that a mechanism object or a tool of diffprivlib released.

    ======================  ===================================================================
    `Laplace`               `LaplaceMechanism`, :math:`b = \Delta / (\varepsilon -
                            \log(1 - \delta))`
    `Geometric`             `GeometricMechanism`, :math:`b = \Delta / \varepsilon`
    `Gaussian`,             `GaussianMechanism`, with the standard deviation that the object
    `GaussianAnalytic`      found for :math:`(\varepsilon, \delta)`
    `GaussianDiscrete`      `DiscreteGaussianMechanism`, likewise
    `LaplaceTruncated`,     the same, ``.clipped(lower, upper)``
    `GeometricTruncated`
    `LaplaceFolded`         `FoldedLaplaceMechanism`
    `LaplaceBoundedDomain`  `BoundedLaplaceMechanism`, with the larger scale that it needs
    `Staircase`             `StaircaseMechanism`
    `Snapping`              `SnappingMechanism`
    `Vector`                `SphericalLaplace`, of the gradient of the objective
    `Uniform`               `UniformMechanism`, half as wide as :math:`\Delta / \delta`
    `Exponential`,          `ExponentialMechanism`, `NoisyMax`; the candidate becomes its
    `PermuteAndFlip`        position
    `Binary`                `RandomizedResponse`; its labels become 0 and 1
    `ExponentialCateg...`,  ``RandomizedResponse(matrix=...)``; the labels become their
    `ExponentialHier...`    positions among the object's
    ======================  ===================================================================

    By name of a function of `diffprivlib.tools`, with the arguments it was called with:

    ======================  ===================================================================
    ``"mean"``              mean of the records clipped to the bounds; `LaplaceMechanism`,
                            clipped to the bounds
    ``"var"``               variance (over n) of the clipped records; `BoundedLaplaceMechanism`
                            on :math:`[0, (u - l)^2 / 4]`
    ``"sum"``               sum of the clipped records; `LaplaceMechanism` clipped to
                            :math:`[n l, n u]`, or `GeometricMechanism` with an integer `dtype`
    ``"count_nonzero"``     number of records; `GeometricMechanism` clipped to [0, n]
    ``"histogram"``,        numbers of records; `GeometricMechanism`, clipped at 0
    ``"histogramdd"``
    ``"median"``,           the records themselves, in a vector, or in a row for each of several
    ``"quantile"``,         quantiles; `PrivateQuantile`
    ``"percentile"``
    ======================  ===================================================================

    Parameters
    ----------
    mechanism : object of diffprivlib.mechanisms, or str
        What `randomise` was called on, or the name of the function of `diffprivlib.tools`.
    value : array_like
        What it returned, or an array of what several calls returned. Of a function that was
        given an axis, pass all that it returned at once: it splits epsilon among the entries.
    **described
        Of a function: `epsilon`, `bounds`, `n` (the number of records of each entry), `quant` or
        `percent`, and `dtype`. `name`, `dims`, `coords`, `privacy` (by default the epsilon and
        delta) and `source` of the release.

    Raises
    ------
    ValueError
        Another mechanism or function, or one without noise.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.Release.from_diffprivlib("mean", 4.5, epsilon=0.5, bounds=(0, 10), n=50).mechanism
    LaplaceMechanism(scale=0.4).clipped(lower=0.0, upper=10.0)
    """
    is_tool = isinstance(mechanism, str)
    name = mechanism.removeprefix("nan") if is_tool else type(mechanism).__name__
    known = _TOOLS if is_tool else _MECHANISMS
    if name not in known:
        why = _INSTEAD.get(name, "where there is its mechanism, write dp.Release(value, mechanism)")
        raise ValueError(f"{_WHO}: {name} is not read: {why}. What is read: {', '.join(known)}")
    if is_tool:
        return cls(**_of_tool(name, np.asarray(value), **described))
    try:
        with np.errstate(all="ignore"):  # the mechanisms refuse scales of 0, inf and nan
            noise = _MECHANISMS[name](mechanism)
        listed = getattr(mechanism, "candidates", None) or getattr(mechanism, "_domain_values", ())
        labels = [mechanism.value0, mechanism.value1] if name == "Binary" else listed
    except AttributeError as error:
        raise ValueError(
            f"{_WHO}: this {name} is not that of diffprivlib 0.6 ({error}); write "
            f"dp.Release(value, mechanism)"
        ) from None
    epsilon, delta = float(mechanism.epsilon), _delta(mechanism)
    measure, privacy = "approximate" if delta else "pure", None
    if 0 < epsilon < np.inf:  # else all of the loss is in delta
        privacy = Privacy(measure=measure, epsilon=epsilon, delta=delta or None)
    made = {"value": positions(_WHO, labels, value) if labels else value, "mechanism": noise}
    return cls(**made | {"privacy": privacy, "source": f"diffprivlib {name}"} | described)


def _delta(m: Any) -> float:
    return float(getattr(m, "delta", 0.0))


def _scale(m: Any) -> np.float64:
    return np.float64(m.sensitivity) / (m.epsilon - np.log1p(-_delta(m)))


def _rate(m: Any) -> np.float64:
    return np.float64(m.epsilon) / np.float64(m.sensitivity) / (1 if m.monotonic else 2)


def _binary(m: Any) -> Mechanism:
    if not _delta(m):
        return mechanisms.RandomizedResponse.from_epsilon(m.epsilon)
    return mechanisms.RandomizedResponse((np.exp(m.epsilon) + m.delta) / (np.exp(m.epsilon) + 1))


def _among_labels(m: Any) -> Mechanism:
    labels = m._domain_values
    chance = np.array([[m._get_prob(k, z) for z in labels] for k in labels])
    return mechanisms.RandomizedResponse(matrix=chance / chance.sum(axis=1, keepdims=True))


def _bounded(m: Any) -> Mechanism:
    return mechanisms.BoundedLaplaceMechanism.from_epsilon(
        m.epsilon, m.sensitivity, m.lower, m.upper, _delta(m)
    )


def _exponential(m: Any) -> Mechanism:
    rate = _rate(m)
    if m.measure is not None:
        raise ValueError(
            f"{_WHO}: the candidates of this Exponential have a measure. Release utilities + "
            f"log(measure) / {rate:.17g} in the model, and write dp.Release(index, "
            f"dp.ExponentialMechanism({rate:.17g}))"
        )
    return mechanisms.ExponentialMechanism(rate)


def _vector(m: Any) -> Mechanism:
    # The noise of the gradient, at any point; a further regulariser is part of the statistic.
    loss = m.epsilon - 2.0 * np.log1p(m.function_sensitivity * m.data_sensitivity / m.alpha)
    loss = loss if loss > 0 else m.epsilon / 2.0
    return mechanisms.SphericalLaplace(m.n * np.float64(loss) / (2.0 * m.data_sensitivity))


# `_scale` of Gaussian noise is the standard deviation that the object draws with: its formula
# differs between the three classes, and two of them solve for it numerically.
_MECHANISMS: dict[str, Callable[[Any], Mechanism]] = {
    "Laplace": lambda m: LaplaceMechanism(_scale(m)),
    "LaplaceTruncated": lambda m: LaplaceMechanism(_scale(m)).clipped(m.lower, m.upper),
    "Geometric": lambda m: GeometricMechanism(_scale(m)),
    "GeometricTruncated": lambda m: GeometricMechanism(_scale(m)).clipped(m.lower, m.upper),
    "Gaussian": lambda m: GaussianMechanism(m._scale),
    "GaussianAnalytic": lambda m: GaussianMechanism(m._scale),
    "GaussianDiscrete": lambda m: mechanisms.DiscreteGaussianMechanism(m._scale),
    "Binary": _binary,
    "LaplaceFolded": lambda m: mechanisms.FoldedLaplaceMechanism(_scale(m), m.lower, m.upper),
    "LaplaceBoundedDomain": _bounded,
    "Uniform": lambda m: mechanisms.UniformMechanism(np.float64(m.sensitivity) / m.delta / 2),
    "Staircase": lambda m: mechanisms.StaircaseMechanism(m.epsilon, m.sensitivity, m.gamma),
    "Snapping": lambda m: mechanisms.SnappingMechanism.from_epsilon(
        m.epsilon, m.sensitivity, m.lower, m.upper
    ),
    "Exponential": _exponential,
    "PermuteAndFlip": lambda m: mechanisms.NoisyMax("exponential", 1 / _rate(m)),
    "Vector": _vector,
    "ExponentialCategorical": _among_labels,
    "ExponentialHierarchical": _among_labels,
}


def _of_tool(
    name: str,
    value: np.ndarray,
    *,
    epsilon: float,
    bounds: Any = None,
    n: int | None = None,
    dtype: Any = None,
    density: bool | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Read what a function of `diffprivlib.tools` returned."""
    if density:
        raise ValueError(f"{_WHO}: density=True divides the noisy counts; release the counts")
    if name.startswith("histogram"):
        noise: Mechanism = GeometricMechanism(1 / epsilon).clipped(lower=0)
    else:
        argument = _QUANTILES.get(name)
        bounds = (0, 1) if name == "count_nonzero" else bounds
        if bounds is None or not (n or name in _QUANTILES) or (argument and argument not in fields):
            also = f"{argument}=, as it was called" if argument else "n=, the number of records"
            raise ValueError(
                f"{_WHO}: {name} needs bounds=, without which it takes the least and the largest "
                f"record and is not private, and {also}, which is public there"
            )
        # With an axis, epsilon is split among the entries.
        lower, upper = (np.asarray(bound, dtype="float64")[()] for bound in bounds)
        if name in _QUANTILES:
            q = np.asarray(fields.pop(argument) if argument else 0.5) / (
                100 if name == "percentile" else 1
            )
            if q.size > 1:  # the quantiles are the first axis of the value
                q = q.reshape(-1, *[1] * (value.ndim - 1))
            noise = mechanisms.PrivateQuantile.from_epsilon(
                q if q.size > 1 else q.item(), epsilon / value.size, lower, upper
            )
        else:
            noise = _of_records(name, epsilon / value.size, lower, upper, n or 1, dtype)
    made = {"value": value, "mechanism": noise, "source": f"diffprivlib tools.{name}"}
    return made | {"privacy": Privacy(measure="pure", epsilon=epsilon)} | fields


def _of_records(tool: str, epsilon: float, lower: Any, upper: Any, n: int, dtype: Any) -> Mechanism:
    width = upper - lower
    if tool == "mean":
        return LaplaceMechanism(width / n / epsilon).clipped(lower, upper)
    if tool == "var":
        sensitivity = (width / n) ** 2 * (n - 1)
        return mechanisms.BoundedLaplaceMechanism.from_epsilon(
            epsilon, sensitivity, 0.0, width**2 / 4
        )
    whole = tool == "count_nonzero" or (dtype is not None and np.issubdtype(dtype, np.integer))
    law = GeometricMechanism if whole else LaplaceMechanism
    return law(width / epsilon).clipped(lower * n, upper * n)
