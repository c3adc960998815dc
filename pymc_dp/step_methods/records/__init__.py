"""Record-additive Metropolis within Gibbs, with interweaving moves of the parameters."""

from __future__ import annotations

import logging
import math
from typing import ClassVar

import numpy as np
import pymc as pm
from pymc.step_methods.compound import Competence
from pymc.step_methods.state import dataclass_state
from pytensor.graph.traversal import ancestors

from pymc_dp.graphs.declined import notice
from pymc_dp.graphs.values import nearest_rvs, public_data
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.model import release_statistic, releases
from pymc_dp.reading.privacy import Loss, stated_loss
from pymc_dp.reading.tags import is_tagged
from pymc_dp.step_methods.base import unusable
from pymc_dp.step_methods.records.adaptation import WalkAdaptation, WalkingState, WalkingStep
from pymc_dp.step_methods.records.checks import checked_blocks
from pymc_dp.step_methods.records.engine import Engine
from pymc_dp.step_methods.registry import STEPS

_log = logging.getLogger("pymc.dp")

_PROPOSALS_PER_DRAW = 2_000  # several sweeps over few records cost no more than PyMC's own loop
_MAX_SWEEPS = 20
_MANY_RECORDS = 100_000
_TRIES = 1_000
_REFUSED, _REFUSED_EACH = 3, 0.01  # refused records from which on to warn: in all, and per sweep


@dataclass_state
class RecordMetropolisState(WalkingState):
    """Whether the records were drawn from their law yet, and what the moves learned.

    The records live in the point; the sums and their centres are computed from them.
    """

    started: bool


