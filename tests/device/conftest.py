"""The simulated device, built once, and processes that use it."""

from __future__ import annotations

import pytest

from tests.device.build import build, why_not
from tests.device.runs import Server


def pytest_collection_modifyitems(items):
    reason = why_not()
    if reason is not None:
        for item in items:
            if 'tests/device' in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope='session')
def device():
    """Processes with the simulated device."""
    build()
    server = Server('cuda')
    yield server
    server.close()


@pytest.fixture(scope='session')
def whole(device, tmp_path_factory):
    """Uninterrupted runs, each trained once: gives a run for its settings."""
    runs = {}

    def train(hooks=(), **changes):
        key = repr((hooks, changes))
        if key not in runs:
            folder = tmp_path_factory.mktemp('whole')
            runs[key] = device.train(folder, hooks=hooks, **changes)
        return runs[key]

    return train


@pytest.fixture(scope='session')
def cpu():
    """Processes with torch as it is."""
    server = Server('cpu')
    yield server
    server.close()
