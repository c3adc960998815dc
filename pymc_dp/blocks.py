"""Which variables of a model form one record, and what depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.basic import logp
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.additive import Additive, NotAdditiveError, UnrelatedAxesError, additive, is_rowwise
from pymc_dp.graphs import depends_on, nearest_rvs
from pymc_dp.records import children, record_length, release_statistic, releases


@dataclass(frozen=True)
class Block:
    """Confidential records: one or several variables, entry i of each belonging to record i.

    Attributes
    ----------
    records : the variables, parents before children.
    n : the number of records.
    factors : the other variables and potentials of the model that are computed from them.
    """

    records: tuple[TensorVariable, ...]
    n: int
    factors: tuple[TensorVariable, ...]

    @property
    def name(self) -> str:
        """Names of the variables."""
        return ", ".join(rv.name for rv in self.records)


def has_record_axis(rv: TensorVariable) -> bool:
    """Whether a variable is a batch of independent draws along its first axis."""
    op = rv.owner.op
    ndim_supp = getattr(op, "ndim_supp", 0)
    if isinstance(op, RandomVariable) and ndim_supp is None:
        return False
    return rv.type.ndim - ndim_supp >= 1


def record_variables(model: pm.Model) -> list[TensorVariable]:
    """Return the confidential records that feed some release, in model order.

    A vector that is a parameter of other records in the same release, the coefficients of a
    regression say, is none.
    """
    feeding = nearest_rvs([release_statistic(r) for r in releases(model)])
    found = [rv for rv in model.free_RVs if rv in feeding and has_record_axis(rv)]
    return [
        rv
        for rv in found
        if all(_rowwise(child, rv) for child in found if child is not rv and _parent(child, rv))
    ]


def _parent(child: TensorVariable, rv: TensorVariable) -> bool:
    return rv in nearest_rvs(child.owner.inputs)


def _rowwise(child: TensorVariable, rv: TensorVariable) -> bool:
    """Whether entry i of `child` depends on entry i of `rv` alone."""
    if not has_record_axis(child) or record_length(child) != record_length(rv):
        return False
    own = child.type.ndim - getattr(child.owner.op, "ndim_supp", 0)
    return all(
        is_rowwise(p, rv, record_length(rv), child.type.ndim if own else 0)
        for p in child.owner.inputs
        if isinstance(p, TensorVariable) and depends_on(p, rv)
    )


def blocks(model: pm.Model, records: Sequence[TensorVariable]) -> list[Block]:
    """Group records that are drawn together: rows of several variables, one given another.

    Vectors that records depend on entry by entry belong to the record too, if nothing else
    depends on them.
    """
    members = list(records)
    for rv in reversed(model.free_RVs):  # children first
        if rv in members or not has_record_axis(rv):
            continue
        below = children(model, rv)
        if below and all(c in members and _rowwise(c, rv) for c in below):
            members.append(rv)
    members = [rv for rv in model.free_RVs if rv in members]
    found = []
    while members:
        group = {members[0]}
        while True:
            more = {
                rv
                for rv in members
                for other in group
                if rv not in group
                and (
                    (_parent(other, rv) and _rowwise(other, rv))
                    or (_parent(rv, other) and _rowwise(rv, other))
                )
            }
            if not more:
                break
            group |= more
        ordered = tuple(rv for rv in members if rv in group)
        members = [rv for rv in members if rv not in group]
        factors = dict.fromkeys(c for rv in ordered for c in children(model, rv) if c not in group)
        found.append(Block(ordered, record_length(ordered[0]), tuple(factors)))
    return found


def tag_records(model: pm.Model) -> None:
    """Tag the confidential records with their releases: `pm.sample` then assigns their step.

    Tags are strings, which survive in copies of the model. Continuous values that are released
    one by one, and in no aggregate, are left to NUTS.
    """
    aggregated = [rv for rv in record_variables(model) if not _released_singly(model, rv)]
    members = {
        rv: ",".join(f.name for f in block.factors if f in releases(model))
        for block in blocks(model, aggregated)
        for rv in block.records
    }
    for rv in model.free_RVs:
        if members.get(rv):
            rv.tag.dp_release = members[rv]
        elif hasattr(rv.tag, "dp_release"):
            del rv.tag.dp_release


def _released_singly(model: pm.Model, rv: TensorVariable) -> bool:
    if not rv.dtype.startswith("float"):
        return False
    statistics = [release_statistic(r) for r in releases(model)]
    return all(
        is_rowwise(s, rv, record_length(rv), rv.type.ndim) for s in statistics if depends_on(s, rv)
    )


def parameters(model: pm.Model, block: Block) -> list[TensorVariable]:
    """Return the continuous parameters of the records, theirs included, in model order."""
    above = set(ancestors(list(block.records))) - set(block.records)
    others = set(record_variables(model))
    return [
        rv
        for rv in model.free_RVs
        if rv in above and rv not in others and rv.dtype.startswith("float")
    ]


def transform_parents(model: pm.Model, rv: TensorVariable) -> list[TensorVariable]:
    """Return the variables that the transform of a free variable is computed from."""
    transform = model.rvs_to_transforms.get(rv)
    if transform is None:
        return []
    value = model.rvs_to_values[rv]
    return nearest_rvs([transform.backward(value, *rv.owner.inputs)])


def factor_density(model: pm.Model, block: Block) -> TensorVariable:
    """Log density of all that is computed from the records, the releases above all."""
    total = pt.zeros((), dtype="float64")
    for factor in block.factors:
        if factor in model.potentials:
            total += factor.sum()
        else:
            value = model.rvs_to_values[factor]
            transform = model.rvs_to_transforms.get(factor)
            if transform is not None:
                if transform_parents(model, factor):
                    raise ValueError(
                        f"{factor.name!r} depends on the records {block.name!r}, and its transform "
                        f"on other variables: give {factor.name!r} default_transform=None"
                    )
                value = transform.backward(value, *factor.owner.inputs)
            total += logp(factor, value, warn_rvs=False).sum()
    return total


def read_block(model: pm.Model, block: Block) -> Additive:
    """Read what is computed from some records as a function of sums over them; see `additive`."""
    return additive(factor_density(model, block), dict.fromkeys(block.records, block.n))


def check_axes(model: pm.Model) -> None:
    """Refuse statistics that pair the records of one variable with all those of another."""
    found = record_variables(model)
    for release in releases(model):
        statistic = release_statistic(release)
        mine = {rv: record_length(rv) for rv in found if depends_on(statistic, rv)}
        if len(mine) < 2:
            continue
        try:
            additive(statistic.sum(), mine)
        except UnrelatedAxesError:
            names = " with those of ".join(repr(rv.name) for rv in mine)
            raise ValueError(
                f"the statistic of {release.name!r} pairs the records of {names}, each with every "
                f"other: write what the curator summed over single records, (x * y).sum() say, or "
                f"combine sums, x.sum() * y.sum()"
            ) from None
        except NotAdditiveError:
            pass
