from itertools import pairwise

import numpy as np
import pytest

from pymc_dp.plugins.log_linear.cliques import junction_tree


def tree_of(terms, columns="abcdef", levels=2):
    return junction_tree(dict.fromkeys(columns, levels), terms)


def cliques_of(terms, columns="abcdef"):
    return {"".join(c) for c in tree_of(terms, columns).cliques}


def test_pairs_of_a_chain_are_its_cliques():
    assert cliques_of(pairwise("abcdef")) == {"ab", "bc", "cd", "de", "ef"}


def test_a_triangle_of_pairs_is_one_clique():
    assert cliques_of(["ab", "bc", "ac", "cd"], "abcd") == {"abc", "cd"}


def test_a_term_within_another_is_no_clique():
    assert cliques_of(["abc", "b", "ca"], "abc") == {"abc"}


def test_a_circle_is_filled_in():
    tree = tree_of(["ab", "bc", "cd", "de", "ef", "fa"])
    assert sorted(map(len, tree.cliques)) == [3, 3, 3, 3]
    assert sorted(map(len, tree.separators)) == [0, 2, 2, 2]


def test_a_circle_of_unequal_columns_is_filled_in_where_that_costs_little():
    tree = junction_tree({"a": 50, "b": 2, "c": 50, "d": 2}, ["ab", "bc", "cd", "da"])
    assert {"".join(c) for c in tree.cliques} == {"abd", "bcd"}


def test_parts_that_are_not_connected_have_an_empty_separator():
    tree = tree_of(["ab", "bc", "de"])
    assert {"".join(c) for c in tree.cliques} == {"ab", "bc", "de", "f"}
    assert sorted(map(len, tree.separators)) == [0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_random_terms(seed):
    """Every term is in a clique, and the cliques that hold a column are connected in the tree."""
    rng = np.random.default_rng(seed)
    columns = "abcdefgh"
    terms = [rng.choice(list(columns), rng.integers(1, 4), replace=False) for _ in range(8)]
    tree = tree_of(terms, columns)
    for term in terms:
        tree.clique_of(tuple(term))
    for i, (parent, separator) in enumerate(zip(tree.parents, tree.separators, strict=True)):
        assert parent < i
        if i > 0:
            assert set(separator) == set(tree.cliques[i]) & set(tree.cliques[parent])
    for column in columns:
        holders = sum(column in c for c in tree.cliques)
        edges = sum(column in s for s in tree.separators)
        assert holders == edges + 1
    for clique in tree.cliques:
        assert not any(set(clique) < set(other) for other in tree.cliques)


def test_cells_of_a_margin_whose_columns_have_another_order():
    tree = junction_tree({"a": 2, "b": 3, "c": 4}, ["abc"])
    counts = np.random.default_rng(1).integers(0, 9, (2, 3, 4))
    cells = tree.cells_of(tree.cliques[0], ("c", "a"))
    np.testing.assert_array_equal(np.bincount(cells, counts.ravel()), counts.sum(axis=1).T.ravel())


def test_refusals():
    with pytest.raises(ValueError, match="clique a, b, c has 27,000 cells"):
        tree_of(["ab", "bc", "ac"], "abc", levels=30)
    with pytest.raises(ValueError, match="unknown columns x"):
        tree_of(["ax"])
    with pytest.raises(ValueError, match="no clique of the model has the columns a, c"):
        tree_of(["ab", "bc"]).clique_of(("a", "c"))
