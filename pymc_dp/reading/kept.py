"""What was read of a model, and made of it, is kept for as long as nothing of that has changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.graphs.registry import Registry
from pymc_dp.graphs.stages import stage
from pymc_dp.reading.model import (
    Reading,
    copied,
    deciding,
    frozen,
    with_known_lengths,
)

_KEPT: WeakKeyDictionary[pm.Model, _Kept] = WeakKeyDictionary()


@contextmanager
def kept(model: pm.Model) -> Iterator[Reading]:
    """Give the reading of a model that was made before, or a new one where it would be another.

    It is of a copy, which PyMC freezes, so that what it compiles is kept, too. The copy shares the
    data of the model: what `pm.set_data` changes is read where it is used. A reading is given to
    one thread at a time; another meanwhile gets a new one. Of a model that PyMC does not copy, a
    submodel say, nothing is kept.
    """
    if _is_not_copied(model):
        yield Reading(with_known_lengths(model))
        return
    found = _KEPT.get(model)
    if found is None or not found.lock.acquire(blocking=False):
        found = _Kept(model)
    elif not found.is_current(model):
        found.lock.release()
        found = _Kept(model)
    _KEPT[model] = found
    try:
        yield found.reading
    finally:
        found.lock.release()


class _Kept:
    """A reading, with all that it depends on; it begins locked."""

    def __init__(self, model: pm.Model):
        stage("Reading the model")
        self.lock = Lock()
        self.lock.acquire()
        self.contents = _contents(model)
        graphs = [*model.basic_RVs, *model.potentials, *model.deterministics, *model.value_vars]
        graphs += model.rvs_to_values.values()
        # Of an array that a graph was made of, its owner may change the entries.
        self.constants = [v for v in ancestors(graphs) if isinstance(v, Constant)]
        self.digests = [_digest(constant.data) for constant in self.constants]
        self.reading = Reading(_copy(model), keeps=True)

    def is_current(self, model: pm.Model) -> bool:
        """Whether a model is what was read."""
        return (
            self.contents == _contents(model)
            and self.digests == [_digest(constant.data) for constant in self.constants]
            and self.reading.is_current()
        )


def _is_not_copied(model: pm.Model) -> bool:
    starts = model.rvs_to_initial_values.values()
    return model.parent is not None or any(
        isinstance(start, Variable) and not isinstance(start, Constant) for start in starts
    )


def _contents(model: pm.Model) -> tuple[Any, ...]:
    """Return what a model is made of; all but the values of its data and constants."""
    starts = model.rvs_to_initial_values.items()
    data = [v for v in model.named_vars.values() if isinstance(v, SharedVariable)]
    lengths = model.dim_lengths.items()
    return (
        *(list(own) for own in (model.free_RVs, model.observed_RVs, model.potentials)),
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


def _digest(value: Any) -> Any:
    """Return what tells the content of an array; what is none stands for itself."""
    if not isinstance(value, np.ndarray) or value.dtype == "O":
        return id(value)
    own = np.ascontiguousarray(value)
    return own.dtype.str, own.shape, blake2b(own.tobytes(), digest_size=16).digest()


def _copy(model: pm.Model) -> pm.Model:
    """Return a frozen copy of a model, which shares its data."""
    return frozen(copied(model, *deciding(model)), model)
