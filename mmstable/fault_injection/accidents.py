"""Faults that end an iteration, or the process, or nearly so."""

from __future__ import annotations

import math
import os
import signal as signals
import time
from abc import abstractmethod
from dataclasses import dataclass, field

import torch

from mmstable.errors import InjectedError
from mmstable.fault_injection.action import Action, Scene
from mmstable.fault_injection.names import no_match

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
        if self.where not in PLACES:
            raise ValueError(
                f'`where` must be one of {PLACES}, got {self.where!r}'
            )

    def _place(self) -> str:
        return {'forward': 'in the forward pass', 'data': 'before it'}[
            self.where
        ]


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

    def __str__(self) -> str:
        return f'{self.value_name} {self._place()}'


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
        is_number = isinstance(self.seconds, (int, float))
        if (
            not is_number
            or isinstance(self.seconds, bool)
            or not 0 < self.seconds < math.inf
        ):
            raise ValueError(
                '`seconds` must be a positive finite number, got '
                f'{self.seconds!r}'
            )
        self._check_where()

    @property
    def value_name(self) -> str:
        """How long."""
        return str(self.seconds)

    def happen(self) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    def __str__(self) -> str:
        return f'{self.seconds} seconds of sleep {self._place()}'


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
        known = list(signals.Signals.__members__)
        if self.signal not in known:
            raise ValueError(no_match('signal', str(self.signal), known))
        self._check_where()

    @property
    def value_name(self) -> str:
        """Its name."""
        return self.signal

    def happen(self) -> None:
        """Send it."""
        os.kill(os.getpid(), signals.Signals[self.signal])

    def __str__(self) -> str:
        return f'{self.signal} {self._place()}'


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
        if not isinstance(self.message, str):
            raise TypeError(f'`message` must be a str, got {self.message!r}')
        self._check_where()

    @property
    def value_name(self) -> str:
        """Its text."""
        return self.message

    def happen(self) -> None:
        """Raise it."""
        raise InjectedError(self.message)

    def __str__(self) -> str:
        return f'InjectedError({self.message!r}) {self._place()}'
