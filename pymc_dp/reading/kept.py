"""A cache of readings, and of what is compiled for them: made anew when the model changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cached_property, wraps
from hashlib import sha256
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.simulator import SimulatorRV
from pymc.model.core import FrozenModel
from pytensor.compile.ops import FromFunctionOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from scipy.sparse import issparse

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.registry import Registry
from pymc_dp.graphs.stages import stage
from pymc_dp.reading.frozen import copied, deciding, state_of, with_known_lengths
from pymc_dp.reading.model import Reading, changed

# Ops whose functions users write.
_OF_USERS = CustomDistRV, CustomSymbolicDistRV, SimulatorRV, FromFunctionOp
_PACKAGES = {"pymc", "pymc_dp", "pymc_extras", "pytensor"}
_KEPT: WeakKeyDictionary[pm.Model, _Kept] = WeakKeyDictionary()


@contextmanager
def kept(model: pm.Model) -> Iterator[Reading]:
    """Yield the kept reading of a model, or a new one if the model has changed.

    It is the reading of a frozen copy, so that PyMC keeps what it compiles, too. The copy shares
    the data of the model: what `pm.set_data` changes is read where it is used. One thread at a time
    has the reading; another one meanwhile gets a new reading. For a submodel, and for a model with
    a function of the user's (`pm.CustomDist`, `CustomMechanism`, ...), nothing is kept.
    """
    if _is_not_kept(model):
        yield Reading(with_known_lengths(model))
        return
    entry = _KEPT.get(model)
    if entry is not None and entry.lock.acquire(blocking=False):
        try:
            if entry.is_of(model):
                entry.reading.renew()
                yield entry.reading
                return
        finally:
            entry.lock.release()
    entry = _Kept(model)
    with entry.lock:
        _KEPT[model] = entry
        yield entry.reading


class _Kept:
    """A reading, with the contents of the model that it depends on."""

    def __init__(self, model: pm.Model):
        stage("Reading the model")
        self.lock = Lock()
        self.contents = _contents(model)
        # Users may change the entries of an array that is a constant of a graph.
        inside = _inside(_graphs(model))
        self.constants = list(dict.fromkeys(v for v in inside if isinstance(v, Constant)))
        self.digests = [_digest(constant.data) for constant in self.constants]
        dims, data = deciding(model)
        self.reading = Reading(frozen(copied(model, dims, data), model), keeps=True)
        # Data that are constants in the copy.
        self.fixed = {model[name]: model[name].get_value() for name in data}

    def is_of(self, model: pm.Model) -> bool:
        """Whether a model is the one that was read, up to its data."""
        return (
            self.contents == _contents(model)
            and self.digests == [_digest(constant.data) for constant in self.constants]
            and not changed(self.fixed)
        )


def _is_not_kept(model: pm.Model) -> bool:
    """Whether PyMC cannot copy the model, or a law has a function of the user's.

    Values that a function takes from outside may change, and this module cannot see it.
    """
    starts = model.rvs_to_initial_values.values()
    return (
        model.parent is not None
        or any(isinstance(s, Variable) and not isinstance(s, Constant) for s in starts)
        or any(v.owner is not None and _reads_outside(v.owner.op) for v in _inside(_graphs(model)))
    )


def reads_outside(law: Any) -> bool:
    """Whether a law, an op or what is made of several, has a function of the user's."""
    if isinstance(law, Op):
        inside = _inside(law.fgraph.outputs) if hasattr(law, "fgraph") else ()
        return _reads_outside(law) or any(v.owner and _reads_outside(v.owner.op) for v in inside)
    parts = vars(law).values() if is_dataclass(law) else law if isinstance(law, tuple) else ()
    return any(map(reads_outside, parts))


def _reads_outside(op: Op) -> bool:
    mechanism = getattr(op, "mechanism", None)
    return (
        isinstance(op, _OF_USERS)
        or type(op).__module__.partition(".")[0] not in _PACKAGES
        or (mechanism is not None and mechanism.reads_outside)
    )


