"""Sums of independent binomial counts of different probabilities, integrated out of a release."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_dp.graphs.compiled import Piece, from_source
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import per_draw
from pymc_dp.kernels import joined, key_of
from pymc_dp.kernels.counts.binomial_sums import make_binomial_sum_draws, make_binomial_sums
from pymc_dp.laws.count_sums import NoiseOfCounts, log_constant, noise_of
from pymc_dp.laws.integrated import Integrated, in_results
from pymc_dp.laws.kernel_call import KernelCall, doubles
from pymc_dp.mechanisms.base import Mechanism


@lru_cache(maxsize=64)
def _compiled(make: Callable, noise: NoiseOfCounts, arguments: str) -> Piece:
    """Compile a kernel for a noise; the parameters of the noise are rows of an array."""
    parameters = re.sub(r"\bn(\d+)\b", r"row[\1]", noise.arguments)
    unpack = from_source("unpack", "row", parameters)
    key = joined(key_of(make), noise.kernel.key, noise.arguments)
    kernel = Piece(make(noise.kernel, unpack.function), key)
    return from_source("of_entries", arguments, f"kernel({arguments})", kernel=kernel)


class BinomialSums(KernelCall):
    """Log densities of noisy sums of binomial counts; see `kernels.counts.binomial_sums`.

    The gradient of the first output *is* the other outputs of the same node. Second derivatives are
    not available.
    """

    def __init__(self, mechanism: Mechanism):
        self.mechanism = mechanism
        arguments = "rows, z, trials, chance, entry"
        self.piece = _compiled(make_binomial_sums, noise_of(mechanism), arguments)

    def __reduce__(self):
        """Pickle the mechanism: other processes cannot load compiled code."""
        return BinomialSums, (self.mechanism,)

    def __eq__(self, other):
        """Compare by the code."""
        return type(other) is BinomialSums and self.piece.function is other.piece.function

    def __hash__(self):
        """Hash the code."""
        return hash((BinomialSums, self.piece.function))

    def make_node(self, rows, z, trials, chance, entry):
        """Apply to the noise, the release, and the cells, sorted by the entry that each is in."""
        inputs = doubles(rows, z, trials, chance, entry)
        shapes = [inputs[1].type.shape, inputs[1].type.shape, inputs[3].type.shape]
        return Apply(self, inputs, [pt.vector(shape=s, dtype="float64") for s in shapes])

    def connection_pattern(self, node):
        """Connect the release and the probabilities to the density."""
        return [[i in (1, 3), False, False] for i in range(5)]

    def pullback(self, inputs, outputs, cotangents):
        """Return the derivatives that came with the value."""
        first, *second_order = cotangents
        if not all(isinstance(g.type, DisconnectedType) for g in second_order):
            raise Declined("the density has no second derivatives")
        of_cell = first[inputs[4].astype("int64")]
        gradients = [disconnected_type() for _ in inputs]
        gradients[1], gradients[3] = first * outputs[1], of_cell * outputs[2]
        return gradients

    def call(self):
        """See `KernelCall.call`."""
        return self.piece.function


@register_funcify_and_cache_key(BinomialSums)
def _numba_binomial_sums(op, node, **kwargs):
    kernel = op.piece.function

    @numba_njit
    def binomial_sums(rows, z, trials, chance, entry):
        return kernel(rows, z, trials, chance, entry)

    return binomial_sums, joined(op.piece.key, key_of(_numba_binomial_sums))


@dataclass(frozen=True, eq=False)
class SumsOfBinomials(Integrated):
    """Sums over cells, each a binomial count; the parameter is the probabilities of the cells.

    The entries of the release, raveled, are independent ``factor * sum + constant``.

    Attributes
    ----------
    names : the name in results of the sums.
    trials : the trials of each cell.
    entry : the entry that each cell is in, in increasing order.
    factor, constant : a number for each entry.
    shape : the shape of the release.
    """

    names: tuple[str]
    trials: np.ndarray
    entry: np.ndarray
    factor: np.ndarray
    constant: np.ndarray
    shape: tuple[int, ...]
    by_entry = True

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        return {"binomial sums, cell": self.entry.size}

    def draw(self, rng, chance):
        """See `Integrated.draw`."""
        trials = self.trials.astype("int64")
        rng, counts = pt.random.binomial(trials, chance, rng=rng, return_next_rng=True)
        sums = pt.inc_subtensor(pt.zeros(self.factor.size)[self.entry], counts.astype("float64"))
        return rng, (self.factor * sums + self.constant).reshape(self.shape)

    def standardised(self, value, mechanism: Mechanism):
        """Return the noise and the value, raveled, as if the factors were 1."""
        parameters = (pt.broadcast_to(p, self.shape).ravel() for p in mechanism.parameters)
        noise = mechanism.with_parameters(*(p / abs(self.factor) for p in parameters))
        return noise, (value.ravel() - self.constant) / self.factor

    def logp(self, value, mechanism, chance):
        """See `Integrated.logp`."""
        noise, z = self.standardised(value, mechanism)
        rows = pt.stack([p.astype("float64") for p in noise.parameters])
        sums, _, _ = BinomialSums(mechanism)(rows, z, self.trials, chance, self.entry)
        logp = sums - np.log(abs(self.factor))
        if mechanism.rates is not None:  # the kernel omits the constant of the noise
            logp = logp + log_constant(noise, z)
        return logp.reshape(self.shape)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, [chance] = rv.owner.op.split(rv.owner.inputs)
        noise, z = self.standardised(value, mechanism)
        arguments = "rng, rows, z, trials, chance, entry"
        draw = _compiled(make_binomial_sum_draws, noise_of(mechanism), arguments).function
        graphs = pt.stack(noise.parameters), z, chance
        inputs = [per_draw(posterior, graph.astype("float64")) for graph in graphs]
        drawn = np.array(
            [
                draw(rng, rows, z, self.trials, p, self.entry)
                for rows, z, p in zip(*inputs, strict=True)
            ]
        )
        return in_results(posterior, *self.names, drawn.reshape(-1, *self.shape), whole=True)
