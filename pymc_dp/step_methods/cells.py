"""Draws of counts of a few cells that share what was released, with moves of their parameters."""

from __future__ import annotations

from functools import partial

from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.groups import blocks
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods.base import tagged_competence
from pymc_dp.step_methods.records import RecordMetropolis
from pymc_dp.step_methods.registry import STEPS, accepted, concerned
from pymc_dp.step_methods.table_entries import read_table, together
from pymc_dp.step_methods.tables import TableGibbs

_MOST_ENTRIES = 32  # of the releases: each is a scalar of compiled code


@STEPS.register(order=55)
class CellGibbs(RecordMetropolis):
    r"""Draw Poisson or Binomial counts of cells that share noisy sums, as in :math:`X'y`.

    The moves of `RecordMetropolis` [1]_ [2]_, with cells in the place of records, come first. Where
    the noise is large, they move the parameters along with the counts; given the counts, the
    parameters would move by the width of a posterior without noise only. Draws of `TableGibbs`
    follow. Where the noise is small, they move the counts in directions that releases leave open.

    Parameters
    ----------
    vars : list of TensorVariable
        Vectors of Poisson, Binomial or Bernoulli counts that are for `TableGibbs`, some of which
        are in several entries of one release.
    sweeps, interweave, restart : optional
        As of `RecordMetropolis`.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError, NotImplementedError
        Naming the variable that cannot be drawn, and why.

    References
    ----------
    .. [1] N. Ju, J. Awan, R. Gong, V. Rao (2022). Data augmentation MCMC for Bayesian inference
       from privatized data. NeurIPS 35.
    .. [2] Y. Yu, X.-L. Meng (2011). To center or not to center: that is not the question. Journal
       of Computational and Graphical Statistics 20, 531-570.

    Examples
    --------
    Logistic regression on a binary covariate, of which :math:`X'y` was released:

    >>> import numpy as np
    >>> import pymc as pm
    >>> import pytensor.tensor as pt
    >>> import pymc_dp as dp
    >>> X = np.array([[1, 0], [1, 1]])  # two kinds of records, of 40 each
    >>> with pm.Model() as model:
    ...     b = pm.Normal("b", 0, 1, shape=2)
    ...     y = pm.Binomial("y", 40, logit_p=pt.dot(X, b), shape=2)
    ...     noise = dp.LaplaceMechanism(2.0)
    ...     z = dp.PrivateObservation("z", pt.dot(X.T, y), noise, observed=[45, 28])
    >>> step = dp.CellGibbs([y], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> point["y"].shape
    (2,)
    """

    name = "dp_cell"

    @classmethod
    def claims(cls, reading, left):
        """Claim counts of cells that share the entries of a release."""
        whole = [rv for rv in concerned(reading, left) if not rv.dtype.startswith("float")]
        return [accepted(partial(_check_cells, reading), whole)]

    def _prepare(self, reading, initial_point):
        for rv in self.model_rvs:
            _check_cells(reading, rv)
        super()._prepare(reading, initial_point)
        how = {
            "interweave": False,
            "initial_point": initial_point,
        }  # the parameters moved with the counts before
        self.tables = TableGibbs(self.vars, model=reading.model, **how)

    def setup_chain(self, rng, tune, draws):
        """Forget the last chain."""
        super().setup_chain(rng, tune, draws)
        self.tables.setup_chain(self.rng, tune, draws)

    def step(self, point):
        """Move parameters along with the counts, and draw these."""
        point, stats = super().step(point)
        self.tables.rng = self.rng
        point, _ = self.tables.step(point)
        return point, stats

    @classmethod
    def competence(cls, var, has_grad=None):
        """IDEAL for variables tagged with this step's name, which `dp.collapse` does."""
        return tagged_competence(cls.__name__, var)


def _check_cells(reading: Reading, rv: TensorVariable) -> None:
    """Refuse counts that do not share entries, or whose parameters are of one cell each."""
    if len(together(reading, rv)) > 1:
        raise Declined("its releases are of other counts, too. Write TableGibbs")
    entries = read_table(reading, rv)
    if entries.which.max(initial=0) >= _MOST_ENTRIES:
        raise Declined(f"its releases have more than {_MOST_ENTRIES} entries. Write TableGibbs")
    if rv.type.ndim != 1 or not entries.shared:
        raise Declined("none of its cells is in several entries of a release. Write TableGibbs")
    [block] = blocks(reading, (rv,))
    if len(block.records) > 1:
        raise Declined("a parameter has an entry of its own for each cell. Write TableGibbs")
