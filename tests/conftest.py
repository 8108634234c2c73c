"""Settings that every test shares."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

from tests.device.build import why_not
from tests.patience import be_patient

# Tiny tensors are slower on several threads, and tests run side by side.
os.environ.setdefault('OMP_NUM_THREADS', '1')
be_patient()
# Processes that tests start need not compile the package anew.
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
os.environ.setdefault(
    'PYTHONPYCACHEPREFIX', str(Path(tempfile.gettempdir(), 'mmstable-pycache'))
)
# The same examples on every machine, however slow; nothing is kept on disk.
hypothesis.settings.register_profile(
    'mmstable',
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile('mmstable')

# A shell that starts the tests in the background makes them, and all that
# they start, deaf to Ctrl-C, and `nohup` to a hangup.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, 'SIGHUP'):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_sessionstart(session):
    """Compile the simulated device while other tests run."""
    has_workers = getattr(session.config.option, 'numprocesses', None)
    if has_workers and why_not() is None:
        # Tests that need it wait for its lock.
        subprocess.Popen([sys.executable, '-m', 'tests.device.build'])


def pytest_collection_finish():
    """Let garbage collections pass over what stays to the end anyway."""
    from tests import formatted  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_figures():
    """Forget the figures that mmengine makes for every run, and keeps.

    Each is thousands of objects, and garbage collections look at all.
    """
    yield
    from mmengine.visualization import Visualizer

    Visualizer._instance_dict.clear()


@pytest.fixture(autouse=True)
def no_workers(monkeypatch):
    """End dataloader workers that a test has left behind.

    Found in a cycle by a garbage collection, each pass over data with them
    takes torch five seconds to end, in the midst of some other test.
    """
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    iterators = weakref.WeakSet()
    begin = _MultiProcessingDataLoaderIter.__init__

    def init(self, *args, **kwargs):
        iterators.add(self)
        begin(self, *args, **kwargs)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, '__init__', init)
    yield
    for iterator in list(iterators):
        # It is missing if it could not even begin.
        if not getattr(iterator, '_shutdown', True):
            iterator._shutdown_workers()


@pytest.fixture(autouse=True)
def only_what_torch_has(monkeypatch):
    """Skip a test when it calls for what this torch has not."""
    from tests.torch_features import guard_missing

    guard_missing(monkeypatch)


@pytest.fixture(autouse=True)
def no_language(monkeypatch):
    """No test inherits the language of the one before it."""
    from mmstable import messages

    monkeypatch.setattr(messages, '_chosen', None)
    monkeypatch.setattr(messages, '_preferred', None)
    monkeypatch.delenv(messages.VARIABLE, raising=False)


@pytest.fixture
def capture_log():
    """Collect what mmengine's current logger says from a level on."""

    @contextmanager
    def capture(level: int = logging.INFO):
        lines: list[str] = []

        class Collector(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())

        from mmengine.logging import MMLogger

        logger = MMLogger.get_current_instance()
        handler = Collector(level)
        logger.addHandler(handler)
        yield lines
        logger.removeHandler(handler)

    return capture


@pytest.fixture(autouse=True)
def no_repeats():
    """A test has nothing to do with the signals of the one before."""
    from mmstable.checkpoint import signals as stop_signal

    yield
    if stop_signal._installed is not None:
        stop_signal._installed._restore()
