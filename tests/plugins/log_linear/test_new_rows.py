"""Synthetic rows of a log-linear model: their law by enumeration, labels, refusals."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_dp as dp
from pymc_dp.plugins.log_linear.cliques import junction_tree
from pymc_dp.plugins.log_linear.layout import draw_rows, draw_weights
from tests.agreement import values_follow

LEVELS = {"a": 2, "b": ["no", "yes"], "c": 3}
TERMS = [("a", "b"), ("b", "c")]
TABLES = np.array([5, 1, 0, 2, 3, 2, 0, 1, 1, 1])  # of 8 rows: a, b, then b, c
SHORT = {"draws": 3, "tune": 5, "chains": 2, "random_seed": 1, "quiet": True}


def posterior(draws):
    drawn = xr.Dataset({"rows": (("chain", "draw", "cell"), np.tile(TABLES, (1, draws, 1)))})
    return xr.DataTree.from_dict({"posterior": drawn})


def build(levels=None, n=8):
    with pm.Model() as model:
        rows = dp.LogLinear("rows", levels or LEVELS, TERMS, n, concentration=4.0)
    return model, rows


def joint(tree, probabilities):
    """Return the probabilities of the full table, from those of the cliques."""
    p = np.ones(tree.shape(tuple(tree.levels)))
    places = dict(zip(tree.levels, np.indices(p.shape), strict=True))

    def cell(columns):
        found = np.zeros(p.shape, dtype=int)
        for c in columns:
            found = found * tree.levels[c] + places[c]
        return found

    for clique, separator, cells in zip(tree.cliques, tree.separators, probabilities, strict=True):
        margin = np.bincount(tree.cells_of(clique, separator), cells)
        p *= cells[cell(clique)] / margin[cell(separator)]
    return p


@pytest.mark.parametrize(
    ("levels", "terms"),
    [
        ({"d": 2, "a": 3, "b": 2, "c": 3}, [("a", "b", "c"), ("c", "d", "b")]),
        ({"a": 2, "b": 3, "c": 2, "d": 2}, [("c", "a"), ("b", "c")]),
    ],
    ids=["two columns between", "a column alone"],
)
def test_rows_have_the_joint_law_of_the_tree(levels, terms):
    tree, rng = junction_tree(levels, terms), np.random.default_rng(2)
    cells = sum(map(tree.size, tree.cliques))
    p = draw_weights(rng, tree, np.zeros(cells), np.full(cells, 0.7))
    rows = draw_rows(rng, tree, p, 100_000)
    exact = joint(tree, p)
    found = np.ravel_multi_index([rows[c] for c in levels], exact.shape)
    values_follow(found, np.arange(exact.size), exact.ravel())


def test_cells_without_probability_are_not_drawn():
    tree = junction_tree({"a": 4, "b": 2}, [("a", "b")])
    p = [np.array([0.0, 0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0])]
    rows = draw_rows(np.random.default_rng(1), tree, p, 1_000)
    assert {*zip(rows["a"].tolist(), rows["b"].tolist(), strict=True)} == {(1, 0), (2, 1)}


def test_a_new_row_follows_the_posterior_predictive():
    """Of the prior and these tables: shares of counts plus concentrations, along the tree."""
    model, rows = build()
    assert rows.tree.cliques == [("a", "b"), ("b", "c")]
    new = dp.predict_records(model, posterior(60_000), size=2, random_seed=1)
    ab, bc = TABLES[:4].reshape(2, 2) + 1.0, TABLES[4:].reshape(2, 3) + 4 / 6
    b = ab.sum(0)
    exact = ab[:, :, None] * bc / (bc.sum(1)[:, None] * 12.0)
    found = np.ravel_multi_index([new[c].to_numpy()[0, :, 0] for c in "abc"], exact.shape)
    values_follow(found, np.arange(12), exact.ravel())
    # Rows of one file have the same probabilities: two are alike more often than rows of two files.
    both = new["b"].to_numpy()[0].sum(axis=1)
    pair = np.array([b[0] * (b[0] + 1), 2 * b[0] * b[1], b[1] * (b[1] + 1)]) / (12.0 * 13.0)
    values_follow(both, np.arange(3), pair)


def test_a_file_has_the_rows_of_the_model_and_their_labels():
    model, rows = build()
    with model:
        dp.PrivateObservation("z", rows.margin("b"), dp.GaussianMechanism(2.0), observed=[3.0, 5.0])
    idata = dp.sample(model, **SHORT)
    for same in (model, pm.do(model, {})):
        new = dp.predict_records(same, idata, random_seed=1)
        assert list(new.data_vars) == ["a", "b", "c"]
        assert dict(new.sizes) == {"chain": 2, "draw": 3, "new_record": 8}
        assert {v.dtype for v in new.data_vars.values()} == {np.dtype("int16")}
        assert new["b"].attrs["levels"] == ["no", "yes"]
        assert new["c"].attrs["levels"] == [0, 1, 2]
    thin = dp.predict_records(model, idata.isel(draw=[2]), size=5, random_seed=1)
    assert thin["a"].shape == (2, 1, 5)
    assert thin["draw"] == 2


def test_probabilities_of_one_seed_agree():
    _, rows = build()
    idata = posterior(4)
    ab = rows.probabilities(idata, "a", "b", random_seed=5)
    bc = rows.probabilities(idata, "c", "b", random_seed=5)
    xr.testing.assert_allclose(ab.sum("a"), bc.sum("c"))


def test_refusals():
    model, rows = build()
    with pytest.raises(ValueError, match="rows of 'rows' are drawn whole: leave it out"):
        dp.predict_records(model, posterior(1), given={"a": 1})
    with pytest.raises(ValueError, match="size is 0"):
        dp.predict_records(model, posterior(1), size=0)
    other = posterior(2)["posterior"].to_dataset().rename(rows="theta")
    empty = xr.DataTree.from_dict({"posterior": other})
    for call in (lambda: dp.predict_records(model, empty), lambda: rows.probabilities(empty, "a")):
        with pytest.raises(ValueError, match="'rows': the result has no draws of it"):
            call()
    with model:
        dp.LogLinear("others", LEVELS, TERMS, 5, concentration=1.0)
    with pytest.raises(ValueError, match=r"found \['rows', 'others'\]"):
        dp.predict_records(model, posterior(1))
