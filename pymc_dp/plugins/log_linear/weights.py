r"""Log-linear weights with any prior: a row's probability is proportional to exp of their sum.

Messages go up the junction tree, :math:`m_C(s) = \log \sum_{c : s} \exp(\psi_C(c) + \sum m(c))`,
with the messages of the cliques below. So :math:`\psi_C + \sum m - m_C` is the log of the
probabilities of a clique's cells given its separator, and the tables are Multinomial along the
tree:

.. math::

    p(n_C) = n! \prod_C \prod_c p(c \mid s)^{n_C(c)} / n_C(c)! \; \prod_S \prod_s n_S(s)! .

Source: Lauritzen & Spiegelhalter (1988), Local computations with probabilities on graphical
structures, Journal of the Royal Statistical Society B 50(2), 157-224.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.logprob.abstract import _logprob
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.plugins.log_linear.cliques import Columns, JunctionTree
from pymc_dp.plugins.log_linear.layout import draw_tables, joint
from pymc_dp.plugins.log_linear.tables import CliqueTablesRV, log_counts


class WeightedTablesRV(CliqueTablesRV):
    """Counts of the cells of all cliques, of n rows with given probabilities.

    Inputs are n and the logs of the probabilities of each cell given its separator.
    """

    signature = "(),(t)->(t)"

    def rng_fn(self, rng, n, logs, size):
        """Draw tables."""
        shape = np.broadcast_shapes(np.shape(n), np.shape(logs)[:-1])
        shape = shape if size is None else tuple(size)
        logs = np.broadcast_to(logs, (*shape, np.shape(logs)[-1]))
        drawn = [
            draw_tables(rng, self.tree, joint(self.tree, np.exp(own)), int(rows))
            for rows, own in zip(
                np.broadcast_to(n, shape).ravel(), logs.reshape(-1, logs.shape[-1]), strict=True
            )
        ]
        return np.reshape(drawn, logs.shape).astype("int64")


@_logprob.register(WeightedTablesRV)
def _weighted_logprob(op, values, rng, size, n, logs, **kwargs):
    [value] = values
    logp = log_counts(op.tree, value, n, lambda counts, columns: -pt.gammaln(counts + 1.0))
    return logp + pt.sum(value * logs)


def conditionals(tree: JunctionTree, weights: Mapping[Columns, Any]) -> TensorVariable:
    """Return the logs of the probabilities of all cliques' cells given their separators.

    Raises
    ------
    ValueError
        A term in no clique, or weights of another shape than the levels of its columns.
    """
    potentials: list[TensorVariable] = [pt.zeros(tree.shape(c)) for c in tree.cliques]
    for term, given in weights.items():
        lam, shape = pt.as_tensor(given), tree.shape(term)
        if lam.type.ndim != len(shape) or any(
            a not in (None, b) for a, b in zip(lam.type.shape, shape, strict=True)
        ):
            raise ValueError(
                f"the weights of the term {', '.join(term)} have the shape {lam.type.shape}: its "
                f"columns have the levels {shape}"
            )
        _add(tree, potentials, tree.clique_of(term), term, pt.specify_shape(lam, shape))
    logs = []
    for i in reversed(range(len(tree.cliques))):
        clique, separator = tree.cliques[i], tree.separators[i]
        gone = tuple(j for j, c in enumerate(clique) if c not in separator)
        message = pt.logsumexp(potentials[i], axis=gone, keepdims=True)
        logs.append((potentials[i] - message).ravel())
        if separator:
            kept = tuple(c for c in clique if c in separator)
            reduced = message.reshape(tree.shape(kept))
            _add(tree, potentials, tree.parents[i], kept, reduced)
    return pt.concatenate(logs[::-1])


def given_probabilities(rv: TensorVariable, posterior: xr.Dataset) -> Iterator[list[np.ndarray]]:
    """Return the probabilities of all cliques' cells, for one posterior draw after the other."""
    _, logs = rv.owner.op.dist_params(rv.owner)
    sources = nearest_rvs([logs])
    if missing := [str(v.name) for v in sources if v.name not in posterior]:
        raise ValueError(
            f"{rv.name!r}: the result has no draws of {missing[0]!r}, of which its weights are "
            f"made; was var_names= given?"
        )
    at = pytensor.function(sources, logs)
    values = [posterior[v.name].to_numpy().astype(v.dtype) for v in sources]
    for place in np.ndindex(posterior.sizes["chain"], posterior.sizes["draw"]):
        yield joint(rv.owner.op.tree, np.exp(at(*(v[place] for v in values))))


def _add(tree: JunctionTree, potentials: list, place: int, term: Columns, lam) -> None:
    clique = tree.cliques[place]
    order = sorted(range(len(term)), key=lambda i: clique.index(term[i]))
    shape = [tree.levels[c] if c in term else 1 for c in clique]
    potentials[place] = potentials[place] + lam.transpose(*order).reshape(shape)
