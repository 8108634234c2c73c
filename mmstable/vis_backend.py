"""A visualizer back-end that writes from a thread and cannot stop a run."""

from __future__ import annotations

import copy
import json
import logging
import queue
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import VISBACKENDS as ALL_BACKENDS
from mmengine.visualization import BaseVisBackend

from mmstable.errors import ConfigError
from mmstable.io.files import read_bounded, replace_text
from mmstable.io.process import BackgroundThread
from mmstable.io.schema import mapping_of, parse_json, text
from mmstable.messages import _, printable
from mmstable.registry import VISBACKENDS, register_globally
from mmstable.settings import flag, integer, number

# Seconds without a call after which the thread ends: many runs in one process
# must not leave one each.
_IDLE_S = 5.0


class CallQueue:
    """Calls that may fail or never end, made in order by another thread.

    Args:
        max_calls (int): How many calls may wait; more are dropped.
        max_bytes (int): What they may keep in memory together.
        on_error (Callable): Gets, in that thread, what a call has raised.
    """

    def __init__(
        self,
        max_calls: int,
        max_bytes: int,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._calls: queue.Queue[tuple[Callable[[], Any], int]]
        self._calls = queue.Queue(max_calls)
        self._max_bytes, self._bytes = max_bytes, 0
        self._on_error = on_error
        # Held to change the number of bytes, or the thread.
        self._lock = threading.Lock()
        self._thread: BackgroundThread | None = None

    def put(self, call: Callable[[], Any], size: int = 0) -> bool:
        """Let a call wait for its turn; False if there are too many.

        Args:
            call (Callable): The call.
            size (int): Bytes that it keeps in memory. Defaults to 0.
        """
        with self._lock:
            if self._bytes and self._bytes + size > self._max_bytes:
                return False
            try:
                self._calls.put_nowait((call, size))
            except queue.Full:
                return False
            self._bytes += size
            if self._thread is None:
                # Waits for something to do, also at the end of the process.
                self._thread = BackgroundThread(
                    'mmstable-vis', self._work, wake=lambda: self.put(int)
                )
                self._thread.start()
        return True

    def wait(self, seconds: float) -> bool:
        """Wait until all calls are made; False if that takes too long."""
        calls = self._calls
        # As `join` does, which has no timeout.
        with calls.all_tasks_done:
            return calls.all_tasks_done.wait_for(
                lambda: not calls.unfinished_tasks, seconds
            )

    def clear(self) -> int:
        """Drop the calls that wait, and return their number."""
        count = 0
        with suppress(queue.Empty):
            while True:
                self._take(0)
                self._calls.task_done()
                count += 1
        return count

    def _take(self, timeout: float) -> Callable[[], Any]:
        call, size = self._calls.get(timeout=timeout)
        with self._lock:
            self._bytes -= size
        return call

    def _work(self, stopped: threading.Event) -> None:
        while True:
            try:
                call = self._take(0 if stopped.is_set() else _IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._calls.empty():
                        # The next call starts another thread.
                        self._thread = None
                        return
                continue
            try:
                call()
            except Exception as error:
                self._on_error(error)
            # Not kept in memory until the next one comes.
            del call
            self._calls.task_done()


_NAME = 'QueuedVisBackend'
_MOST_BYTES = 256 << 20


@register_globally(VISBACKENDS)
class QueuedVisBackend(BaseVisBackend):
    """Write to another back-end from a thread of its own.

    Records are queued and written in the same order. A back-end that fails
    (a full disk), blocks (no network) or is slower than the run is reported
    once; a record that cannot be written or queued is dropped, and training
    does not wait. At the end of the run the rest is written, within
    ``timeout``.

    ``mmstable train`` puts it around every back-end of a config. A back-end
    whose package is missing ends the run at its start.

    Args:
        backend (dict or BaseVisBackend): The back-end, or its config.
        save_dir (str, optional): For the back-end, if its config has none.
            Defaults to None.
        size (int): Records that may wait. Defaults to 1000.
        timeout (float): Seconds that the end of the run may wait for the
            back-end. Defaults to 60.
        optional (bool): Whether to train without a back-end whose package is
            missing. Defaults to False.

    Raises:
        ConfigError: If the package of the back-end is missing.
    """

    def __init__(
        self,
        backend: dict | BaseVisBackend,
        save_dir: str | None = None,
        size: int = 1000,
        timeout: float = 60.0,
        optional: bool = False,
    ) -> None:
        super().__init__(save_dir)  # type: ignore[arg-type]
        if isinstance(backend, dict):
            inner = _if_installed(backend, flag(_NAME, 'optional', optional))
            backend = ALL_BACKENDS.build({'save_dir': save_dir, **inner})
        self._backend = backend
        self._kind = type(backend).__name__
        self._timeout = number(_NAME, 'timeout', timeout, at_least=0)
        self._queue = CallQueue(
            integer(_NAME, 'size', size), _MOST_BYTES, self._lose
        )
        # Counted by the thread, and by the run.
        self._failed = 0
        self._dropped = 0
        self._is_warned = False
        if _TAG in (getattr(backend, '_tags', None) or {}):
            self._queue.put(partial(_continue_mlflow, backend))

    @property
    def experiment(self) -> Any:
        """The object of the back-end, once all records are written."""
        self._queue.wait(self._timeout)
        return self._backend.experiment

    def __getattr__(self, name: str) -> Any:
        # Only asked for what this class does not have.
        if name == '_backend':
            raise AttributeError(name)
        return getattr(self._backend, name)

    def _init_env(self) -> None:
        """Nothing: the back-end does it when it is first used."""

    def add_config(self, config: Config, **kwargs: Any) -> None:
        """Record the config."""
        self._put('add_config', config, **kwargs)

    def add_graph(
        self, model: torch.nn.Module, data_batch: Any, **kwargs: Any
    ) -> None:
        """Record the graph: at once, because this calls the model."""
        try:
            self._backend.add_graph(model, data_batch, **kwargs)
        except Exception as error:
            self._lose(error)

    def add_image(
        self, name: str, image: np.ndarray, step: int = 0, **kwargs: Any
    ) -> None:
        """Record an image."""
        self._put('add_image', name, np.asarray(image), step, **kwargs)

    def add_scalar(
        self, name: str, value: Any, step: int = 0, **kwargs: Any
    ) -> None:
        """Record a number."""
        self._put('add_scalar', name, value, step, **kwargs)

    def add_scalars(
        self,
        scalar_dict: dict,
        step: int = 0,
        file_path: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Record numbers."""
        self._put('add_scalars', scalar_dict, step, file_path, **kwargs)

    def close(self) -> None:
        """Write what waits, and close the back-end, within the timeout."""
        self._put('close')
        if not self._queue.wait(self._timeout):
            self._dropped += self._queue.clear()
            self._warn(
                _(
                    'it was not done after {seconds} s',
                    seconds=f'{self._timeout:g}',
                )
            )
        lost = self._failed + self._dropped
        if lost:
            text = _(
                'mmstable: {backend} has lost {count:record|records} of this '
                'run.',
                backend=self._kind,
                count=lost,
            )
            print_log(text, logger='current')

    def _put(self, name: str, *args: Any, **kwargs: Any) -> None:
        method, frozen = getattr(self._backend, name), map(_frozen, args)
        call = partial(method, *frozen, **kwargs)
        size = sum(getattr(one, 'nbytes', 0) for one in args)
        if not self._queue.put(call, size):
            self._dropped += 1
            self._warn(
                _(
                    'it blocks, or is slower than the run, and too much is '
                    'waiting'
                )
            )

    def _lose(self, error: Exception) -> None:
        self._failed += 1
        self._warn(f'{type(error).__name__}: {printable(error, 300)}')

    def _warn(self, reason: str) -> None:
        if self._is_warned:
            return
        self._is_warned = True
        print_log(
            _(
                'mmstable: {backend} does not record everything: {reason}. '
                'Training continues; this is said once.',
                backend=self._kind,
                reason=reason,
            ),
            logger='current',
            level=logging.WARNING,
        )


# Packages of mmengine's back-ends; some are imported when a run records.
_PACKAGES = {
    'AimVisBackend': 'aim',
    'ClearMLVisBackend': 'clearml',
    'DVCLiveVisBackend': 'dvclive',
    'MLflowVisBackend': 'mlflow',
    'NeptuneVisBackend': 'neptune',
    'SwanlabVisBackend': 'swanlab',
    'TensorboardVisBackend': 'tensorboard',
    'WandbVisBackend': 'wandb',
}


def _if_installed(
    backend: Mapping[str, Any], optional: bool
) -> Mapping[str, Any]:
    """Return the config of a back-end whose package is there.

    Args:
        backend (Mapping): The config.
        optional (bool): Whether to replace it if the package is missing.

    Raises:
        ConfigError: If the package is missing, and is not optional.
    """
    kind = _kind_of(backend)
    package = _PACKAGES.get(kind)
    if package is None or find_spec(package) is not None:
        return backend
    if not optional:
        raise ConfigError(
            _(
                '{kind} needs the package {package}: pip install {package}. '
                'To train without it, set optional=True in '
                'mmstable.QueuedVisBackend.',
                kind=kind,
                package=package,
            )
        )
    text = _(
        'mmstable: {kind} could not start and records NOTHING: its package '
        'is missing.',
        kind=kind,
    )
    print_log(text, logger='current', level=logging.WARNING)
    return {'type': 'LocalVisBackend'}


def _inner(backend: dict[str, Any]) -> dict[str, Any]:
    """Return the config inside of a queue."""
    inner = backend.get('backend')
    return inner if isinstance(inner, dict) else backend


def _kind_of(backend: Mapping[str, Any]) -> str:
    kind = backend.get('type', '')
    name = kind if isinstance(kind, str) else kind.__name__
    return name.rpartition('.')[2]


# MLflow chooses the id of a run: it is found by this tag.
_TAG = 'mmstable.run'
# Where the config of a back-end has the id of its run.
_PLACES = {
    'WandbVisBackend': ('init_kwargs', 'id'),
    'SwanlabVisBackend': ('init_kwargs', 'id'),
    'MLflowVisBackend': ('tags', _TAG),
}
_IDS = 'dashboards.json'
_LONGEST = 1 << 16
_LONGEST_ID = 128
_CHECK = mapping_of(text(64), text(_LONGEST_ID))
# What back-ends leave in their folder.
_FILES = {
    'TensorboardVisBackend': 'events.out.tfevents*',
    'MLflowVisBackend': '*/meta.yaml',
}


def run_ids(
    backends: Any,
    work_dir: Path,
    resume: bool,
    saved: Callable[[], Any] = list,
) -> dict[str, str]:
    """Return the ids of the runs on dashboards, the same for all starts.

    Args:
        backends (list): Configs of back-ends.
        work_dir (Path): The work directory, which keeps them.
        resume (bool): Whether the run continues an earlier one.
        saved (Callable): Returns the configs of back-ends in the checkpoint
            that is resumed, for a work directory without ids. Defaults to
            list.
    """
    kinds = {_kind_of(one) for one in map(_inner, backends or ())}
    if not kinds & _PLACES.keys():
        return {}
    path, ids = work_dir / _IDS, {}
    if resume:
        try:
            content = parse_json(read_bounded(path, _LONGEST), _LONGEST)
            ids = _CHECK(content)
        except (OSError, ValueError):
            ids = _ids_in(saved())
    # SwanLab 0.7 takes 21 lowercase letters and digits, and no other ids.
    made = secrets.token_hex(11)[:21]
    ids = {kind: ids.get(kind, made) for kind in _PLACES}
    with suppress(OSError):
        work_dir.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(ids))
    return ids


def continue_runs(
    backends: Any, work_dir: Path, ids: Mapping[str, str], resume: bool
) -> None:
    """Let dashboards show all starts of a run as one.

    Args:
        backends (list): Configs of back-ends, changed in place.
        work_dir (Path): The work directory.
        ids (Mapping): What :func:`run_ids` returned.
        resume (bool): Whether the run continues an earlier one.
    """
    for backend in map(_inner, backends or ()):
        kind = _kind_of(backend)
        if kind in ids:
            section, key = _PLACES[kind]
            if not backend.get(section):
                backend[section] = {}
            # Not the new dict: a config keeps a copy of its own.
            settings = backend[section]
            settings.setdefault(key, ids[kind])
            if section == 'init_kwargs':
                settings.setdefault('resume', 'allow')
        if not resume:
            continue
        if kind == 'MLflowVisBackend':
            # Parameters of a run cannot change, as those of a resume do.
            backend.setdefault('tracked_config_keys', {})
        if kind in _FILES and not backend.get('tracking_uri'):
            # The folder that the first start has written to.
            found = sorted(work_dir.glob(f'*/vis_data/{_FILES[kind]}'))
            if found:
                folder = work_dir / found[-1].relative_to(work_dir).parts[0]
                backend.setdefault('save_dir', str(folder / 'vis_data'))


def _ids_in(backends: Any) -> dict[str, str]:
    """Return the ids in configs, which may be anything."""
    found = {}
    for backend in backends if isinstance(backends, list) else ():
        inner = _inner(backend) if isinstance(backend, dict) else {}
        kind = _kind_of(inner)
        if kind in _PLACES:
            section, key = _PLACES[kind]
            settings = inner.get(section)
            value = settings.get(key) if isinstance(settings, dict) else None
            if isinstance(value, str) and len(value) <= _LONGEST_ID:
                found[kind] = value
    return found


def _continue_mlflow(backend: Any) -> None:
    """Make the run with the tag of a back-end the active one."""
    import mlflow

    tag = (backend._tags or {}).get(_TAG)
    folder = f'file://{Path(backend._save_dir).resolve()}'
    mlflow.set_tracking_uri(backend._tracking_uri or folder)
    found = mlflow.search_runs(
        search_all_experiments=True,
        filter_string=f"tags.`{_TAG}` = '{tag}'",
        max_results=1,
        output_format='list',
    )
    if found:
        mlflow.start_run(run_id=found[0].info.run_id)


def _frozen(value: Any) -> Any:
    """Copy a value, which the run may change before it is written."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {name: _frozen(one) for name, one in value.items()}
    return copy.deepcopy(value)


__all__ = ['QueuedVisBackend']
