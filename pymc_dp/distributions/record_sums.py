"""Sums over records that are never built."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Distribution
from pymc.util import check_dist_not_registered
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.tensor import TensorLike
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_dp.reading.record_sums import RecordSumsRV

__all__ = ["RecordSums"]


class RecordSums(Distribution):
    r"""Sums over the records of each of some groups, whose sizes may be confidential.

    Entry j is

    .. math::

        s_j = \sum_{i=1}^{n_j} h(x_{ij}), \qquad x_{ij} \sim f_j \text{ independently},

    with the law :math:`f_j` of entry j. The records are never built: released with noise, as they
    are or as means ``total / n`` or centred sums ``total - 15 * n``, the sums are integrated out,
    and with them their numbers, where these are random variables. `dp.recover` draws both.

    Parameters
    ----------
    law : unnamed distribution
        Of a record, such as ``pm.Normal.dist(theta, s)``: of the shape of the groups, or a scalar
        where all have one law.
    n : tensor_like of int
        Numbers of records, >= 0: known ones, or a count variable such as ``pm.Poisson("n", rate,
        dims="clinic")``.
    of : callable, optional
        What is summed of each record, elementwise: ``lambda x: x.clip(0, 30)``. The records
        themselves by default.

    Raises
    ------
    TypeError
        A law that is no univariate distribution made by ``.dist()``, numbers that are not whole,
        or an `of` that does not compute one value from each record.
    ValueError
        A negative known number.

    Notes
    -----
    Without noise their density is known where their law is: of sums of Normal, Poisson, Bernoulli,
    Binomial, Gamma, Exponential and negative binomial records themselves.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model(coords={"clinic": ["A", "B"]}):
    ...     n = pm.Poisson("n", 60, dims="clinic")
    ...     stay = pm.Normal.dist(pm.Normal("theta", 5, 5, dims="clinic"), 4)
    ...     total = dp.RecordSums("total", stay, n, of=lambda x: x.clip(0, 30), dims="clinic")
    ...     count = dp.PrivateObservation("count", n, dp.LaplaceMechanism(1), observed=[57.2, 88.1])
    ...     z = dp.PrivateObservation("z", total, dp.LaplaceMechanism(30), observed=[310.0, 402.5])
    """

    rv_type = RecordSumsRV
    rv_op = RecordSumsRV.rv_op

    @classmethod
    def dist(
        cls, law: TensorVariable, n: TensorLike, of: Callable | None = None, **kwargs
    ) -> TensorVariable:
        """Build the sums, unnamed."""
        op = getattr(getattr(law, "owner", None), "op", None)
        if getattr(op, "ndim_supp", None) != 0:
            raise TypeError(
                f"RecordSums: law={law} is no univariate distribution: write one by .dist(), such "
                f"as pm.Normal.dist(mu, sigma)"
            )
        check_dist_not_registered(law)
        n = pt.as_tensor(n)
        if not n.dtype.startswith(("int", "uint")):
            raise TypeError(
                f"RecordSums: n={n} has to be whole numbers, or a count variable such as "
                f"pm.Poisson('n', rate), not of type {n.dtype}"
            )
        if isinstance(n, pt.TensorConstant) and np.any(n.data < 0):
            raise ValueError(f"RecordSums: n={n.data} has to be >= 0, the numbers of records")
        if of is not None:
            x = pt.tensor(dtype=law.dtype, shape=(None,) * (law.type.ndim + 1))
            summand = of(x)
            by_record = isinstance(summand, TensorVariable) and all(
                isinstance(node.op, Elemwise) or x not in ancestors(node.outputs)
                for node in toposort([summand], blockers=[x])
            )
            if not by_record or summand.type.ndim != x.type.ndim:
                raise TypeError(
                    "RecordSums: of= has to compute one value from each record, such as "
                    "of=lambda x: x.clip(0, 30); the sum over them is taken for you"
                )
            variables = [
                v for v in graph_inputs([summand]) if v is not x and not isinstance(v, Constant)
            ]
            if variables:
                raise TypeError(
                    "RecordSums: of= may use its argument and numbers only, no other variables: a "
                    "bound that is random, or pm.Data, can be no part of what is summed"
                )
        return super().dist([law, n], of=of, **kwargs)
