r"""Draws of a mechanism's noise by randomized quasi-Monte Carlo.

The loss of a simulation is an integral over the noise, :math:`\int \eta(z \mid s) g(z) dz`. With
:math:`z = F^{-1}(u \mid s)`, the mechanism's quantile function, it is an integral over the unit
cube, and the points of a scrambled Sobol net find it with an error of about :math:`M^{-0.8}` in
place of :math:`M^{-1/2}` (Xiong, Ju & Zhang, 2024, section 3.3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import accumulate
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.compile.io import In
from scipy.stats import qmc

from pymc_dp.graphs.values import PLAIN_MODE, known_value
from pymc_dp.kernels.functions.reported_counts import binomial_quantiles
from pymc_dp.mechanisms import BinomialMechanism
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.lattice import IntegerNoise
from pymc_dp.mechanisms.postprocessed import ClippedMechanism, layers
from pymc_dp.neural.standard import Standard

_log = logging.getLogger("pymc.dp")

_BITS = 32
_NETS = 64
_GRID = 33  # levels at which releases are standardised; linear in between
_MOST_LISTED = 2**16  # values of whole-number noise that are listed


class SobolPool:
    """Scrambled Sobol nets that a random digital shift makes new at every use.

    A new net costs half a millisecond; to draw one of the pool and to shift its digits costs a few
    microseconds. The shift is an exclusive or with random digits, the same for all points of a
    net: it keeps the net's equidistribution, and every point is uniform on the cube.

    Parameters
    ----------
    points : int
        Points of a net, M. Powers of two are best.
    dimension : int
        Dimension d of the cube.
    rng : numpy.random.Generator
        Scrambles the nets.
    """

    LARGEST = qmc.Sobol.MAXDIM

    def __init__(self, points: int, dimension: int, rng: np.random.Generator):
        if points < 1 or dimension < 1:
            raise ValueError(f"a net needs points and dimensions, got {points} and {dimension}")
        whole = int(np.ceil(np.log2(points)))
        nets = [
            qmc.Sobol(dimension, scramble=True, bits=_BITS, rng=rng).random_base2(whole)[:points]
            for _ in range(_NETS)
        ]
        self._nets = np.floor(np.stack(nets) * 2.0**_BITS).astype(np.uint32)

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return `count` independent nets, of shape (count, points, dimension), within (0, 1)."""
        chosen = self._nets[rng.integers(len(self._nets), size=count)]
        shift = rng.integers(2**_BITS, size=(count, 1, chosen.shape[-1]), dtype=np.uint32)
        # The middle of a cell: 0 and 1 have no quantile.
        return ((chosen ^ shift) + 0.5) * 2.0**-_BITS


