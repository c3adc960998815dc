"""The base of the steps: parameters are read from the point, draws are written to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.transforms import LogOddsTransform, LogTransform, SimplexTransform
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import explicit_graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece
from pymc_dp.graphs.declined import Declined, notice
from pymc_dp.graphs.interrupts import uninterrupted
from pymc_dp.graphs.values import nearest_rvs, public_data
from pymc_dp.kernels.deferred import deferring
from pymc_dp.reading.checks import takes_whole
from pymc_dp.reading.kept import made_once
from pymc_dp.reading.model import Reading, behind_ratios, mechanism_of, release_statistic


class PointFunction(NamedTuple):
    """A compiled function of the point's values, and the names of its inputs."""

    function: Callable
    inputs: list[str]

    def __call__(self, point: Mapping[str, np.ndarray]) -> Any:
        """Evaluate it at a point."""
        return self.function(*[point[i] for i in self.inputs])


def point_function(
    model: pm.Model, outputs: Sequence[TensorVariable] | TensorVariable
) -> PointFunction:
    """Compile a function of the point's values.

    Observed data and shared noise scales are read at each call.
    """
    single = not isinstance(outputs, list | tuple)
    graphs = model.replace_rvs_by_values([outputs] if single else list(outputs))
    needed = set(explicit_graph_inputs(graphs))
    inputs = [v for v in model.value_vars if v in needed]
    # Not pm.compile: nothing here is random, and carrying generators along would cost 50 us a call.
    function = pytensor.function(
        inputs, graphs[0] if single else graphs, trust_input=True, on_unused_input="ignore"
    )
    return PointFunction(deferring(function), [v.name for v in inputs])


@made_once
def _published(model: pm.Model, release: TensorVariable) -> PointFunction:
    rates = mechanism_of(release).rates
    assert rates is not None
    return point_function(model, [model.rvs_to_values[release].astype("float64"), *rates])


@made_once
def observed_values(model: pm.Model, *observed: TensorVariable) -> PointFunction:
    """Compile a function that returns the values of observed variables, as they are now."""
    return point_function(model, [model.rvs_to_values[rv] for rv in observed])


