"""Faults that end an iteration, or the process, or nearly so."""

from __future__ import annotations

import os
import signal as signals
import time
from abc import abstractmethod
from dataclasses import dataclass, field

import torch

from mmstable.errors import InjectedError
from mmstable.fault_injection.action import Action, Scene
from mmstable.settings import no_match, number, one_of, text

PLACES = ('forward', 'data')
# torch before 2.5 has no such error for all devices.
OutOfMemoryError: type[RuntimeError] = getattr(
    torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError
)


class _Accident(Action):
    """Happens once: a run that goes on after it is spared."""

    ends_process = True

    where: str

    def arm(self, scene: Scene) -> None:
        """Let it happen now or with the next forward pass."""
        if self.where == 'data':
            self._happen(scene)
        else:
            scene.before_forward(lambda args, kwargs: self._happen(scene))

    def _happen(self, scene: Scene) -> None:
        # Ahead of the act, which may leave no time for it.
        scene.tell(self.where, self.value_name)
        self.happen()

    @property
    @abstractmethod
    def value_name(self) -> str:
        """What happens, for the record."""

    @abstractmethod
    def happen(self) -> None:
        """Do it."""

    def _check_where(self) -> None:
        one_of('', 'where', self.where, PLACES)


@dataclass(frozen=True)
class OutOfMemory(_Accident):
    """The error that torch raises when the device has no memory left."""

    where: str = field(default='forward', init=False)

    @property
    def value_name(self) -> str:
        """The class of the error."""
        return OutOfMemoryError.__name__

    def happen(self) -> None:
        """Raise it."""
        raise OutOfMemoryError(
            'out of memory (injected by FaultInjectorHook; there is as much '
            'memory as before)'
        )


@dataclass(frozen=True)
class Hang(_Accident):
    """A pass, or its data, that takes very long. Ctrl-C ends it.

    Args:
        seconds (float): How long.
        where (str): 'forward', or 'data' for before the iteration starts.
            Defaults to 'forward'.
    """

    seconds: float
    where: str = 'forward'

    def __post_init__(self) -> None:
        number('', 'seconds', self.seconds, above=0)
        self._check_where()

    @property
    def value_name(self) -> str:
        """How long."""
        return str(self.seconds)

    def happen(self) -> None:
        """Sleep."""
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Signal(_Accident):
    """A signal to this process, as from a scheduler.

    Args:
        signal (str): Its name, e.g. 'SIGTERM'.
        where (str): 'forward', or 'data' for before the iteration starts.
            Defaults to 'forward'.
    """

    signal: str
    where: str = 'forward'

    def __post_init__(self) -> None:
        known = signals.Signals.__members__
        if text('', 'signal', self.signal) not in known:
            raise ValueError(no_match('signal', self.signal, known))
        self._check_where()

    @property
    def value_name(self) -> str:
        """Its name."""
        return self.signal

    def happen(self) -> None:
        """Send it."""
        os.kill(os.getpid(), signals.Signals[self.signal])


@dataclass(frozen=True)
class Failure(_Accident):
    """An exception of class :class:`mmstable.errors.InjectedError`.

    Args:
        message (str): Its text. Defaults to 'injected by FaultInjectorHook'.
        where (str): 'forward', or 'data' for before the iteration starts.
            Defaults to 'forward'.
    """

    message: str = 'injected by FaultInjectorHook'
    where: str = 'forward'

    def __post_init__(self) -> None:
        text('', 'message', self.message)
        self._check_where()

    @property
    def value_name(self) -> str:
        """Its text."""
        return self.message

    def happen(self) -> None:
        """Raise it."""
        raise InjectedError(self.message)