@dataclass(frozen=True)
class Channel:
    """One release: its name, its mechanism and the shape of what it releases."""

    name: str
    mechanism: Mechanism
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a mechanism that does not release one number for each entry."""
        if self.mechanism.statistic_ndim or self.mechanism.withholds:
            some = "withholds" if self.mechanism.withholds else "releases one of"
            raise NotImplementedError(
                f"{self.name!r}: {type(self.mechanism).__name__} {some} entries of its statistic, "
                f"and neural estimation takes noise of each: state the model without method="
            )

    @property
    def size(self) -> int:
        """Number of released values."""
        return int(np.prod(self.shape, dtype=int))

    def flat(self) -> Mechanism:
        """Return the mechanism for the flattened statistic, its parameters as numbers."""
        parameters = []
        for parameter in self.mechanism.parameters:
            value = known_value(parameter)
            if value is None:
                raise ValueError(
                    f"{self.name!r}: the noise of {self.mechanism!r} is symbolic; write a number, "
                    f"an array or a pm.Data"
                )
            value = np.asarray(value, "float64")
            parameters.append(np.broadcast_to(value, self.shape).ravel() if value.ndim else value)
        return self.mechanism.with_parameters(*parameters)


def spans(channels: Sequence[Channel]) -> Iterator[tuple[Channel, slice]]:
    """Yield the releases, each with its place among all the flattened values."""
    for channel, end in zip(channels, accumulate(c.size for c in channels), strict=True):
        yield channel, slice(end - channel.size, end)


def has_atoms(channel: Channel) -> bool:
    """Whether a clipped release has a mass at its bounds that a density cannot follow.

    On a lattice it is one step wide, which is negligible beside noise of a few steps.
    """
    parts = layers(channel.flat())
    clipped = any(isinstance(layer, ClippedMechanism) for layer in parts)
    spacing = channel.mechanism.spacing
    if not clipped or spacing is None:
        return clipped
    typical = np.zeros((1000, channel.size))
    noise = _sampler(parts[-1])(np.random.default_rng(0), typical).std(axis=0)
    return bool(np.any(spacing < noise / 3))


def check_statistic(channel: Channel, statistic: np.ndarray) -> None:
    """Refuse statistics that the mechanism cannot take, such as fractions for whole-number noise.

    Its sampler checks them, and the quantile function does not.
    """
    mechanism = channel.flat()
    if layers(mechanism)[-1].spacing is None:
        return  # continuous noise is added to any number
    try:
        _sampler(mechanism, mode=PLAIN_MODE)(np.random.default_rng(0), statistic)
    except AssertionError as error:
        raise ValueError(
            f"{channel.name!r}: the simulated statistics do not go with the mechanism: "
            f"{str(error).splitlines()[0]}"
        ) from None


class Noise:
    """Releases of flat statistics: `draw` is seeded, vectorised, and fresh at every call.

    Parameters
    ----------
    channels : sequence of Channel
        The releases, in the order in which their flattened statistics are joined.
    draws : int
        Releases M of each statistic.
    rng : numpy.random.Generator
        Source of all randomness.
    qmc : bool, default True
        Sobol nets through the quantile function; else independent draws. A mechanism without a
        quantile function gets independent draws, which is logged.

    Attributes
    ----------
    spacing : ndarray
        Distance of neighbouring values of each entry, 0 where the release has a density.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        draws: int,
        rng: np.random.Generator,
        *,
        qmc: bool = True,
    ):
        self.channels, self.draws = tuple(channels), draws
        self._rng = rng
        self._functions: list[tuple[Callable, bool]] = []
        small = self.size <= SobolPool.LARGEST
        for channel in self.channels:
            mechanism, function = channel.flat(), None
            if qmc and small:
                function = fast_quantiles(mechanism) or _quantiles(mechanism)
            if qmc and function is None:
                _say_monte_carlo(channel, small)
            self._functions.append((function or _sampler(mechanism), function is not None))
        sizes = [c.size for c, (_, by_qmc) in zip(self.channels, self._functions) if by_qmc]  # noqa: B905
        self._pool = SobolPool(draws, sum(sizes), rng) if sizes else None
        self.spacing = np.concatenate(
            [np.full(c.size, c.mechanism.spacing or 0.0) for c in self.channels]
        )

    @property
    def size(self) -> int:
        """Number of released values in all."""
        return sum(c.size for c in self.channels)

    def draw(self, statistic: np.ndarray) -> np.ndarray:
        """Release statistics of shape (count, size); returns (count, draws, size)."""
        count = len(statistic)
        repeated = np.repeat(np.asarray(statistic, "float64"), self.draws, axis=0)
        uniform = None if self._pool is None else self._pool.draw(count, self._rng)
        parts, used = [], 0
        for (channel, place), (function, by_qmc) in zip(
            spans(self.channels), self._functions, strict=True
        ):
            statistics = repeated[:, place]
            if by_qmc:
                assert uniform is not None
                u = uniform[:, :, used : used + channel.size]
                used += channel.size
                parts.append(function(u.reshape(statistics.shape), statistics))
            else:
                parts.append(function(self._rng, statistics))
        released = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return released.reshape(count, self.draws, self.size)


