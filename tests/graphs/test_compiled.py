"""Compiling is told of, so that nobody waits for what they do not know."""

import logging

import numba
import pytest

from pymc_dp.graphs.compiled import said_when_compiling


@pytest.mark.parametrize("quiet", [False, True])
def test_compiling_is_told_once(quiet, caplog):
    with caplog.at_level(logging.INFO, logger="pymc.dp"), said_when_compiling(quiet=quiet):
        for k in range(2):
            assert numba.njit(lambda x: x + 1)(k) == k + 1
    assert [r.message for r in caplog.records] == ["Compiling, which takes some seconds"][quiet:]
