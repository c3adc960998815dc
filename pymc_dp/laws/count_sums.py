"""Counts under every log-concave mechanism: the marginal is a sum, see `kernels.counts.sums`.

A closed form for a law of counts under a mechanism is registered as a pair, which is asked first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.graph.op import Op
from pytensor.scalar.basic import float64
from pytensor.scalar.math import sigmoid
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, from_numbers, from_source
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.ops import KernelOp
from pymc_dp.graphs.registry import Registry, ability
from pymc_dp.kernels import joined, key_of
from pymc_dp.kernels.counts import laws as kernels
from pymc_dp.kernels.counts.laws import CountLaw
from pymc_dp.kernels.counts.noise import ADDITIVE, ADDITIVE_ON_LATTICE, CountNoise, stepwise
from pymc_dp.kernels.counts.sums import make_count_draw, make_count_sum
from pymc_dp.laws import VALUE_LAWS, Pair
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
)
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.postprocessed import ClippedMechanism
from pymc_dp.mechanisms.suppressed import SuppressedMechanism


@dataclass(frozen=True)
class NoiseOfCounts:
    """The noise of a mechanism, as the sums over counts evaluate it.

    Attributes
    ----------
    kernel : the compiled noise, without its constant factor where the mechanism has `rates`.
    arguments : source of the tuple of parameters of the kernel, in terms of those of the mechanism,
        n0, n1, ...
    unchanged : of a mechanism that clips or withholds, the noise of values that it leaves as they
        are, and the source of the condition for that. This noise takes the last parameters only.
    """

    kernel: CountNoise
    arguments: str
    unchanged: tuple[NoiseOfCounts, str] | None = None


def noise_of(mechanism: Mechanism) -> NoiseOfCounts:
    """Return the noise of a mechanism, compiled once: sums and draws share it."""
    return _noise(mechanism) if mechanism.reads_outside else _kept_noise(mechanism)


@lru_cache(maxsize=64)
def _kept_noise(mechanism: Mechanism) -> NoiseOfCounts:
    return _noise(mechanism)


@ability
def _noise(mechanism: Mechanism) -> NoiseOfCounts:
    """Compile the noise of a mechanism that is not registered from its `logp`."""
    if not mechanism.log_concave:
        raise Declined(
            f"the probability of a release of {type(mechanism).__name__} is not known to be "
            f"log-concave in the count, so that a sum over counts may miss some. If it is, say so: "
            f"its property `log_concave` returns True, or CustomMechanism(..., log_concave=True)"
        )
    z, y = pt.dscalars("z", "y")
    parameters = [pt.dscalar() for _ in mechanism.parameters]
    mechanism = mechanism.with_parameters(*parameters)
    logp = mechanism.logp(z, y)
    names = _names("n", len(parameters))
    center = from_numbers([z, *parameters], mechanism.typical_statistic(z))
    log_noise = from_numbers([z, y, *parameters], logp)
    slope = None
    if not mechanism.is_discrete:
        slope = from_numbers([z, y, *parameters], pytensor.grad(logp, z))
    pieces = [center, log_noise, *([slope] if slope else [])]
    key = None if any(piece.key is None for piece in pieces) else repr([p.key for p in pieces])
    kernel = stepwise(center.function, log_noise.function, slope and slope.function, key)
    return NoiseOfCounts(kernel, _tuple(names))


@_noise.register
def _clipped(mechanism: ClippedMechanism) -> NoiseOfCounts:
    """Between the limits, take the noise itself: it costs less than probabilities of intervals."""
    present = [bound is not None for bound in (mechanism.lower, mechanism.upper)]
    limits = iter(_names("n", sum(present)))
    tests = [f"{next(limits)} < z"] if present[0] else []
    tests += [f"z < {next(limits)}"] if present[1] else []
    return _unless_changed(mechanism, tests)


@_noise.register
def _suppressed(mechanism: SuppressedMechanism) -> NoiseOfCounts:
    """For a printed value, take the noise itself, where the noisy value decided what is printed."""
    if not mechanism.keeps_printed:
        return _noise.dispatch(object)(mechanism)
    present = [x for x in mechanism.parameter_names if getattr(mechanism, x) is not None]
    symbols = dict(zip(present, _names("n", len(present)), strict=True))
    sides = {"below": ">=", "above": "<="}
    tests = [f"z {sides[x]} {symbols[x]}" for x in present if x in sides]
    tests = [f"({' or '.join(tests)})"] if mechanism.is_between else [*tests, "z == z"]
    tests += [f"{symbols['where']} == 0.0"] if "where" in symbols else []
    if (mark := mechanism.sentinel) is not None:
        tests.append(f"z != {mark!r}" if math.isfinite(mark) else "z - z == 0.0")
    return _unless_changed(mechanism, tests)


def _unless_changed(mechanism: Any, tests: list[str]) -> NoiseOfCounts:
    """Return the noise, with the noise of `inner` where all tests of z and the limits hold."""
    whole, inner = _noise.dispatch(object)(mechanism), noise_of(mechanism.inner)
    names, count = _names("n", len(mechanism.parameters)), len(mechanism.inner.parameters)
    shifted = dict(zip(_names("n", count), names[len(names) - count :], strict=True))

    def outer(source: str) -> str:
        return re.sub(r"\bn\d+\b", lambda match: shifted[match[0]], source)

    inner = replace(inner, arguments=outer(inner.arguments))
    if inner.unchanged is not None:
        innermost, further = inner.unchanged
        inner = replace(innermost, arguments=outer(innermost.arguments))
        tests = [*tests, outer(further)]
    return replace(whole, unchanged=(inner, " and ".join(tests)))


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)},)" if names else "()"


_LAPLACE = NoiseOfCounts(ADDITIVE, "(1.0 / n0, 0.0)")
_GEOMETRIC = NoiseOfCounts(ADDITIVE_ON_LATTICE, "(1.0 / n0, 0.0)")
_GAUSSIAN = NoiseOfCounts(ADDITIVE, "(0.0, 1.0 / n0 / n0)")
_DISCRETE_GAUSSIAN = NoiseOfCounts(ADDITIVE_ON_LATTICE, "(0.0, 1.0 / n0 / n0)")
_noise.register(LaplaceMechanism)(lambda mechanism: _LAPLACE)
_noise.register(GeometricMechanism)(lambda mechanism: _GEOMETRIC)
_noise.register(GaussianMechanism)(lambda mechanism: _GAUSSIAN)
_noise.register(DiscreteGaussianMechanism)(lambda mechanism: _DISCRETE_GAUSSIAN)


class CountSum(KernelOp):
    """Log of the sum over a count of its law times the noise.

    Inputs are the parameters of the mechanism, the parameters of the law that have no derivative,
    the release and the other parameters of the law.
    """

    nin = 0

    def __init__(self, law: CountLaw, mechanism: Mechanism):
        self.law, self.mechanism = law, mechanism
        noise = noise_of(mechanism)
        noises, thetas = _names("n", len(mechanism.parameters)), _names("t", law.n_parameters)
        self.fixed = len(noises) + law.fixed
        self.nin = self.fixed + 1 + law.n_parameters - law.fixed
        self.nout = 1 + self.nin - self.fixed
        super().__init__(name=f"{law.name}_count_sum")
        self.output_types_preference = lambda *_: [float64] * self.nout
        sums = {"kernel": _made(make_count_sum, law, noise)}
        body = f"kernel(z, {noise.arguments}, {_tuple(thetas)})"
        if noise.unchanged is not None:
            within, test = noise.unchanged
            sums["within"] = _made(make_count_sum, law, within)
            body = f"within(z, {within.arguments}, {_tuple(thetas)}) if {test} else {body}"
        piece = from_source(
            "count_sum",
            ", ".join([*noises, *thetas[: law.fixed], "z", *thetas[law.fixed :]]),
            body,
            **sums,
        )
        self.kernel, self._key = piece

    def __reduce__(self):
        """Pickle the law and the mechanism: other processes cannot load compiled code."""
        return CountSum, (self.law, self.mechanism)

    @property
    def key(self) -> str | None:
        """See `KernelOp.key`."""
        return self._key

    def __eq__(self, other):
        """Compare by the code."""
        return self is other or (
            type(other) is CountSum and self.key is not None and self.key == other.key
        )

    def __hash__(self):
        """Hash the code."""
        return hash((CountSum, self.key))


def _made(make: Callable, law: CountLaw, noise: NoiseOfCounts) -> Piece:
    key = joined(key_of((make, law)), noise.kernel.key, noise.arguments)
    return Piece(make(law, noise.kernel), key)


@dataclass(frozen=True)
class CountFamily:
    """The kernel of a law of counts; `theta` maps parameters of the op to those of the kernel."""

    law: CountLaw
    theta: Callable
    examples: tuple[tuple[float, ...], ...]


COUNT_LAWS: Registry[type, CountFamily] = Registry()


def register_counts(law: type[Op], family: CountFamily) -> None:
    """Register a law of counts: it has a pair with every mechanism of log-concave noise."""
    COUNT_LAWS.add(family, law)
    VALUE_LAWS.add(count_pair, law)


def count_pair(op: Op, mechanism: Mechanism) -> Pair:
    """Build the pair of a law of counts and a mechanism."""
    family = COUNT_LAWS[type(op)]
    law, theta, examples = family.law, family.theta, family.examples
    noise = noise_of(mechanism)
    sums = CountSum(law, mechanism)

    def log_marginal(mechanism, value, *parameters):
        value = as_float(value)
        thetas = [as_float(p) for p in theta(*parameters)]
        fixed, free = thetas[: law.fixed], thetas[law.fixed :]
        logp = sums.on(*mechanism.parameters, *fixed, value, *free)
        return logp + log_constant(mechanism, value)

    draw = count_draw(law, noise, len(mechanism.parameters)).function
    return Pair(type(op), type(mechanism), log_marginal, draw, examples, parameters=theta)


@lru_cache(maxsize=128)
def count_draw(law: CountLaw, noise: NoiseOfCounts, n_noise: int, *, spaced: bool = False) -> Piece:
    """Compile the draw of a `Pair`; with `spaced`, over the counts ``rest + k * step`` only."""
    noises, names = _names("n", n_noise), _names("t", law.n_parameters)
    more = ["step", "rest"] if spaced else []
    return from_source(
        "draw",
        ", ".join(["rng", "z", *noises, "lo", "hi", *names, *more]),
        ", ".join([f"kernel(rng, z, {noise.arguments}, {_tuple(names)}, lo, hi", *more]) + ")",
        kernel=_made(make_count_draw, law, noise),
    )


@ability
def log_constant(mechanism: Mechanism, value: TensorVariable) -> TensorVariable | float:
    """Return the constant that the sums omit from the log density; -inf for impossible releases."""
    if mechanism.rates is None:
        return 0.0
    constant = mechanism.logp(0.0, 0.0)
    whole = pt.eq(value, pt.floor(value))
    return pt.switch(whole, constant, -math.inf) if mechanism.is_discrete else constant


@log_constant.register
def _log_constant_suppressed(mechanism: SuppressedMechanism, value):
    if not mechanism.keeps_printed:
        return 0.0
    withheld = mechanism.is_withheld(value)
    constant = log_constant(mechanism.inner, pt.switch(withheld, 0.0, value))
    return pt.switch(withheld, 0.0, constant)


@log_constant.register
def _log_constant_clipped(mechanism: ClippedMechanism, value):
    inside = pt.and_(
        value > (-np.inf if mechanism.lower is None else mechanism.lower),
        value < (np.inf if mechanism.upper is None else mechanism.upper),
    )
    return pt.switch(inside, log_constant(mechanism.inner, value), 0.0)


def _same(*parameters):
    return parameters


def _single_trial(p):
    return 1.0, p


def _with_failure(n, p):
    """Return p, n and 1 - p, without cancellation where PyMC computes p as a sigmoid."""
    node = p.owner
    while node is not None and isinstance(node.op, DimShuffle | Alloc):
        node = node.inputs[0].owner
    if node is not None and getattr(node.op, "scalar_op", None) == sigmoid:
        return p, n, pt.sigmoid(-node.inputs[0])
    return p, n, 1.0 - p


@dataclass(frozen=True)
class Atom:
    """The law of a constant count; it is called as the op of a random variable is."""

    def __call__(self, value, rng=None, size=None, return_next_rng=False):
        """Return the generator and the value."""
        return rng, pt.as_tensor(value) if size is None else pt.broadcast_to(value, size)


for _law, _family in {
    ptr.PoissonRV: CountFamily(kernels.POISSON, _same, ((0.02,), (3.5,), (140.0,))),
    ptr.BinomialRV: CountFamily(kernels.BINOMIAL, _same, ((12.0, 0.3), (400.0, 0.98))),
    ptr.BernoulliRV: CountFamily(kernels.BINOMIAL, _single_trial, ((0.3,),)),
    ptr.NegBinomialRV: CountFamily(
        kernels.NEGATIVE_BINOMIAL, _with_failure, ((0.4, 0.05), (9.0, 0.2))
    ),
    ptr.GeometricRV: CountFamily(kernels.GEOMETRIC, _same, ((0.15,), (0.9,))),
    ptr.HyperGeometricRV: CountFamily(
        kernels.HYPERGEOMETRIC, _same, ((8.0, 40.0, 12.0), (300.0, 20.0, 90.0))
    ),
    Atom: CountFamily(kernels.ATOM, _same, ((4.0,),)),
}.items():
    register_counts(_law, _family)