def _contents(model: pm.Model) -> tuple[Any, ...]:
    """Return all parts of a model, except the values of its data and constants."""
    starts = model.rvs_to_initial_values.items()
    data = [v for v in model.named_vars.values() if isinstance(v, SharedVariable)]
    lengths = model.dim_lengths.items()
    return (
        *(list(variables) for variables in (model.free_RVs, model.observed_RVs, model.potentials)),
        list(model.deterministics),
        dict(model.named_vars),
        dict(model.rvs_to_values),
        dict(model.rvs_to_transforms),
        [(rv, getattr(rv.tag, "dp_step", None)) for rv in model.basic_RVs],
        [(rv, getattr(rv.tag, "dp_release", None)) for rv in model.basic_RVs],
        [(rv, v if v is None or isinstance(v, Variable | str) else _digest(v)) for rv, v in starts],
        {name: tuple(dims) for name, dims in model.named_vars_to_dims.items()},
        dict(model.coords),
        {n: int(v.get_value()) if isinstance(v, SharedVariable) else v for n, v in lengths},
        [(v, v.get_value(borrow=True).shape) for v in data if hasattr(v.type, "shape")],
        model.check_bounds,
        (pytensor.config.mode, pytensor.config.linker, pytensor.config.floatX),
        Registry.additions,
    )


def _graphs(model: pm.Model) -> list[Variable]:
    graphs = [*model.basic_RVs, *model.potentials, *model.deterministics, *model.value_vars]
    return [*graphs, *model.rvs_to_values.values()]


def _inside(graphs: Sequence[Variable]) -> Iterator[Variable]:
    """Yield the variables of graphs, and of the graphs inside their ops."""
    for variable in ancestors(graphs):
        yield variable
        if variable.owner is not None and hasattr(variable.owner.op, "fgraph"):
            yield from _inside(variable.owner.op.fgraph.outputs)


def _digest(value: Any) -> Any:
    """Return a hash of an array's content; the id of any other object."""
    return content_digest(value) or id(value)


def content_digest(value: Any) -> tuple[Any, ...] | None:
    """Return a hash of the content of an array, sparse or not; None for other objects."""
    if issparse(value):
        coo = value.tocoo()
        return value.shape, *map(content_digest, (coo.data, *coo.coords))
    if not isinstance(value, np.ndarray) or value.dtype == "O":
        return None
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return str(value.dtype), value.shape, sha256(content).hexdigest()


def frozen(copy: pm.Model, model: pm.Model) -> pm.Model:
    """Freeze a copy, so that PyMC keeps what it compiles for it; it shares the model's data.

    The compiled code depends on the shapes of data, not on their values.
    """
    pairs = [(copy[v.name], v) for v in model.named_vars.values() if v.name in copy.named_vars]
    pairs += [(copy.dim_lengths[name], v) for name, v in model.dim_lengths.items()]
    for copied_variable, v in pairs:
        if isinstance(v, SharedVariable) and isinstance(copied_variable, SharedVariable):
            copied_variable.container = v.container
    copy.__class__ = _Frozen  # as `pymc.model.transform.optimization.freeze_model` does
    return copy


def made_once[F: Callable[..., Any]](make: F) -> F:
    """Call a function once for each frozen model; for other models, which may change, each time."""
    kept_answer = once(make)

    @wraps(make)
    def made(model: pm.Model, *args: Any) -> Any:
        return (kept_answer if isinstance(model, FrozenModel) else make)(model, *args)

    return made  # type: ignore[return-value]


class _Frozen(FrozenModel):
    """Keeps the graphs of `unobserved_value_vars`, too, which PyMC makes anew for each trace.

    PyMC finds compiled functions by the identity of their graphs.
    """

    __getstate__ = state_of  # other processes cannot load compiled code

    @cached_property
    def unobserved_value_vars(self):
        return super().unobserved_value_vars