def published_values(
    model: pm.Model, release: TensorVariable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the observed entries of a release and the rates of their noise, as they are now."""
    observed, *rates = _published(model, release)({})
    lam, tau = (np.broadcast_to(rate, np.shape(observed)).ravel() for rate in rates)
    return np.ravel(observed), lam, tau


def value_writer(model: pm.Model, rv: TensorVariable) -> Callable:
    """Return a function from a value of `rv` to its value variable's (transformed) value."""
    transform = model.rvs_to_transforms[rv]
    if type(transform) in _WRITERS:
        return _WRITERS[type(transform)]
    value = rv.type("value")
    forward = transform.forward(value, *rv.owner.inputs)
    if nearest_rvs([forward]):
        raise Declined(
            f"{rv.name!r} has the transform {transform}, whose parameters are random: pass "
            f"default_transform=None to {rv.name!r}"
        )
    return pytensor.function([value], forward)


def _log(value):
    return np.asarray(np.log(value))  # of a 0-d array, numpy would return a scalar


def _log_odds(value):
    return np.asarray(np.log(value) - np.log1p(-np.asarray(value)))


def _centred_logs(value):
    logs = np.log(value)
    return logs[..., :-1] - logs.mean(axis=-1, keepdims=True)


# Transforms without parameters: a compiled function would cost 10 us a call.
_WRITERS: dict[type, Callable] = {
    type(None): np.asarray,
    LogTransform: _log,
    LogOddsTransform: _log_odds,
    SimplexTransform: _centred_logs,
}


class LoopDraw(NamedTuple):
    """A draw in a compiled loop; see `step_methods.loop`.

    Attributes
    ----------
    rvs : the variables that are drawn.
    inputs : graphs of the model, the inputs of the draw.
    draw : ``(rng, *inputs)`` to one vector of all values drawn; NaN where they cannot be drawn.
    chosen : further inputs, of the steps of the model: what these choose when they are made.
    """

    rvs: tuple[TensorVariable, ...]
    inputs: list[TensorVariable]
    draw: Piece
    chosen: Callable[[Sequence[BlockedStep]], Iterable[TensorVariable]] = lambda steps: ()


@dataclass_state
class DPStepState(StepMethodState):
    """State of a step without tuning: its random generator."""


def tagged_competence(name: str, var: Any) -> Competence:
    """Return IDEAL for variables tagged with the name of a step."""
    tagged = getattr(var.tag, "dp_step", None) == name
    return Competence.IDEAL if tagged else Competence.INCOMPATIBLE


class DPStep(BlockedStep):
    """A Gibbs step: draws its variables from their full conditional.

    A step that draws one variable after the other defines ``_read(reading, rv, initial_point)``,
    which returns what a draw takes or raises `Declined`, and ``_draw(name, point, *read)``, which
    returns a draw. `TableStep` draws several at once. Other steps define `_prepare` and `step`.
    """

    default_blocked = True
    _state_class = DPStepState

    def __init__(self, vars, *, model=None, rng=None, initial_point=None, compile_kwargs=None, blocked=True):  # fmt: skip  # noqa: E501
        model = pm.modelcontext(model)
        self.vars = pm.util.get_value_vars_from_user_vars(vars, model)
        self.rng = get_random_generator(rng)
        self.model_rvs = [model.values_to_rvs[v] for v in self.vars]
        self._held: list[tuple[str, str, Callable[[], np.ndarray], np.ndarray]] = []
        reading = Reading(model)
        for rv in behind_ratios(reading) & {*self.model_rvs}:
            raise ValueError(
                f"{type(self).__name__} cannot update {rv.name!r}: a release of it is divided by a "
                f"noisy number, and so is its noise. {DIVIDED}"
            )
        self._prepare(reading, initial_point)
        del self.model_rvs  # only needed to prepare; keeps the pickled step small

    def _prepare(self, reading: Reading, initial_point) -> None:
        """Read what it takes to draw the variables, `model_rvs`."""
        model = reading.model
        self._updates: list[Any] = []
        for rv in self.model_rvs:
            with updated_by(type(self).__name__, rv):
                read = self._read(reading, rv, initial_point)
            name, write = model.rvs_to_values[rv].name, value_writer(model, rv)
            self._updates.append((name, write, *read))

    def _read(self, reading: Reading, rv: TensorVariable, initial_point) -> tuple:
        raise NotImplementedError

    def _draw(self, name: str, point: dict[str, np.ndarray], *read) -> np.ndarray:
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs):
        """Take Ctrl-C between steps."""
        super().__init_subclass__(**kwargs)
        if "step" in vars(cls):
            cls.step = uninterrupted(cls.step)  # type: ignore[method-assign]

    @uninterrupted
    def step(self, point):
        """Draw every variable once."""
        for name, write, *read in self._updates:
            drawn = write(self._draw(name, point, *read))
            point = {**point, name: drawn.astype(point[name].dtype, copy=False)}
        return point, [{}]

    def hold(self, name: str, data: Sequence[SharedVariable], read: Callable[[], np.ndarray]):
        """Remember what was read from data that decide how a variable is drawn."""
        notice(*data)
        names = " or ".join(repr(shared.name) for shared in data)
        self._held.append((name, names, read, np.copy(read())))

    def _hold_whole(self, releases: Sequence[TensorVariable]) -> None:
        """Remember the data that decide whether the statistics of releases are whole numbers.

        Whole-number noise needs whole statistics, which is checked once. Integers stay whole.
        """
        whole = [release_statistic(r) for r in releases if takes_whole(r)]
        for data in public_data(whole):
            if str(data.type.dtype).startswith("float"):
                read = partial(data.get_value, borrow=True)
                self.hold(self.vars[0].name, [data], read)

    def setup_chain(self, rng, tune, draws):
        """Begin a chain; refuse it if data changed that the step remembers, see `hold`."""
        super().setup_chain(rng, tune, draws)
        for name, data, read, value in self._held:
            if not np.array_equal(read(), value):
                raise changed(name, data)

    @classmethod
    def claims(cls, reading: Reading, left: list[TensorVariable]) -> list[list[TensorVariable]]:
        """Return which of the variables that are left this step suits best; see `STEPS`."""
        return []

    @classmethod
    def loop_draws(cls, reading: Reading, group: list[TensorVariable]) -> list[LoopDraw]:
        """Return the draws of variables of this step, in a compiled loop; or decline them."""
        raise Declined(f"{cls.__name__}, for {group[0].name!r}, is no part of a compiled loop")

    @classmethod
    def competence(cls, var, has_grad=None):
        """IDEAL for variables tagged with this step's name, which `dp.collapse` does."""
        return tagged_competence(cls.__name__, var)


def in_a_row(parts: Iterable[Any]) -> TensorVariable:
    """Return all entries of some expressions, one after the other."""
    return pt.concatenate([pt.as_tensor(x).astype("float64").ravel() for x in parts])


@contextmanager
def updated_by(step: str, rv: TensorVariable) -> Iterator[None]:
    """Turn a refusal in this block into an error that names the step and the variable."""
    try:
        yield
    except Declined as why:
        raise ValueError(f"{step} cannot update {rv.name!r}: {why}") from None


DIVIDED = (
    "No step of this package moves it: it is integrated out where it is a vector of its own, with "
    "independent entries that are released one by one. Write the entries behind the noisy number "
    "as another variable, base = pm.Poisson('base', ..., shape=1), "
    "w = pm.Laplace('w', base, b, shape=1), and the ratios as x / w, x = pm.Poisson('x', ...); "
    "leave step= and records in var_names= out"
)


def unusable(name: str) -> ValueError:
    """Return the error for values of the model, of a pm.Data perhaps, that allow no draw."""
    return ValueError(
        f"{name!r} cannot be drawn: the statistic, the value or the noise of its release, or a "
        f"parameter of its law, is NaN, has the wrong shape, is no positive scale, or not whole "
        f"where the noise is. Check the pm.Data of the model"
    )


def changed(name: str, data: str) -> ValueError:
    """Return the error for data that changed since the step was made."""
    return ValueError(
        f"{name!r} cannot be drawn: {data} has changed since the step was made, and with it what "
        f"is possible, or a coefficient. Make the step anew; without step=, pm.sample does"
    )


def infeasible(name: str) -> ValueError:
    """Return the error for a point at which the bounds of the records leave no room."""
    return ValueError(
        f"the chain started outside of the feasible region of the bounds: there is no room for "
        f"{name!r}. Give initvals={{...}} a mean and a variance that records within the bounds can "
        f"have, or leave initvals= and step= out of dp.sample, which then finds them"
    )