@STEPS.register(order=10)
class RecordMetropolis(WalkingStep):
    r"""Update confidential records one by one, and move their parameters along with them.

    Proposes :math:`x_i^* \sim f(\cdot \mid \theta)` and accepts with probability :math:`\min\{1,
    \eta(z \mid s^*)/\eta(z \mid s)\}`: the density f cancels [1]_. Where the log density of the
    releases is a function of sums over the records, whatever the statistic, a proposal costs O(1);
    else the statistic is computed afresh, O(n), still exact. Variables with one entry for each
    record (a row :math:`x_i`, :math:`y_i \mid x_i`) are proposed together.

    After each sweep the continuous parameters move by random walks that hold the noise behind the
    records fixed (interweaving [2]_), tuned during warm-up: they keep the chain mixing where the
    privacy noise is larger than the sampling error. Another step updates the parameters given the
    records.

    The first call in a chain puts the parameters of the records back to their starting values and
    draws the records from f: PyMC starts every record at its mean, where a step that runs
    before this one would let the spread collapse.

    The posterior is cut to records that double precision can hold. Where a law has probability p
    beyond (within 2e-16 of one, under a Beta law with a tiny second parameter, say), the parameters
    are weighted by :math:`(1 - p)^n`. The step counts refused draws after warm-up, and warns if
    there are more than one in 100 sweeps.

    Beside NUTS for the parameters, divergences may appear: the records, and so the target of NUTS,
    change at every draw. A higher ``target_accept`` helps.

    Parameters
    ----------
    vars : list of TensorVariable
        Confidential records: unobserved variables with one entry for each record along their first
        axis, of any law that PyMC can draw from.
    sweeps : int, optional
        Sweeps to a recorded draw; by default 2,000 proposals' worth, at least one and at most 20.
    interweave : bool, default True
        Whether to move the parameters along with the records.
    restart : bool, default True
        Whether the first call puts the parameters back, too. Not needed, and in the way of
        ``initvals=``, where this step is the first of the list.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Naming the variable: records that are observed, a single draw or tied together; a `sweeps`
        below 1; releases that no records can lead to.

    Notes
    -----
    Statistics in ``sample_stats``: ``dp_record_accept``, the accepted share of the proposals of
    records; ``dp_record_lowest``, the lowest acceptance probability of the draw; and
    ``dp_record_move``, the accepted share of the interweaving moves.

    References
    ----------
    .. [1] N. Ju, J. Awan, R. Gong, V. Rao (2022). Data augmentation MCMC for Bayesian inference
       from privatized data. NeurIPS 35.
    .. [2] Y. Yu, X.-L. Meng (2011). To center or not to center: that is not the question. Journal
       of Computational and Graphical Statistics 20, 531-570.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     x = pm.Normal("x", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", x.max(), dp.LaplaceMechanism(9.3), observed=74.3)
    >>> step = dp.RecordMetropolis([x], model=model, rng=1)
    >>> point, [stats] = step.step(model.initial_point())
    >>> point["x"].shape, 0 < stats["dp_record_accept"] <= 1
    ((43,), True)
    """

    name = "dp_record"
    chosen_options: ClassVar = {
        "restart": False
    }  # a chosen step comes first: no step has run before it

    @classmethod
    def claims(cls, reading, left):
        """Claim all vectors of records that `PrivateObservation` tagged."""
        return [[rv for rv in left if is_tagged(rv)]]

    _state_class = RecordMetropolisState
    stats_dtypes_shapes: ClassVar[dict] = {
        "dp_record_accept": (np.float64, []),
        "dp_record_lowest": (np.float64, []),
        "dp_record_move": (np.float64, []),
    }

    def __init__(
        self,
        vars,
        *,
        sweeps: int | None = None,
        interweave: bool = True,
        restart: bool = True,
        **kwargs,
    ):
        if sweeps is not None and sweeps < 1:
            raise ValueError(f"sweeps={sweeps}: write the number of sweeps to a draw, at least 1")
        self.sweeps, self.interweave, self.restart = sweeps, interweave, restart
        observed = set(pm.modelcontext(kwargs.get("model")).observed_RVs)
        for rv in observed & set(vars):
            raise ValueError(
                f"RecordMetropolis cannot update {rv.name!r}: it is observed. Declare confidential "
                f"records without observed=, and what was published of them with "
                f"dp.PrivateObservation"
            )
        super().__init__(vars, **kwargs)

    def _prepare(self, reading, initial_point):
        model = reading.model
        point = feasible_point(model) if initial_point is None else initial_point
        record_blocks = checked_blocks(reading, self.model_rvs, point)
        self.engines = [Engine(model, block, point) for block in record_blocks]
        named = set(self.model_rvs)
        # Variables of the same record that were not named belong to this step, too.
        records = [rv for engine in self.engines for rv in engine.block.records]
        self.vars = [model.rvs_to_values[rv] for rv in model.free_RVs if rv in records]
        self._hold_whole(
            [r for r in releases(model) if named & set(nearest_rvs([release_statistic(r)]))]
        )
        self._losses = [stated_loss(model, engine.block) for engine in self.engines]
        for engine in self.engines:
            say_what_is_slow(engine, self.interweave)
        above = set(ancestors(records)) - set(records)
        names = [model.rvs_to_values[v].name for v in model.free_RVs if v in above]
        # Starting values may be computed from these data.
        notice(*public_data([i for v in above if v.owner for i in v.owner.inputs]))
        self._start = {name: np.asarray(point[name]) for name in names if self.restart}
        self._reset()

        # Where PyMC starts chains at different places, the restart does so, too.
        varied = [v.name for v in model.free_RVs if _starts_at_random(model, v) and v in above]
        self._varied_start = model if varied and self.restart else None

    def _starting_values(self) -> dict[str, np.ndarray]:
        """Return the starting values of the records' ancestors, by the chain's own generator."""
        if self._varied_start is None:
            return self._start
        point = feasible_point(self._varied_start, int(self.rng.integers(2**31)))
        return {name: point[name] for name in self._start}

    def _reset(self) -> None:
        self.started = False
        pairs = zip(self.engines, self._losses, strict=True)
        self._watches = [Watch(engine, loss) for engine, loss in pairs]
        self._walks = [WalkAdaptation(engine.size) for engine in self.engines]

    def step(self, point):
        """Sweep over all records."""
        if not self.started:
            point = {**point, **self._starting_values()}
        accepted = proposed = moved = tried = 0.0
        lowest = 0.0
        for engine, walk, watch in zip(self.engines, self._walks, self._watches, strict=True):
            theta = engine.theta(point)
            if self.started:
                x = engine.records(point)
            else:
                x, theta = first_records(engine, self.rng, theta, point)
            engine.center(x)  # centred sums keep their digits
            env = engine.env(point)
            n = engine.block.n
            sweeps = self.sweeps or int(np.clip(_PROPOSALS_PER_DRAW // max(n, 1), 1, _MAX_SWEEPS))
            # A move costs O(n).
            most = walk.moves if n <= _MANY_RECORDS else min(walk.moves, walk.scales.size)
            moves = most if self.interweave and not engine.fixed else 0
            x, theta, took, low, moves_tried, moves_taken, refused = engine.sweep(
                self.rng, x, theta, env, walk.axes, walk.scales, sweeps, moves, walk.turn
            )
            if self.tune:
                walk.update(theta, moves_tried, moves_taken)
            walk.turn += sweeps * moves
            accepted, proposed = accepted + took, proposed + n * sweeps
            moved, tried = moved + moves_taken.sum(), tried + moves_tried.sum()
            lowest = min(lowest, low)
            point = engine.update(point, x, theta)
            watch.look(low, 0 if self.tune else refused, sweeps)
        self.started = True
        stats = {
            "dp_record_accept": accepted / proposed,
            "dp_record_lowest": math.exp(lowest),
            "dp_record_move": moved / tried if tried else math.nan,
        }
        return point, [stats]

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


class Watch:
    """Warns, once each, if sweeps contradict a stated privacy loss, or refuse many records."""

    def __init__(self, engine: Engine, loss: Loss | None):
        self._name, self._is_cut, self._loss = engine.block.name, engine.is_cut, loss
        self._seen = (0, 0)

    def look(self, lowest: float, refused: int, sweeps: int) -> None:
        """Take in the lowest log acceptance ratio, and the number of refused proposals."""
        if math.isnan(lowest):
            raise unusable(self._name)
        if self._loss is not None and self._loss.contradicted(lowest):
            _log.warning(self._loss.contradiction(lowest))
            self._loss = None
        if not self._is_cut:
            return
        refused, sweeps = self._seen = self._seen[0] + refused, self._seen[1] + sweeps
        if refused < _REFUSED or refused < _REFUSED_EACH * sweeps:
            return
        self._is_cut = False
        _log.warning(
            f"In {sweeps} sweeps, {refused} draws of {self._name!r} were so close to an end of the "
            f"support, or so large, that double precision cannot hold them. The posterior is cut "
            f"to records that it can hold, which disfavours parameters that make others likely. "
            f"Give the parameters a prior that keeps the law of {self._name!r} away from the ends"
        )


def first_records(engine: Engine, rng, theta, point):
    """Draw records, and parameters if need be, at which the releases are possible.

    If no draw is, take the records of the point, which the user may have given, or those that were
    published.
    """
    env = engine.env(point)
    tries = int(np.clip(2_000_000 // max(engine.block.n, 1), 20, _TRIES))
    density = -math.inf
    for k in range(2 * tries):
        # First at the starting values, then farther and farther from them.
        spread = max(0.0, k / tries - 1.0) * 10.0
        here = theta + spread * rng.standard_normal(theta.size)
        x = engine.draw(rng, here, env)
        density = engine.log_density(x, here, env)
        if math.isfinite(density):
            engine.check(x, here, env)
            return x, here
    for x in (engine.records(point), *engine.as_published(point)):
        if math.isfinite(engine.log_density(x, theta, env)):
            engine.check(x, theta, env)
            return x, theta
    names = ", ".join(repr(f.name) for f in engine.block.factors)
    raise ValueError(
        f"{engine.block.name!r} cannot be drawn: in {2 * tries} draws from their law the log "
        f"density of {names} was {density} every time. The statistic, the observed value or "
        f"the noise is NaN, of the wrong shape, no positive scale, or nothing that the "
        f"mechanism can publish: check them and the pm.Data of the model, or give initvals= "
        f"under which it is possible"
    )


def _starts_at_random(model: pm.Model, rv) -> bool:
    start = model.rvs_to_initial_values.get(rv)
    return isinstance(start, str) and start == "prior"


def say_what_is_slow(engine: Engine, interweave: bool) -> None:
    """Say why sweeps over a block take long, or its parameters move slowly."""
    name = engine.block.name
    if engine.in_full:
        _log.warning(
            f"RecordMetropolis computes the statistic of {name!r} afresh for every record, because "
            f"{engine.in_full}: exact, but each sweep takes a time that grows like n squared"
        )
    if interweave and engine.fixed:
        _log.warning(
            f"The parameters of {name!r} do not move along with the records, because "
            f"{engine.fixed}: exact, but slow to mix where the noise is large"
        )
