"""A real Ctrl-C, 20 times, while each route samples in one process or thread, and in two."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import pymc_dp as dp
from pymc_dp import routes
from tests.conformance.test_routes import CASES

TIMES = 20
SECONDS = 4.0  # 2, and what it takes to put the result together


@pytest.mark.nightly
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", [*CASES, "nutpie"])
def test_draws_so_far(name, cores):
    root = Path(__file__).parents[2]
    # In a session of its own, as a terminal sends the signal to all processes of a command.
    found = subprocess.run(
        [sys.executable, __file__, name, str(cores)], cwd=root, start_new_session=True,
        capture_output=True, text=True, timeout=1_800, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]


def main(name, cores):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if a script's background is
    build, options = CASES[name if name in CASES else "NUTS on the marginal"]
    options = {k: v for k, v in options.items() if name in CASES or k != "nuts_sampler"}
    if name == "NUTS on the records":
        routes.ROUTES = [route for route in routes.ROUTES if route.name == name]
    model, messages = build(), []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("pymc.dp").addHandler(handler)
    options |= {"cores": cores, "chains": 3, "tune": 50, "progressbar": False}

    seconds = 0.0
    for _ in range(2):  # the second one is compiled
        began = time.perf_counter()
        dp.sample(model, draws=50, **options)
        seconds = time.perf_counter() - began
    for k in range(TIMES):
        messages.clear()
        pressed = []

        def press(after, pressed=pressed):
            time.sleep(after)
            pressed.append(time.perf_counter())
            os.killpg(0, signal.SIGINT)

        after = 2.0 * seconds + 1.0 + 0.01 * k
        threading.Thread(target=press, args=(after,), daemon=True).start()
        tree = dp.sample(model, draws=2_000_000, **options)
        took = time.perf_counter() - pressed[0]
        posterior = tree["posterior"]
        assert any("Interrupted" in message for message in messages)
        assert 0 < posterior.sizes["draw"] < 2_000_000
        assert all(np.isfinite(v).all() for v in posterior.data_vars.values())
        assert took < SECONDS, took
        sys.stdout.write(f"{name}, {cores}: {took:.2f} s, {dict(posterior.sizes)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
