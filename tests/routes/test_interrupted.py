"""Ctrl-C returns the draws so far: by the routes' own chains, by PyMC's and by nutpie's."""

import itertools
import logging
import signal
import threading
from concurrent.futures import CancelledError
from contextlib import suppress

import numpy as np
import pymc as pm
import pytest
from arviz_base import from_dict

import pymc_dp as dp
from pymc_dp.graphs import interrupts
from pymc_dp.graphs.interrupts import Pieces, between, interruptible, uninterrupted
from pymc_dp.graphs.stages import Stages
from pymc_dp.reading.model import Reading
from pymc_dp.routes import chain, interrupted
from tests.chains import QUIET

HUGE = 10**8


class Counting:
    """A chain of a number that grows by one each draw; it may tune for ever."""

    sweeps = 1

    def __init__(self, reached, stays=False):
        self.reached, self.stays = reached, stays

    def begin(self, rng, tune, *, pieces):
        while self.stays and tune > 1:  # not in the draw that is tried before
            self.reached.set()
            pieces.check()
        return 0.0

    def advance(self, rng, state, draws):
        if state >= 100:
            self.reached.set()
        rows = state + 1.0 + np.arange(draws)[:, None]
        return rows[-1, 0], rows

    def posterior(self, rows, rng):
        return {"mu": rows[..., 0]}


@pytest.fixture(autouse=True)
def heard():
    """Have SIGINT raise: what a script starts in the background ignores it, and draws for ever."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def press():
    """Return an event; when it is set, a real SIGINT comes."""
    reached, threads = threading.Event(), []

    def wait():
        if reached.wait(60):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threads.append(threading.Thread(target=wait, daemon=True))
    threads[0].start()
    yield reached
    reached.set()
    threads[0].join()


def reading():
    with pm.Model() as model:
        pm.Normal("mu")
    return Reading(model)


@pytest.mark.parametrize("cores", [1, 2])
def test_compiled_chains(press, caplog, cores):
    tree = chain.run(reading(), "", Counting(press), draws=HUGE, chains=3, cores=cores, **QUIET)
    mu = tree["posterior"]["mu"].to_numpy()
    assert 1 <= mu.shape[0] <= cores  # the others have not begun
    assert mu.shape[1] > 100
    np.testing.assert_array_equal(mu, np.broadcast_to(1.0 + np.arange(mu.shape[1]), mu.shape))
    assert f"Interrupted: {mu.shape[1]} draws of {mu.shape[0]} of 3 chains" in caplog.text


def test_without_a_draw(press):
    with pytest.raises(KeyboardInterrupt):
        chain.run(reading(), "", Counting(press, stays=True), draws=4, chains=3, **QUIET)


def test_quiet_holds_in_the_threads_of_chains(caplog):
    class Warning(Counting):
        def begin(self, rng, tune, *, pieces):
            logging.getLogger("pymc.dp").warning("from a thread")
            return 0.0

    with Stages(progressbar=False, quiet=True):
        chain.run(reading(), "", Warning(threading.Event()), draws=2, chains=2, **QUIET)
    assert not caplog.records


def test_an_error_ends_the_other_chains():
    second, calls, ended = threading.Event(), itertools.count(), []

    class Failing(Counting):
        def begin(self, rng, tune, *, pieces):
            if tune == 1:  # the draw that is tried before
                return 0.0
            if next(calls) == 0:
                assert second.wait(60)
                raise ValueError("as it is")
            second.set()
            ended.append(pieces.stop.wait(5))
            pieces.check()

    with pytest.raises(ValueError, match="as it is"):
        chain.run(reading(), "", Failing(None), draws=1, chains=2, cores=2, **QUIET)
    assert ended == [True]


@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["shortest", "longest"])
@pytest.mark.parametrize("name", ["fused Gibbs", "exact regression"])
def test_draws_do_not_depend_on_the_pieces(monkeypatch, name, seconds):
    from tests.conformance.test_routes import CASES

    build, options = CASES[name]
    few = {"draws": 9, "tune": 20, "chains": 1, "random_seed": 1} | QUIET | options
    found = dp.sample(build(), **few)["posterior"]
    monkeypatch.setattr(interrupts, "_PIECE", seconds)
    again = dp.sample(build(), **few)["posterior"]
    for parameter in found.data_vars:
        np.testing.assert_array_equal(found[parameter], again[parameter])


def test_pieces():
    pieces = Pieces()
    parts = list(pieces.of(1_000))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(1_000))
    pieces.stop.set()
    with pytest.raises(CancelledError):
        next(pieces.of(1))


def test_steps_take_it_when_they_are_done():
    done = []

    @uninterrupted
    def step():
        signal.raise_signal(signal.SIGINT)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_many_calls_take_it_in_between():
    done = []

    def function(comes):
        if comes:
            signal.raise_signal(signal.SIGINT)
        done.append(comes)

    for calls in ([False, True, False], [True]):  # with another to come, and in the last
        with pytest.raises(KeyboardInterrupt), between(function) as call:
            list(map(call, calls))
    assert done == [False, True, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_is_not_held():
    @uninterrupted
    def step():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    with pytest.raises(KeyboardInterrupt):
        step()


@pytest.mark.parametrize("step", [pm.Metropolis, pm.NUTS])
def test_one_process_of_pymc_stops_all_chains(caplog, step):
    def at_20(trace, draw):
        assert draw.chain == 0
        if not draw.tuning and draw.draw_idx == 25:
            signal.raise_signal(signal.SIGINT)

    with pm.Model() as model:
        pm.Normal("mu")
        chosen = step()
    few = {"tune": 5, "chains": 3, "cores": 1, "step": chosen, "callback": at_20} | QUIET
    tree = interrupted.sample(model, draws=200, **few)
    assert dict(tree["posterior"].sizes) == {"chain": 1, "draw": 21}
    assert "Interrupted: 21 draws of 1 of 3 chains" in caplog.text


@pytest.mark.parametrize(
    ("lengths", "kept", "length"),
    [([50, 0, 40], [0, 2], 40), ([50, 10, 5], [0], 50), ([7, 7], [0, 1], 7)],
)
def test_draws_of_nutpie_that_were_not_made(monkeypatch, caplog, lengths, kept, length):
    made = np.where(np.arange(50) < np.array(lengths)[:, None], 1.0, np.nan)
    tree = from_dict({"posterior": {"mu": made}, "sample_stats": {"logp": made}})

    def sample(**_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return tree

    monkeypatch.setattr(pm, "sample", sample)
    found = interrupted.sample(reading().model, draws=50)
    assert found["posterior"].chain.to_numpy().tolist() == kept
    for group in ("posterior", "sample_stats"):
        [values] = found[group].data_vars.values()
        assert values.shape == (len(kept), length)
        assert np.isfinite(values).all()
    assert logging.getLevelName(caplog.records[-1].levelno) == "WARNING"


def test_what_ctrl_c_left_undone_is_an_interrupt():
    def fail(signalled):
        with interruptible():
            with suppress(KeyboardInterrupt):  # as ctypes does, between C and Python
                if signalled:
                    signal.raise_signal(signal.SIGINT)
            raise RuntimeError("the kernel cannot be compiled")

    with pytest.raises(KeyboardInterrupt):
        fail(signalled=True)
    with pytest.raises(RuntimeError):
        fail(signalled=False)
