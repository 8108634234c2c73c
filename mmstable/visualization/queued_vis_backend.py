"""The visualizer back-end that cannot stop a run."""

from __future__ import annotations

import copy
import logging
from typing import Any, Callable

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import VISBACKENDS as ALL_BACKENDS
from mmengine.visualization import BaseVisBackend

from mmstable.messages import _
from mmstable.messages.printable import printable
from mmstable.registry import VISBACKENDS, register_globally
from mmstable.settings import integer, number
from mmstable.visualization.call_queue import CallQueue

_NAME = 'QueuedVisBackend'
_MOST_BYTES = 256 << 20


@register_globally(VISBACKENDS)
class QueuedVisBackend(BaseVisBackend):
    """Write to another back-end from a thread of its own.

    What a run records is queued and written in the same order. A back-end
    that fails (a full disk), blocks (no network) or is slower than the run is
    told once; what cannot be written or queued is dropped, and training does
    not wait. At the end of the run the rest is written, within ``timeout``.

    ``mmstable train`` puts it around every back-end of a config.

    Args:
        backend (dict or BaseVisBackend): The back-end, or its config.
        save_dir (str, optional): For the back-end, if its config has none.
            Defaults to None.
        size (int): Records that may wait. Defaults to 1000.
        timeout (float): Seconds that the end of the run may wait for the
            back-end. Defaults to 60.
    """

    def __init__(
        self,
        backend: dict | BaseVisBackend,
        save_dir: str | None = None,
        size: int = 1000,
        timeout: float = 60.0,
    ) -> None:
        super().__init__(save_dir)  # type: ignore[arg-type]
        if isinstance(backend, dict):
            backend = ALL_BACKENDS.build({'save_dir': save_dir, **backend})
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

    @property
    def experiment(self) -> Any:
        """The object of the back-end, once it has nothing else to do."""
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
        # The run goes on to change its own.
        self._put(self._backend.add_config, copy.deepcopy(config), **kwargs)

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
        image = np.array(image)
        self._put(
            self._backend.add_image,
            name,
            image,
            step,
            kept=image.nbytes,
            **kwargs,
        )

    def add_scalar(
        self, name: str, value: Any, step: int = 0, **kwargs: Any
    ) -> None:
        """Record a number."""
        self._put(
            self._backend.add_scalar, name, _frozen(value), step, **kwargs
        )

    def add_scalars(
        self,
        scalar_dict: dict,
        step: int = 0,
        file_path: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Record numbers."""
        values = {name: _frozen(one) for name, one in scalar_dict.items()}
        self._put(self._backend.add_scalars, values, step, file_path, **kwargs)

    def close(self) -> None:
        """Write what waits, and close the back-end, within the timeout."""
        self._put(self._backend.close)
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

    def _put(
        self, method: Callable[..., None], *args: Any, kept: int = 0, **kw: Any
    ) -> None:
        if not self._queue.put(lambda: method(*args, **kw), kept):
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


def _frozen(value: Any) -> Any:
    """A value that the run cannot change before it is written."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value)
