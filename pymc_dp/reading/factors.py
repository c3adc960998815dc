"""Densities of what is computed from records, and the parameters of records."""

from __future__ import annotations

import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.basic import logp
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading
from pymc_dp.reading.records import record_variables
from pymc_dp.reading.sums import Additive, additive


def parameters(reading: Reading, block: Records) -> list[TensorVariable]:
    """Return the continuous parameters of the records, hyperparameters too, in model order."""
    above = set(ancestors(list(block.records))) - set(block.records)
    records = set(record_variables(reading))
    return [
        rv
        for rv in reading.model.free_RVs
        if rv in above
        and rv not in records
        and rv not in block.factors  # it depends on the records, and they on it
        and rv.dtype.startswith("float")
    ]


def transform_parents(model: pm.Model, rv: TensorVariable) -> list[TensorVariable]:
    """Return the variables that the transform of a free variable is computed from."""
    transform = model.rvs_to_transforms.get(rv)
    if transform is None:
        return []
    value = model.rvs_to_values[rv]
    return nearest_rvs([transform.backward(value, *rv.owner.inputs)])


def factor_terms(model: pm.Model, block: Records) -> list[TensorVariable]:
    """Return the log densities of the factors of some records, above all the releases."""
    terms = []
    for factor in block.factors:
        if factor in model.potentials:
            terms.append(factor)
            continue
        value, transform = model.rvs_to_values[factor], model.rvs_to_transforms.get(factor)
        if transform is None and None in value.type.shape:  # a value with dims has no static shape
            value = pt.specify_shape(value, known_shape(factor))
        if transform is not None:
            if transform_parents(model, factor):
                raise ValueError(
                    f"{factor.name!r} depends on the records {block.name!r}, and its transform "
                    f"on other variables: give {factor.name!r} default_transform=None"
                )
            value = transform.backward(value, *factor.owner.inputs)
        terms.append(logp(factor, value, warn_rvs=False))
    return terms


def factor_density(model: pm.Model, block: Records) -> TensorVariable:
    """Return the log density of the factors of some records."""
    return sum((t.sum() for t in factor_terms(model, block)), start=pt.zeros((), dtype="float64"))


@once
def read_block(reading: Reading, block: Records) -> Additive:
    """Read the density of a block's factors as a function of sums over it; see `additive`."""
    density = factor_density(reading.model, block)
    return additive(density, dict.fromkeys(block.records, block.n))