class GradedNoise:
    """Releases at random privacy levels, each with the logarithm of its level behind it.

    Parameters
    ----------
    channel : Channel
        The release; its own mechanism is ignored.
    mechanism : callable
        The mechanism at an array of levels.
    levels : (low, high)
        Levels are log-uniform on this range.
    statistic : ndarray of shape (count, size - 1)
        Simulated statistics. Their releases at each level give the units of that level: the spread
        at the lowest level would hide all differences at the highest.
    draws, rng, qmc
        As for `Noise`. The level is one more coordinate of the Sobol nets.
    """

    def __init__(
        self,
        channel: Channel,
        mechanism: Callable[[np.ndarray], Mechanism],
        levels: tuple[float, float],
        statistic: np.ndarray,
        draws: int,
        rng: np.random.Generator,
        *,
        qmc: bool = True,
    ):
        self.draws, self.levels = draws, levels
        self._channel, self.mechanism, self._rng = channel, mechanism, rng
        extra = [pt.matrix(dtype="float64") for _ in self._parameters(np.array(levels))]
        known = mechanism(np.array([levels[0]])).with_parameters(*extra)
        small = channel.size + 1 <= SobolPool.LARGEST
        self._quantiles = _quantiles(known, extra) if qmc and small else None
        if qmc and self._quantiles is None:
            _say_monte_carlo(channel, small)
        self._sampler = _sampler(known, extra)
        self._pool = SobolPool(draws, channel.size + 1, rng) if self._quantiles else None
        self.spacing = np.zeros(self.size)
        self._grid = np.log(np.geomspace(levels[0], levels[1], _GRID))
        ends = [self._parameters(np.array([e])) for e in levels]
        if all(np.array_equal(a, b) for a, b in zip(*ends, strict=True)):
            raise ValueError("mechanism: its noise does not depend on the level that it is given")
        at_level = [self.release(statistic, np.full(len(statistic), e), rng)
                    for e in np.exp(self._grid)]  # fmt: skip
        units = [Standard.of(z) for z in at_level]
        self._center = np.array([unit.center for unit in units])
        self._log_scale = np.log([unit.scale for unit in units])

    @property
    def size(self) -> int:
        """Number of released values, and the level."""
        return self._channel.size + 1

    def draw(self, statistic: np.ndarray) -> np.ndarray:
        """Release statistics of shape (count, size - 1); returns (count, draws, size)."""
        count = len(statistic)
        repeated = np.repeat(np.asarray(statistic, "float64"), self.draws, axis=0)
        rows = len(repeated)
        if self._pool is None:
            u = self._rng.random((rows, 1))
        else:
            u = self._pool.draw(count, self._rng).reshape(rows, -1)
        low, high = np.log(self.levels)
        level = low + (high - low) * u[:, 0]
        if self._quantiles is None:
            released = self.release(repeated, np.exp(level), self._rng)
        else:
            parameters = self._parameters(np.exp(level))
            released = self._quantiles(u[:, 1:], repeated, *parameters)
        return self.condition(released, np.exp(level)).reshape(count, self.draws, self.size)

    def condition(self, released: np.ndarray, level: np.ndarray) -> np.ndarray:
        """Return the inputs of the network: the standardised releases, and log levels."""
        log_level = np.log(level)
        columns = range(self.size - 1)
        center, log_scale = (
            np.column_stack([np.interp(log_level, self._grid, table[:, j]) for j in columns])
            for table in (self._center, self._log_scale)
        )
        return np.column_stack([(released - center) / np.exp(log_scale), log_level])

    def release(
        self, statistic: np.ndarray, level: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Release each statistic once at its level, (count, size - 1), by independent draws."""
        return self._sampler(rng, np.asarray(statistic, "float64"), *self._parameters(level))

    def _parameters(self, level: np.ndarray) -> list[np.ndarray]:
        """Return the noise parameters at each level, of shape (count, size - 1)."""
        shape = self._channel.shape
        mechanism = self.mechanism(level.reshape(-1, *[1] * len(shape)))
        arrays = []
        for parameter in mechanism.parameters:
            value = np.asarray(known_value(parameter), "float64")
            whole = np.broadcast_to(value, (len(level), *shape))
            arrays.append(np.ascontiguousarray(whole.reshape(len(level), -1)))
        return arrays


def _say_monte_carlo(channel: Channel, small: bool) -> None:
    reason = f"{type(channel.mechanism).__name__} has no quantile function"
    _log.warning(
        "%r: %s, so its noise is drawn by plain Monte Carlo; say qmc=False to ask for that",
        channel.name,
        reason if small else f"Sobol nets have at most {SobolPool.LARGEST} dimensions",
    )


def _quantiles(mechanism: Mechanism, parameters: Sequence = ()) -> Callable | None:
    """Compile ``(u, statistic, *parameters) -> release``; None if there is no quantile function."""
    u, s = pt.matrix("u", dtype="float64"), pt.matrix("s", dtype="float64")
    try:
        released = mechanism.icdf(u, s)
    except NotImplementedError:
        return None
    function = pytensor.function([u, s, *parameters], released, on_unused_input="ignore")
    return lambda *arrays: function(*map(np.ascontiguousarray, arrays))


@singledispatch
def fast_quantiles(mechanism: Mechanism) -> Callable | None:
    """Return ``(u, statistic) -> release`` for all rows together, where that costs less."""
    return None


@fast_quantiles.register
def _listed(mechanism: IntegerNoise) -> Callable | None:
    """List the quantiles of whole-number noise, whose law is the same for every statistic.

    None for noise with too many values.
    """
    edge = 0.5**_BITS / 2  # no point of a net is nearer to 0 or 1
    low, high = (mechanism.icdf(p).eval(mode=PLAIN_MODE) for p in (edge, 1.0 - edge))
    noise = np.arange(np.min(low), np.max(high) + 1.0)
    if len(noise) > _MOST_LISTED:
        return None
    log_cdf = mechanism.log_interval(-np.inf, noise[:, None]).eval(mode=PLAIN_MODE)
    cdf = np.exp(log_cdf[:-1]).T  # a row for each entry, or one for all

    def quantiles(u: np.ndarray, statistic: np.ndarray) -> np.ndarray:
        if len(cdf) == 1:
            return statistic + noise[np.searchsorted(cdf[0], u)]
        positions = [np.searchsorted(row, column) for row, column in zip(cdf, u.T, strict=True)]
        return statistic + noise[np.transpose(positions)]

    return quantiles


@fast_quantiles.register
def _runs(mechanism: BinomialMechanism) -> Callable:
    """Sum the tails once for all releases of a statistic, which stand together."""
    draws, m, population = (np.asarray(known_value(p), "float64") for p in mechanism.parameters)

    def quantiles(u: np.ndarray, statistic: np.ndarray) -> np.ndarray:
        log_odds = np.log(statistic + m) - np.log((population - statistic) + m)
        n = np.broadcast_to(draws, u.shape[1:])
        return binomial_quantiles(u, np.ascontiguousarray(n), log_odds)

    return quantiles


def _sampler(mechanism: Mechanism, parameters: Sequence = (), mode: Any = "NUMBA") -> Callable:
    """Compile ``(rng, statistic, *parameters) -> release``.

    By default with numba, whatever PyTensor's configuration says: in a graph that is not rewritten
    the generator does not move on, and the next call would draw the same noise.
    """
    rng = pt.random.shared_rng(seed=None).type("rng")
    s = pt.matrix("s", dtype="float64")
    _, released = mechanism.noise_sample(rng, s)
    inputs = [In(rng, mutable=True, borrow=True), s, *parameters]
    function = pytensor.function(inputs, released, on_unused_input="ignore", mode=mode)
    return lambda generator, *arrays: function(generator, *map(np.ascontiguousarray, arrays))


def checked_levels(noise: GradedNoise, epsilon: ArrayLike) -> np.ndarray:
    """Return privacy levels as an array; refuse those outside of the range of training."""
    levels = np.atleast_1d(np.asarray(epsilon, "float64"))
    low, high = noise.levels
    wrong = ~((levels >= low * (1 - 1e-9)) & (levels <= high * (1 + 1e-9)))
    if wrong.any():
        raise ValueError(
            f"epsilon={levels[wrong][0]:g}: the network knows levels from {low:g} to {high:g}; "
            f"train one for a wider range with dp.neural.amortise(epsilon=...)"
        )
    return levels
