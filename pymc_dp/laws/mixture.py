"""Mixtures of counts, also zero-inflated ones: the marginal is the mixture of the marginals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import pytensor.tensor as pt

from pymc_dp.graphs.compiled import Piece, from_source
from pymc_dp.graphs.declined import Declined
from pymc_dp.kernels import key_of, njit
from pymc_dp.laws import VALUE_LAWS, Pair, find_pair
from pymc_dp.laws.count_sums import COUNT_LAWS, CountSum, count_draw, noise_of
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism


def split_by(widths: Iterable[int], parameters: Iterable) -> list[list]:
    """Split parameters into runs of these lengths."""
    rest = iter(parameters)
    return [list(islice(rest, width)) for width in widths]


@dataclass(frozen=True)
class MixtureLaw:
    """The law of a mixture of laws of counts; it is called as the op of a random variable is.

    The parameters are the weights, then the parameters of each component.
    """

    components: tuple
    widths: tuple[int, ...]

    def split(self, parameters):
        """Return the weights and the parameters of each component."""
        count = len(self.components)
        return parameters[:count], split_by(self.widths, parameters[count:])

    def __call__(self, *parameters, rng=None, size=None, return_next_rng=True):
        """Return the next generator and a draw."""
        weights, laws = self.split(parameters)
        drawn = []
        for law, theta in zip(self.components, laws, strict=True):
            rng, draw = law(*theta, rng=rng, size=size, return_next_rng=True)
            drawn.append(draw)
        *drawn, like = pt.broadcast_arrays(*drawn, sum(as_float(w) for w in weights))
        rng, u = pt.random.uniform(pt.zeros_like(like), rng=rng, return_next_rng=True)
        chosen, reached = drawn[-1], pt.zeros_like(like)
        for weight, draw in reversed(list(zip(weights[1:], drawn[:-1], strict=True))):
            reached = reached + weight
            chosen = pt.switch(u >= reached, draw, chosen)
        return rng, chosen


@njit(cache=True, nogil=True, error_model="numpy")
def choose(rng, weights, log_sums):
    """Draw a component with probability proportional to weight exp(log_sum)."""
    top = -math.inf
    for weight, log_sum in zip(weights, log_sums):  # noqa: B905  (numba has no strict=)
        if weight > 0.0:
            top = max(top, log_sum)
    total = 0.0
    for weight, log_sum in zip(weights, log_sums):  # noqa: B905
        total += weight * math.exp(log_sum - top)
    remaining, last = total * rng.random(), 0
    for k in range(len(weights)):
        share = weights[k] * math.exp(log_sums[k] - top)
        if share > 0.0:
            last = k
            remaining -= share
            if remaining < 0.0:
                break
    return last


def mixture_pair(law: MixtureLaw, mechanism: Mechanism) -> Pair:
    """Build the pair of a mixture and a mechanism from the pairs of the components."""
    if any(type(component) not in COUNT_LAWS for component in law.components):
        raise Declined
    pairs = [find_pair(component, mechanism, closed=True) for component in law.components]

    def log_marginal(mechanism, value, *parameters):
        weights, laws = law.split(parameters)
        terms = [
            pt.log(as_float(weight)) + pair.log_marginal(mechanism, value, *law_parameters)
            for pair, weight, law_parameters in zip(pairs, weights, laws, strict=True)
        ]
        return pt.logsumexp(pt.stack(pt.broadcast_arrays(*terms), axis=-1), axis=-1)

    def parameters(*all_parameters):
        weights, laws = law.split(all_parameters)
        thetas = (
            COUNT_LAWS[type(component)].theta(*law_parameters)
            for component, law_parameters in zip(law.components, laws, strict=True)
        )
        return *weights, *(t for theta in thetas for t in theta)

    draw = _draw(law, mechanism)
    return Pair(MixtureLaw, type(mechanism), log_marginal, draw, (), parameters=parameters)


def _draw(law: MixtureLaw, mechanism: Mechanism):
    noise = noise_of(mechanism)
    noises = [f"n{i}" for i in range(len(mechanism.parameters))]
    weights = [f"w{k}" for k in range(len(law.components))]
    kernels = [COUNT_LAWS[type(component)].law for component in law.components]
    names = [[f"t{k}_{i}" for i in range(kernel.n_parameters)] for k, kernel in enumerate(kernels)]
    sums, draws = [], []
    pieces: dict[str, Piece] = {}
    for k, (kernel, symbols) in enumerate(zip(kernels, names, strict=True)):
        op = CountSum(kernel, mechanism)
        arguments = [*noises, *symbols[: kernel.fixed], "z", *symbols[kernel.fixed :]]
        sums.append(f"sum{k}({', '.join(arguments)})[0]")
        draws.append(f"draw{k}({', '.join(['rng', 'z', *noises, 'lo', 'hi', *symbols])})")
        pieces |= {
            f"sum{k}": Piece(op.kernel, op.key),
            f"draw{k}": count_draw(kernel, noise, len(noises)),
        }
    arguments = [
        "rng",
        "z",
        *noises,
        "lo",
        "hi",
        *weights,
        *(n for symbols in names for n in symbols),
    ]
    cases = " else ".join(f"{draw} if k == {k}" for k, draw in enumerate(draws[:-1]))
    selected = from_source(
        "selected", ", ".join(["k", *arguments]), f"{cases} else {draws[-1]}", **pieces
    )
    chosen = f"choose(rng, ({', '.join(weights)},), ({', '.join(sums)},))"
    return from_source(
        "draw",
        ", ".join(arguments),
        f"selected({', '.join([chosen, *arguments])})",
        choose=Piece(choose, key_of(choose)),
        selected=selected,
        **{name: piece for name, piece in pieces.items() if name.startswith("sum")},
    ).function


VALUE_LAWS.add(mixture_pair, MixtureLaw)
