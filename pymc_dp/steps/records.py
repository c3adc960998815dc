"""Record-additive Metropolis within Gibbs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.step_methods.compound import Competence
from pymc.step_methods.state import dataclass_state
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import NormalRV

from pymc_dp.kernels.records import draw_records, sweep_records
from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism
from pymc_dp.propriety import check_proper
from pymc_dp.records import children, is_tagged, read_records
from pymc_dp.starting import feasible_point
from pymc_dp.steps.base import DPStep, DPStepState, as_row, point_function, unusable


@dataclass_state
class RecordMetropolisState(DPStepState):
    """Whether the records of this chain were drawn from their law yet."""

    started: bool


class RecordMetropolis(DPStep):
    r"""Update confidential records one by one, each in O(1) (Ju, Awan, Gong & Rao, 2022).

    Proposes :math:`x_i^* \sim f(\cdot \mid \theta)` and accepts with probability
    :math:`\min\{1, \eta(z \mid s^*)/\eta(z \mid s)\}`: the density f cancels. The first call in a
    chain puts the parameters of the records back to their starting values and draws the records
    from f: PyMC starts every record at its mean, where a step that runs before this one would let
    the spread collapse.

    Parameters
    ----------
    vars : list of TensorVariable
        One vector of identically distributed Normal records whose mean, sum or variance is
        released under Laplace or Gaussian noise.
    model : pm.Model, optional
        The model of the context by default.
    restart : bool, default True
        Whether the first call puts the parameters back, too. Not needed, and in the way of
        ``initvals=``, where this step is the first of the list.
    """

    name = "dp_record"
    default_blocked = False  # a step for each vector of records
    _state_class = RecordMetropolisState
    stats_dtypes_shapes: ClassVar[dict] = {"dp_record_accept": (np.float64, [])}

    def __init__(self, vars, *, restart: bool = True, **kwargs):
        self.restart = restart
        super().__init__(vars, **kwargs)

    def _prepare(self, model, initial_point):
        if len(self.model_rvs) != 1:
            raise ValueError(
                f"RecordMetropolis updates one vector of records; write one step for each of "
                f"{[rv.name for rv in self.model_rvs]}"
            )
        [rv] = self.model_rvs
        if not isinstance(rv.owner.op, NormalRV):
            raise ValueError(
                f"RecordMetropolis cannot update {rv.name!r}, which follows {rv.owner.op}: it "
                f"updates Normal(mu, sigma) records; pass step=pm.NUTS([...]) for others"
            )
        group = read_records(model, rv)
        # Records whose release was taken away, by pm.do say, are drawn from their law.
        if not group.releases and not is_tagged(rv):
            raise ValueError(
                f"RecordMetropolis cannot update {rv.name!r}: nothing of it is released"
            )
        known = {r.rv for r in group.releases}
        for child in children(model, rv):
            if child not in known:
                raise ValueError(
                    f"RecordMetropolis cannot update {rv.name!r}: {child.name!r} depends on it too"
                )
        check_proper(model, group)
        self.x_name = model.rvs_to_values[rv].name
        rows = [_noise_rows(model, release) for release in group.releases]
        parameters = pt.stack([group.mean, pt.sqrt(group.variance)])
        self._law, self._law_inputs = point_function(model, parameters)
        noise = pt.concatenate(rows, axis=1) if rows else pt.zeros((3, 0))
        self._noise, self._noise_inputs = point_function(model, noise)
        components = [c for r in group.releases for c in r.components]
        factors = [[c.mean, c.variance, c.constant] for c in components]
        self._factors = np.array(factors).reshape(-1, 3).T.copy()
        bounds = group.bounds
        self._bounds = (bounds is not None, *(bounds or (0.0, 0.0)))
        self._n = group.n
        starts: dict = {}
        if self.restart:
            starts = feasible_point(model) if initial_point is None else initial_point
        above = [v for v in ancestors([rv]) if v in model.free_RVs and v is not rv]
        names = [model.rvs_to_values[v].name for v in above]
        self._start = {name: np.asarray(starts[name]) for name in names if name in starts}
        self.started = False

    def setup_chain(self, rng, tune, draws):
        """Forget the records of the last chain."""
        super().setup_chain(rng, tune, draws)
        self.started = False

    def step(self, point):
        """Sweep over all records."""
        if not self.started:
            point = {**point, **self._start}
        m, sd = self._law(*[point[i] for i in self._law_inputs]).tolist()
        if self.started:
            x = point[self.x_name].copy()
        else:
            x = draw_records(self.rng, self._n, m, sd, *self._bounds)
            self.started = True
        lam, tau, z = self._noise(*[point[i] for i in self._noise_inputs])
        if z.size != self._factors.shape[1] or not (lam + tau > 0).all() or np.isnan(z).any():
            raise unusable(self.x_name)
        accepted = sweep_records(self.rng, x, m, sd, *self._factors, lam, tau, z, *self._bounds)
        return {**point, self.x_name: x}, [{"dp_record_accept": accepted / x.size}]

    @classmethod
    def competence(cls, var, has_grad=None):
        """IDEAL for records that `PrivateObservation` tagged."""
        return Competence.IDEAL if is_tagged(var) else Competence.INCOMPATIBLE

    @staticmethod
    def _progressbar_config(n_chains=1):
        from rich.progress import TextColumn
        from rich.table import Column

        columns = [
            TextColumn("{task.fields[dp_accept]:0.2f}", table_column=Column("DP accept", ratio=1))
        ]
        return columns, {"dp_accept": [0.0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions():
        def update(step_stats):
            return {"dp_accept": step_stats["dp_record_accept"]}

        return (update,)


def _noise_rows(model: pm.Model, release):
    """Laplace rate, Gaussian precision and value of each entry of a release, as graph rows."""
    mechanism = release.op.mechanism.with_parameters(*release.parameters)
    value = model.rvs_to_values[release.rv]
    zero = pt.zeros_like(value)
    match mechanism:
        case LaplaceMechanism():
            return as_row(1 / mechanism.scale + zero, zero, value)
        case GaussianMechanism():
            return as_row(zero, mechanism.sigma**-2 + zero, value)
    raise ValueError(
        f"RecordMetropolis cannot use the release {release.name!r} under "
        f"{type(mechanism).__name__}: LaplaceMechanism and GaussianMechanism are supported. Use "
        f"dp.collapse(to='statistics')"
    )
