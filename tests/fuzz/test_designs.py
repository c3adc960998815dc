"""Random models of public groups and covariates, and of records of unknown number."""

import numpy as np
import pytensor
import pytest

import pymc_dp as dp
from pymc_dp.reading.model import release_statistic
from pymc_dp.reading.sums import additive
from tests.fuzz import designs, sizes
from tests.fuzz.comparing import REFUSALS, Densities, differ, fuzz, kind
from tests.reading.sums.test_reader import evaluate, near_means, reassemble


def compare(what, model, spec, points, z, outcomes, draws):
    """Count whether a model has the density that it should have; stop where it does not."""
    found = Densities(model, spec.uses)
    for tried in (1, 30):
        rng = np.random.default_rng([spec.seed, tried])
        ours = [found.at(p, rng, 20 * tried * draws) for p in points]
        truth = [spec.log_density(p, z, rng, 40 * tried * draws) for p in points]
        wrong = differ(ours, truth, normalised=True)
        if not wrong:
            break
    outcomes[f"{what} " + {None: "doubtful", False: "agreed", True: "wrong"}[wrong]] += 1
    assert not wrong, (what, ours, truth)


def check_records(model, spec, points, outcomes):
    """Compare what the sweep over records reads of the statistics with their numbers."""
    x = spec.draw(np.random.default_rng(spec.seed), points[0], 1)
    values = {model["x"]: x.reshape(spec.frame.shape)}
    n = spec.frame.shape[0]
    for i, release in enumerate(spec.releases):
        graph = release_statistic(model[f"z{i}"])
        with np.errstate(invalid="ignore"):
            expected = release.array(x, spec.frame)[0]
            direct = evaluate(graph, {rv: pytensor.shared(v) for rv, v in values.items()})
            np.testing.assert_allclose(direct, expected, rtol=1e-10, atol=1e-10)
            try:
                read = additive(graph, {model["x"]: n})
            except REFUSALS as error:
                outcomes[f"records declined: {kind(str(error))}"] += 1
                continue
            found = reassemble(read, values, near_means(read, values), n)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        outcomes["records agreed"] += 1


def check(spec, outcomes, draws):
    """Compare every rung of a model that opens with what numpy says."""
    rng = np.random.default_rng([spec.seed, 0])
    points = [spec.draw_parameters(rng)]
    points += [spec.draw_parameters(rng, near=points[0]) for _ in range(2)]
    with np.errstate(invalid="ignore", divide="ignore"):
        z = spec.published(rng, points[0])
    if not all(np.isfinite(v).all() for v in z):
        outcomes["no number"] += 1
        return
    try:
        model = spec.build(z)
    except REFUSALS as error:
        if "'z" not in str(error):
            raise
        outcomes[f"refused: {kind(str(error))}"] += 1
        return
    opened = 0
    for rung in ("marginal", "statistics"):
        try:
            collapsed = dp.collapse(model, rung)
        except REFUSALS as error:
            if not any(name in str(error) for name in ("'x'", "x[", "_x'", "'z", "'n'")):
                raise
            outcomes[f"{rung} declined: {kind(str(error))}"] += 1
            continue
        opened += 1
        if not {*spec.uses} <= {rv.name for rv in collapsed.free_RVs}:
            outcomes["parameters of one record integrated out"] += 1
            continue
        compare(rung, collapsed, spec, points, z, outcomes, draws)
    outcomes["closed"] += not opened
    if isinstance(spec, designs.Design):
        check_records(model, spec, points, outcomes)
    if spec.seed % 10 == 5:
        dp.explain(model)
        outcomes["explained"] += 1


def test_rungs_of_random_designs():
    outcomes = fuzz(designs, check, 0, 20, 100)
    assert outcomes["marginal agreed"] > 2
    assert outcomes["statistics agreed"] > 2
    assert outcomes["records agreed"] > 10


def test_random_unknown_numbers():
    outcomes = fuzz(sizes, check, 0, 12, 100)
    assert outcomes["marginal agreed"] > 5


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("grammar", [designs, sizes])
def test_rungs_of_many_random_models(grammar, part, record_property):
    first = int(np.random.default_rng().integers(2**32))
    record_property("part and first seed", (part, first))
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        outcomes = fuzz(grammar, check, first, 250, 200)
    record_property("outcomes", dict(sorted(outcomes.items())))
