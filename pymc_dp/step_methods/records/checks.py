"""Whether records can be updated one by one: their laws, transforms and releases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.mixture import MixtureRV
from pymc.logprob.basic import logp
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import depends_on, plain_function
from pymc_dp.laws.sum_law import change, run_trials
from pymc_dp.reading.checks import leaves_gaps
from pymc_dp.reading.columns import read_rows
from pymc_dp.reading.groups import Records, blocks, has_record_axis, record_groups
from pymc_dp.reading.model import Reading, release_statistic, releases
from pymc_dp.reading.normal_column import read_normal_column
from pymc_dp.reading.propriety import check_proper, check_proper_rows
from pymc_dp.reading.record_lengths import record_length, size_of
from pymc_dp.reading.record_sums import RecordSumsRV
from pymc_dp.reading.records import check_axes
from pymc_dp.reading.sums import is_rowwise
from pymc_dp.step_methods.registry import no_exact_draw
from pymc_dp.step_methods.table_entries import WITH_TOTAL, trials_of


def checked_blocks(
    reading: Reading, records: Sequence[TensorVariable], point: dict[str, np.ndarray]
) -> list[Records]:
    """Return the blocks of some records; refuse records that the step cannot update."""
    model = reading.model
    for rv in records:
        _check_records(reading, rv)
        check_gaps(model, rv)
    check_axes(reading)
    record_blocks = blocks(reading, tuple(records))
    for block in record_blocks:
        for rv in block.records:
            _check_atoms(model, rv, point)
            _check_transform(model, rv)
        _check_law(reading, block, read_rows, check_proper_rows)
    return record_blocks


def _check_records(reading: Reading, rv) -> None:
    if size_of(rv) is not None or isinstance(rv.owner.op, RecordSumsRV):
        raise _of_unknown_number(reading, rv)
    if not has_record_axis(rv):
        raise ValueError(
            f"RecordMetropolis cannot update {rv.name!r}, which is a single draw of "
            f"{rv.owner.op}, not a batch of records: write shape=(n, ...) with the records on the "
            f"first axis"
        )
    split = trials_of(rv) if isinstance(rv.owner.op, WITH_TOTAL) else []
    if split := [v for v in split if v in reading.model.free_RVs]:
        raise ValueError(
            f"RecordMetropolis cannot update {rv.name!r}: it splits the counts of "
            f"{split[0].name!r}, and neither moves without the other"
            f"{no_exact_draw(reading, rv)}"
        )
    block = Records((rv,), record_length(rv), ())
    _check_law(reading, block, read_normal_column, check_proper)


def _of_unknown_number(reading: Reading, rv) -> ValueError:
    """Return the error for records of unknown number: how they are sampled, if they can be."""
    number = size_of(rv)
    reason = f"the records that {rv.name!r} sums are never built: "
    if number is not None:
        reason = f"the number of records {rv.name!r} is {number.name!r}, a variable of the model: "
    [group] = [group for group in record_groups(reading) if rv in group.records]
    try:
        run_trials(change(reading, group, "marginal").trials)
    except (Declined, ValueError) as why:
        return ValueError(f"{reason}they cannot be sampled themselves, nor integrated out: {why}")
    return ValueError(
        f"{reason}they cannot be sampled themselves, but integrated out. Write dp.sample(model) "
        f"without step= and records in var_names=, or pm.sample() in `with dp.collapse(model):`"
    )


def check_gaps(model: pm.Model, rv) -> None:
    """Refuse whole-number noise on statistics that moves of one record cannot keep whole."""
    n = record_length(rv)
    for release in releases(model):
        statistic = release_statistic(release)
        if n == 1 or not leaves_gaps(release) or not depends_on(statistic, rv):
            continue
        if not is_rowwise(statistic, rv, n, rv.type.ndim):
            counts = ""
            if isinstance(rv.owner.op, BernoulliRV | CategoricalRV):
                counts = (
                    " or, where it counts values wherever they stand, sample the counts: "
                    'dp.sample(dp.collapse(model, "statistics"))'
                )
            raise ValueError(
                f"RecordMetropolis cannot update {rv.name!r}: the release {release.name!r} has "
                f"whole-number noise, so that records for which its statistic is no whole number "
                f"are impossible, and moves by one record do not cross them. If it is whole for "
                f"all records, write that: pt.round(...). Else release a sum{counts}"
            )


def _check_law(reading: Reading, block: Records, read: Callable, check: Callable) -> None:
    """Refuse a posterior that is known to be improper, by the law of the records."""
    try:
        law = read(reading, block)
    except (ValueError, NotImplementedError):
        return
    check(reading, law)


def _check_transform(model: pm.Model, rv) -> None:
    """Refuse transforms that tie records together: a record alone could not move."""
    transform = model.rvs_to_transforms.get(rv)
    if transform is None:
        return
    if transform.ndim_supp is None:
        ties = not is_rowwise(
            transform.forward(rv, *rv.owner.inputs), rv, record_length(rv), rv.type.ndim
        )
    else:
        axes = getattr(transform, "zerosum_axes", range(-transform.ndim_supp, 0))
        ties = any(axis % rv.type.ndim == 0 for axis in axes)
    if ties:
        raise ValueError(
            f"RecordMetropolis cannot update {rv.name!r}: its transform "
            f"{type(transform).__name__} ties the records together, which have to be independent. "
            f"Leave transform= out"
        )


def _check_atoms(model: pm.Model, rv, point) -> None:
    """Refuse mixtures of an atom and a density where both lie: PyMC adds them up there."""
    if not isinstance(rv.owner.op, MixtureRV) or not rv.dtype.startswith("float"):
        return
    _, _, *laws = rv.owner.inputs
    points = [law for law in laws if isinstance(law.owner.op, DiracDeltaRV)]
    continuous = [law for law in laws if law not in points]
    densities = [
        logp(law, p.owner.inputs[-1], warn_rvs=False).max() for law in continuous for p in points
    ]
    if not densities:
        return
    [highest] = model.replace_rvs_by_values([pt.max(pt.stack(densities))])
    function = plain_function(model.value_vars, highest)
    if function(*(point[v.name] for v in model.value_vars)) > -np.inf:
        raise ValueError(
            f"RecordMetropolis cannot update {rv.name!r}: PyMC adds the density of its continuous "
            f"component to the probability of its DiracDelta where both lie, so that parameters "
            f"given the records would be wrong. Write a label for each record, "
            f"pm.Bernoulli('label', ...), and release label * value"
        )
