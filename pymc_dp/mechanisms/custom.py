"""Mechanisms that a user states by their density and their draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import scipy
from pytensor.graph.traversal import ancestors

from pymc_dp.graphs.declined import first_line
from pymc_dp.graphs.values import PLAIN_MODE, known_value, nearest_rvs
from pymc_dp.mechanisms.arguments import as_float, as_parameter, nan_outside_unit
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.jumps import find_jumps

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_DRAWS, _CELLS, _SEED = 20_000, 32, 20_061_209
_SMALLEST_P = 1e-7  # p-value of the test: this share of correct pairs is refused
_QUADRATURE_ERROR = 2e-3  # relative error of the quadrature
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_MOST_OUTCOMES = 100  # values that are listed


class CustomMechanism(Mechanism):
    r"""Release by a law that the user states.

    Every route that needs no more than a density takes it. What else is stated opens more:

    ==================  ====================================================================
    `logcdf`            `.clipped`, `.rounded`, `.suppressed` and their like: probabilities of
                        intervals
    `log_concave`       counts of any size are summed out in few terms, or drawn exactly; without it
                        those released one by one are summed out term by term, and a single
                        binomial count of at most 100,000, and Metropolis samples others
    `rates`             noise of Laplace's or Gauss's shape: tables of counts, compiled chains of
                        Normal records, regressions, marginals of bounded records
    `icdf`              quasi-Monte Carlo of the neural routes
    `support`           values outside are refused as observed; few whole ones are listed, as the
                        answers of a survey are, of records with the same probabilities
    ==================  ====================================================================

    Parameters
    ----------
    logp : callable
        ``logp(value, statistic)``, the log density, or log mass, as a PyTensor expression; it
        broadcasts. It is normalised in the value, and differentiable in the statistic where that is
        to be sampled by NUTS.
    random : callable
        ``random(statistic, rng=None, size=None)`` in NumPy: draws of shape `size`, that of the
        statistic, independent of each other. A value may stay as it is: its `logp` is then 0.
    discrete : bool, default False
        Whether releases are whole numbers.
    log_concave : bool, default False
        Whether the probability of every release and interval is log-concave in the statistic. It
        is for noise that is added and has a log-concave density or mass.
    rates : (float, float), optional
        :math:`(\lambda, \tau)` of noise that is added, with log density
        :math:`c - \lambda |z - s| - \tau (z - s)^2 / 2`.
    icdf, logcdf : callable, optional
        ``icdf(p, statistic)`` and ``logcdf(value, statistic)`` in PyTensor. An interval above the
        middle has no more digits than the difference of two probabilities near one.
    support : (float, float), optional
        Least and largest value that can be published.
    tried_at : sequence of float, default (0, 5)
        Statistics at which draws and density are compared, once, when the mechanism is made.

    Raises
    ------
    TypeError
        `logp` or `random` that is no function, or returns something else than stated above.
    ValueError
        Draws that do not follow the density; a density that is not normalised, or not that of the
        `rates`.

    Examples
    --------
    Laplace noise of a scale that grows with the statistic:

    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> import pymc_dp as dp
    >>> def logp(value, statistic):
    ...     scale = 1 + 0.1 * pt.abs(statistic)
    ...     return -pt.abs(value - statistic) / scale - pt.log(2 * scale)
    >>> def random(statistic, rng=None, size=None):
    ...     return rng.laplace(statistic, 1 + 0.1 * np.abs(statistic), size)
    >>> mechanism = dp.CustomMechanism(logp, random)
    >>> mechanism.logp(30.0, [20.0, 40.0]).eval().round(4)
    array([-5.1251, -4.3026])
    """

    def __init__(
        self,
        logp: Callable,
        random: Callable,
        *,
        discrete: bool = False,
        log_concave: bool = False,
        rates: tuple[float, float] | None = None,
        icdf: Callable | None = None,
        logcdf: Callable | None = None,
        support: tuple[float, float] | None = None,
        tried_at: Sequence[float] = (0.0, 5.0),
    ):
        stated = {"logp": logp, "random": random, "icdf": icdf, "logcdf": logcdf}
        for name, function in stated.items():
            if not (callable(function) or (function is None and name in ("icdf", "logcdf"))):
                raise TypeError(
                    f"CustomMechanism: {name} must be a function, got {function!r}: write "
                    f"def {name}({_ARGUMENTS.get(name, 'value, statistic')}): ..."
                )
        self._functions: dict[str, Any] = stated
        self._discrete, self._concave = discrete, log_concave
        self._rates = None if rates is None else _pair("rates", rates)
        self._support = None if support is None else _pair("support", support)
        # Noise with `rates` has one parameter, a scale: here in units of the stated noise.
        self.scale = as_parameter(1.0, mechanism="CustomMechanism", name="scale")
        vars(self)["parameter_names"] = () if rates is None else ("scale",)
        self._tried_at = [float(s) for s in tried_at]
        _compare(self, self._tried_at)

    @property
    def reads_outside(self) -> bool:
        """See `ReleaseLaw.reads_outside`."""
        return True

    @property
    def spacing(self) -> float | None:
        """Distance between neighbouring releases."""
        return 1.0 if self._discrete else None

    @property
    def log_concave(self) -> bool:
        """As it was stated."""
        return self._concave

    @property
    def takes_whole(self) -> bool:
        """Whether whole-number noise is added."""
        return self._discrete and self._rates is not None

    @property
    def outcomes(self) -> np.ndarray | None:
        """The whole numbers of the support, where they are few."""
        if not self._discrete or self._support is None or np.ptp(self._support) > _MOST_OUTCOMES:
            return None
        return np.arange(np.ceil(self._support[0]), np.floor(self._support[1]) + 1)

    @property
    def rates(self) -> tuple[TensorVariable, TensorVariable] | None:
        """See `Mechanism.rates`."""
        if self._rates is None:
            return None
        lam, tau = self._rates
        return tuple(
            rate / self.scale**power if rate else pt.constant(0.0)
            for power, rate in ((1, lam), (2, tau))
        )

    def attainable(self, value: TensorLike) -> TensorVariable:
        """Whether a value is finite, whole where it has to be, and in the support."""
        value = as_float(value)
        good = ~(pt.isinf(value) | pt.isnan(value))
        if self._discrete:
            good &= pt.eq(value, pt.round(value))
        if self._support is not None:
            good &= (value >= self._support[0]) & (value <= self._support[1])
        return good

    def kinks(self, value: TensorLike) -> Sequence[TensorVariable]:
        """Return where the density jumps; see `Mechanism.kinks`."""
        numbers = known_value(as_float(value), fixed=True)
        if self._rates is not None or numbers is None:
            return super().kinks(value)
        return [pt.constant(jump) for jump in find_jumps(self.logp, self._tried_at, numbers)]

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        s = as_float(statistic) / self.scale
        draw = pm.CustomDist.dist(
            s,
            logp=self._functions["logp"],
            random=self._functions["random"],
            dtype="int64" if self._discrete else pytensor.config.floatX,
            size=s.shape,
            rng=rng,
        )
        drawn = draw if self._rates is None or self._discrete else self.scale * draw
        return draw.owner.outputs[0], drawn

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density or log mass of a release, as it was stated."""
        value = as_float(value)
        possible = self.attainable(value)
        z, s = pt.switch(possible, value, 0.0), as_float(statistic)
        log_density = self._stated("logp", z / self.scale, s / self.scale)
        if not self._discrete:
            log_density = log_density - pt.log(self.scale)
        return pt.switch(possible, log_density, -np.inf)

    def _stated(self, name: str, *given: TensorVariable) -> TensorVariable:
        """Call a stated function; refuse a random variable that it reads from outside."""
        graph = pt.as_tensor_variable(self._functions[name](*given))
        inside = {*nearest_rvs(given)}
        for rv in nearest_rvs([graph]):
            if rv not in inside:
                raise TypeError(
                    f"CustomMechanism: {name} depends on the random variable {rv.name!r}. The "
                    f"noise of a release is public and known, never estimated: use the number that "
                    f"the curator used, or a pm.Data that holds it. Where it is unknown, write the "
                    f"release as a variable of the model, with its value x as another one: "
                    f"pm.CustomDist('z', x, {rv.name}, logp=..., observed=...) and pm.sample()"
                )
        return graph

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`. It needs `logcdf`."""
        lower, upper, s = as_float(lower), as_float(upper), as_float(statistic)
        if self._discrete:
            lower, upper = pt.ceil(lower) - 1.0, pt.floor(upper)
        low, high = self._logcdf(lower, s), self._logcdf(upper, s)
        some = (lower < upper) & (high > low)
        gap = pt.switch(some & (low > -np.inf), low - high, -1.0)
        rest = pt.switch(low > -np.inf, pt.log1mexp(gap), 0.0)
        return pt.switch(some, high + rest, -np.inf)

    def _logcdf(self, value: TensorVariable, statistic: TensorVariable) -> TensorVariable:
        """Return the stated function, which need not know of infinite values."""
        if self._functions["logcdf"] is None:
            raise NotImplementedError(
                "CustomMechanism: the probability of an interval is needed, for a release that "
                "was clipped, rounded or suppressed, and no distribution function was stated: "
                "write CustomMechanism(logp, random, logcdf=...), with logcdf(value, statistic)"
            )
        infinite = pt.isinf(value)
        z = pt.switch(infinite, 0.0, value) / self.scale
        log_probability = self._stated("logcdf", z, statistic / self.scale)
        return pt.switch(infinite, pt.switch(value > 0, 0.0, -np.inf), log_probability)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function, as it was stated."""
        if self._functions["icdf"] is None:
            return super().icdf(p, statistic)
        p = as_float(p)
        inside = nan_outside_unit(p, p)
        return self.scale * self._stated("icdf", inside, as_float(statistic) / self.scale)

    def __repr__(self) -> str:
        """Class and the names of its functions."""
        names = (getattr(self._functions[f], "__name__", "...") for f in ("logp", "random"))
        return f"CustomMechanism({', '.join(names)})"


_BY_ENTRY = (
    "The functions are of each entry by itself, and are asked for any number of entries at once: "
    "they cannot read a vector with a number for each entry. Write a release for each number k in "
    "np.unique(number): PrivateObservation(f'z_{k}', x[number == k], CustomMechanism(...)), with "
    "functions that read k"
)
_ARGUMENTS = {"random": "statistic, rng=None, size=None", "icdf": "p, statistic"}


def _pair(name: str, value: Any) -> tuple[float, float]:
    try:
        first, second = map(float, value)
        good = first < second if name == "support" else min(first, second) >= 0 < max(first, second)
    except (TypeError, ValueError):
        good = False
    if not good:
        rule = "(lowest, highest)" if name == "support" else "(lambda, tau), numbers >= 0"
        raise ValueError(f"CustomMechanism: {name} must be {rule}, got {value!r}")
    return first, second


# --- Draws and density are compared -------------------------------------------------------------


@contextmanager
def _by_entry(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what} ended in: {first_line(error)}. {_BY_ENTRY}") from error


def _compare(mechanism: CustomMechanism, statistics: list[float]) -> None:
    """Refuse functions that contradict each other, at some statistics."""
    z = pt.vector("z")
    for s in statistics:
        where = f"CustomMechanism: at the statistic {s:g}"
        stated = mechanism._stated("logp", z, pt.constant(s))
        try:
            with _by_entry(f"{where}, random of {_DRAWS} statistics"):
                drawn = mechanism._functions["random"](
                    np.full(_DRAWS, s), rng=np.random.default_rng(_SEED), size=(_DRAWS,)
                )
        except TypeError as error:
            raise TypeError(
                f"{where}, random(statistic, rng=rng, size=size) ended in {error}"
            ) from error
        draws = np.asarray(drawn, "float64")
        if draws.shape != (_DRAWS,) or not np.isfinite(draws).all():
            raise ValueError(
                f"{where}, random(statistic, rng=rng, size=({_DRAWS},)) gave {draws.shape} "
                f"numbers, or some that are not finite: write rng.laplace(statistic, b, size). "
                f"{_BY_ENTRY}"
            )
        if stated.type.ndim == 0 and z in ancestors([stated]):
            raise ValueError(
                f"{where}, logp of several values is one number: this density is joint, and the "
                f"noise of a CustomMechanism is of each entry by itself, with an entry of logp for "
                f"each. dp.SphericalLaplace(beta) is noise of a whole vector"
            )
        graph = mechanism.logp(z, s)
        if graph.type.ndim != 1:
            raise TypeError(f"{where}, logp of a vector of values is no vector: {graph.type}")
        log_density = pytensor.function([z], graph, mode=PLAIN_MODE)
        with _by_entry(f"{where}, logp of {_DRAWS} values"):
            log_densities = log_density(draws)
        if len(np.unique(draws)) == 1 and not _is_point(draws[0], log_density, mechanism):
            raise ValueError(
                f"{where}, all draws are {draws[0]:g}, which logp does not say: they must be "
                f"independent, one for each entry of `size`. Say tried_at=(...) if the statistic "
                f"cannot be {s:g}"
            )
        impossible = ~(log_densities > -np.inf)
        if np.any(impossible):
            bad = draws[impossible][0]
            raise ValueError(
                f"{where}, random gave {bad:.6g}, of which logp is "
                f"{log_densities[impossible][0]}: write one law in both, or tried_at=(...) if "
                f"the statistic cannot be {s:g}"
            )
        of_cells = _listed if mechanism.is_discrete else _integrated
        counts, masses = of_cells(draws, lambda x, f=log_density: np.exp(f(np.ravel(x))))
        total = masses.sum()
        if total > 1 + _QUADRATURE_ERROR or total < 1 - 20 / _DRAWS:
            raise ValueError(
                f"{where}, the density has mass {total:.5g} where random draws, not 1: normalise it"
            )
        masses = np.append(masses, max(1 - total, 0.0)) / max(total, 1.0)
        expected = counts.sum() * masses
        excess = np.append(counts, 0) - expected
        chi2 = (
            excess**2 / np.maximum(expected + (_QUADRATURE_ERROR * counts.sum() * masses) ** 2, 1.0)
        ).sum()
        if scipy.stats.chi2.sf(chi2, len(counts)) < _SMALLEST_P:
            worst = int(np.argmax(np.abs(excess[:-1])))
            raise ValueError(
                f"{where}, random and logp are of different laws: of {counts.sum()} draws "
                f"{counts[worst]} fell where logp makes it {expected[worst]:.0f}. A scale written "
                f"as a rate, or a variance as a standard deviation, looks like this"
            )
        if mechanism._rates is not None:
            lam, tau = mechanism._rates
            rest = log_densities + lam * np.abs(draws - s) + 0.5 * tau * (draws - s) ** 2
            if np.ptp(rest) > 1e-6 * (1 + np.abs(log_densities).max()):
                raise ValueError(
                    f"{where}, rates=({lam:g}, {tau:g}) are not those of logp: they say that logp "
                    f"is c - lambda |z - s| - tau (z - s)^2 / 2"
                )
        _compare_optional(mechanism, s, draws, where)


def _is_point(value: float, log_density: Callable, mechanism: CustomMechanism) -> bool:
    """Whether all of the mass is at a value, and none beside it."""
    steps = np.array([1.0, 2.0] if mechanism.is_discrete else [1e-9, 1e-6, 1e-3, 1.0])
    steps = steps * (1.0 if mechanism.is_discrete else max(1.0, abs(value)))
    beside = log_density(np.concatenate([value - steps, value + steps]))
    return abs(log_density(np.array([value]))[0]) < 1e-8 and not np.any(beside > -np.inf)


def _compare_optional(mechanism: CustomMechanism, s: float, draws: np.ndarray, where: str) -> None:
    """Refuse a distribution function, quantiles and a log-concavity that contradict the rest."""
    levels = np.linspace(0.1, 0.9, 9)
    values = np.quantile(draws, levels, method="lower")
    error = 6 * np.sqrt(0.25 / _DRAWS) + _QUADRATURE_ERROR
    if mechanism._functions["logcdf"] is not None:
        stated = np.exp(mechanism.logcdf(values, s).eval(mode=PLAIN_MODE))
        share = (draws[:, None] <= values).mean(axis=0)
        if not np.all(np.abs(stated - share) < error):
            worst = int(np.argmax(np.abs(stated - share)))
            raise ValueError(
                f"{where}, logcdf is that of another law: {share[worst]:.3f} of random draws are "
                f"up to {values[worst]:.6g}, where it makes it {stated[worst]:.3f}"
            )
    if mechanism._functions["icdf"] is not None:
        quantiles = mechanism.icdf(levels, s).eval(mode=PLAIN_MODE)
        below = (draws[:, None] < quantiles).mean(axis=0)
        up_to = (draws[:, None] <= quantiles).mean(axis=0)
        if not np.all((below < levels + error) & (up_to > levels - error)):
            raise ValueError(f"{where}, icdf is that of another law than random")
    if mechanism.log_concave:
        step = np.ceil(np.std(values) / 4) if mechanism.is_discrete else np.std(values) / 4
        statistics = s + step * np.arange(-20.0, 21.0)
        log_density = mechanism.logp(values[:, None], statistics).eval(mode=PLAIN_MODE)
        with np.errstate(invalid="ignore"):
            bend = log_density[:, 2:] + log_density[:, :-2] - 2 * log_density[:, 1:-1]
            bent = bend > 1e-7 * (1 + np.abs(log_density[:, 1:-1]))
        if np.any(bent):
            i, k = np.argwhere(bent)[0]
            raise ValueError(
                f"CustomMechanism: log_concave=True is not so: in the statistic, logp of the value "
                f"{values[i]:.6g} bends upwards around {statistics[k + 1]:.6g}. Leave log_concave= "
                f"out"
            )


def _listed(draws: np.ndarray, density: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Return how many draws fell into cells of whole numbers, and the masses of the cells."""
    chosen, counted = np.split(draws, 2)  # one half chooses the cells, the other half is counted
    values, width = np.unique(draws), np.ptp(draws)
    if width < 100 * _DRAWS:
        values = np.arange(values[0] - width, values[-1] + width + 1)
    edges = np.unique(np.quantile(chosen, np.linspace(0, 1, _CELLS), method="nearest"))
    edges = np.append(edges[0] - 1, edges)  # a first cell below all draws
    masses = np.bincount(np.searchsorted(edges, values), density(values), len(edges) + 1)
    return np.bincount(np.searchsorted(edges, counted), minlength=len(edges) + 1), masses


def _integrated(draws: np.ndarray, density: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Return how many draws fell into cells and on atoms, and the masses of both."""
    values, times = np.unique(draws, return_counts=True)
    atoms = values[times > 1]
    chosen, counted = (half[~np.isin(half, atoms)] for half in np.split(draws, 2))
    counts = (np.split(draws, 2)[1][:, None] == atoms).sum(axis=0)
    masses = density(atoms) if len(atoms) else np.empty(0)
    if len(chosen) < 100:
        return counts, masses
    edges = np.quantile(chosen, np.linspace(0, 1, _CELLS + 1))
    wide = np.ptp(edges) * 2.0 ** np.arange(40)
    edges = np.concatenate([edges[0] - wide[::-1], edges, edges[-1] + wide])
    # Tails may be steep and densities have kinks: cells are cut finely.
    fine = np.concatenate([*(np.linspace(a, b, 9)[:-1] for a, b in pairwise(edges)), edges[-1:]])
    width, middle = np.diff(fine)[:, None] / 2, (fine[:-1, None] + fine[1:, None]) / 2
    nodes = middle + width * _NODES
    of_fine = (width * _WEIGHTS * density(nodes).reshape(nodes.shape)).sum(axis=1)
    masses = np.append(masses, of_fine.reshape(-1, 8).sum(axis=1))
    return np.append(counts, np.histogram(counted, edges)[0]), masses
