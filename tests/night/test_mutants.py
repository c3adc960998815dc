"""The day suite sees the faults that it is there for."""

import pytest

from tests.mutants import MUTANTS, ROOT, run


@pytest.mark.parametrize("name", MUTANTS)
def test_every_fault_can_be_put_in(name):
    mutant = MUTANTS[name]
    assert (ROOT / mutant.file).read_text().count(mutant.right) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_the_day_suite_sees(name):
    mutant = MUTANTS[name]
    assert run(mutant).failed is not None
    # The same tests pass without the fault: it is the fault that they see.
    assert run(mutant._replace(wrong=mutant.right)).failed is None
