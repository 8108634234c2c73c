"""The faults of a config: their kinds, settings, iterations and ranks."""

from __future__ import annotations

import hashlib
import math
import signal as signals
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

from mmstable import settings as rules
from mmstable.errors import ConfigError
from mmstable.inject import faults
from mmstable.io.files import read_bounded, replace_text
from mmstable.messages import _, printable


class Kind(NamedTuple):
    """A class of faults, with the settings that the kind implies.

    Args:
        action (type): The class.
        preset (dict): The implied settings. Defaults to {}.
    """

    action: Any
    preset: Mapping[str, Any] = {}

    def settings(self) -> list[Field]:
        """Return the settings that a config may choose."""
        return [f for f in fields(self.action) if f.name not in self.preset]


KINDS: dict[str, Kind] = {
    'nan_grad': Kind(faults.SpoiledGradient, {'value': math.nan}),
    'inf_grad': Kind(faults.SpoiledGradient, {'value': math.inf}),
    'spike_grad': Kind(faults.GradientSpike),
    'nan_loss': Kind(faults.SpoiledLoss, {'factor': math.nan}),
    'inf_loss': Kind(faults.SpoiledLoss, {'factor': math.inf}),
    'spike_loss': Kind(faults.SpoiledLoss),
    'nan_input': Kind(faults.SpoiledInput, {'value': math.nan}),
    'inf_input': Kind(faults.SpoiledInput, {'value': math.inf}),
    'nan_weight': Kind(faults.PoisonedWeight, {'value': math.nan}),
    'inf_weight': Kind(faults.PoisonedWeight, {'value': math.inf}),
    'nan_buffer': Kind(faults.PoisonedBuffer, {'value': math.nan}),
    'inf_buffer': Kind(faults.PoisonedBuffer, {'value': math.inf}),
    'nan_state': Kind(faults.PoisonedState, {'value': math.nan}),
    'inf_state': Kind(faults.PoisonedState, {'value': math.inf}),
    'oom': Kind(faults.OutOfMemory),
    'hang': Kind(faults.Hang),
    'signal': Kind(faults.Signal),
    'exception': Kind(faults.Failure),
}


def _factor(owner: str, name: str, value: Any) -> None:
    if not rules.is_number(value) or abs(value) <= 1:
        rule = _('a finite number above 1 or below -1')
        rules.refuse(owner, name, rule, value)


def _signal(owner: str, name: str, value: Any) -> None:
    known = signals.Signals.__members__
    if rules.text(owner, name, value) not in known:
        raise ValueError(rules.no_match(name, value, known))


# Called with the owner, the name and the value of a setting of a config.
CHECKS: dict[str, Callable[[str, str, Any], object]] = {
    'param': rules.pattern,
    'buffer': rules.pattern,
    'factor': _factor,
    'term': rules.text,
    'input': rules.text,
    'entry': rules.text,
    'seconds': partial(rules.number, above=0),
    'signal': _signal,
    'message': rules.text,
    'where': partial(rules.one_of, known=('forward', 'data')),
}
# When and where a fault happens.
SETTINGS = ('at', 'between', 'probability', 'rank')


@dataclass(frozen=True)
class Schedule:
    """The iterations and ranks of one fault.

    It has no state: a resumed run gets the same faults.

    Args:
        at (int or Sequence[int], optional): Iterations, counted from 1 as in
            the log. Defaults to None.
        between (Sequence[int], optional): The first and the last iteration.
            Defaults to None.
        probability (float, optional): The chance in every iteration, of all
            or of those ``between``, drawn on every rank for itself.
            Defaults to None, which means 1.
        rank (int or Sequence[int], optional): The only ranks to act on.
            Defaults to None, which means all.
    """

    at: Any = None
    between: Any = None
    probability: float | None = None
    rank: Any = None

    def __post_init__(self) -> None:
        others = (self.between, self.probability)
        if self.at is None and others == (None, None):
            raise ValueError(
                _('set one of `at`, `between` and `probability`.')
            )
        if self.at is not None and others != (None, None):
            raise ValueError(
                _('`at` cannot be combined with `between` or `probability`.')
            )
        for name, least in (('at', 1), ('rank', 0)):
            value = getattr(self, name)
            if value is not None:
                numbers = frozenset(rules.integers('', name, value, least))
                object.__setattr__(self, name, numbers)
        if self.between is not None:
            self._check_between()
        if (chance := self.probability) is not None:
            rules.number('', 'probability', chance, above=0, at_most=1)

    def _check_between(self) -> None:
        is_pair = isinstance(self.between, (list, tuple))
        if is_pair and len(self.between) == 2:
            first, last = rules.integers('', 'between', self.between)
            object.__setattr__(self, 'between', (first, last))
            if first <= last:
                return
        rule = _('(first, last) with 1 <= first <= last')
        rules.refuse('', 'between', rule, self.between)

    def is_due(self, iteration: int, rank: int, *luck: int) -> bool:
        """Return whether the fault happens now and here.

        Args:
            iteration (int): The iteration, counted from 1.
            rank (int): The rank of this process.
            *luck (int): More seeds of the draw for a probability.
        """
        if self.rank is not None and rank not in self.rank:
            return False
        if self.at is not None:
            return iteration in self.at
        first, last = self.between or (1, iteration)
        if not first <= iteration <= last:
            return False
        chance = 1 if self.probability is None else self.probability
        return draw(*luck, iteration, rank) < chance


def draw(*numbers: int) -> float:
    """Draw a number in [0, 1) that depends on these numbers only."""
    text = ' '.join(map(str, numbers)).encode()
    digest = hashlib.blake2b(text, digest_size=7).digest()
    return int.from_bytes(digest, 'big') / 2.0**56


@dataclass(frozen=True)
class PlannedFault:
    """A fault of a config.

    Args:
        index (int): Its place in the config's list.
        kind (str): One of :data:`KINDS`.
        action (Action): The fault.
        schedule (Schedule): When and where.
        name (str): The kind with its settings, as in the config.
        when (str): The settings of the schedule, as in the config.
    """

    index: int
    kind: str
    action: faults.Action
    schedule: Schedule
    name: str
    when: str

    def is_due(self, iteration: int, rank: int, seed: int) -> bool:
        """Return whether it happens now and here."""
        return self.schedule.is_due(iteration, rank, seed, self.index)

    def __str__(self) -> str:
        return f'{self.name} {self.when}'


def plan_fault(index: int, config: Any) -> PlannedFault:
    """Read one entry of the list ``faults``.

    Raises:
        TypeError: If it is no dict, or a setting is of a wrong type.
        ValueError: If a setting is impossible, missing or unknown.
    """
    where = f'faults[{index}]'
    if not isinstance(config, Mapping):
        rules.refuse('', where, _('a dict'), config, right_type=False)
    settings = dict(config)
    kind = rules.one_of(where, 'kind', settings.pop('kind', None), KINDS)
    try:
        when = {key: settings.pop(key) for key in SETTINGS if key in settings}
        _check_settings(kind, settings)
        action = KINDS[kind].action(**KINDS[kind].preset, **settings)
        schedule = Schedule(**when)
    except (TypeError, ValueError) as error:
        raise type(error)(f'{where} ({kind}): {error}') from None
    name = f'{kind}({_listed(settings)})' if settings else kind
    return PlannedFault(index, kind, action, schedule, name, _listed(when))


def _check_settings(kind: str, settings: Mapping[str, Any]) -> None:
    allowed = {field.name: field for field in KINDS[kind].settings()}
    rules.known_settings('', settings, (*allowed, *SETTINGS))
    for name, field in allowed.items():
        if name not in settings:
            if field.default is MISSING:
                raise ValueError(_('`{name}` is missing.', name=name))
        elif settings[name] is not None or field.default is not None:
            CHECKS[name]('', name, settings[name])


def _listed(settings: Mapping[str, Any]) -> str:
    return ', '.join(f'{key}={value!r}' for key, value in settings.items())


# Far more than the faults of one run need.
_LONGEST = 1 << 20


class Ledger:
    """The faults that ended a process, as lines of a file in the work dir.

    A resumed run does not repeat them. The file is kept when a run starts at
    iteration 0: it may have been restarted before its first checkpoint.

    Args:
        work_dir (Path): The directory.
        rank (int): The rank, which has a file of its own.
    """

    def __init__(self, work_dir: Path, rank: int) -> None:
        self.path = work_dir / f'injected_faults.rank{rank}.txt'
        # In their order.
        self._lines = dict.fromkeys(self._read().splitlines())

    def __contains__(self, entry: tuple[int, str]) -> bool:
        return _line(entry) in self._lines

    def add(self, entry: tuple[int, str]) -> None:
        """Write a fault to the disk.

        Args:
            entry (tuple[int, str]): The iteration and the fault.
        """
        self._lines[_line(entry)] = None
        text = ''.join(f'{line}\n' for line in self._lines)
        replace_text(self.path, text, encoding='utf-8')

    def _read(self) -> str:
        try:
            return read_bounded(self.path, _LONGEST).decode('ascii')
        except FileNotFoundError:
            return ''
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"FaultInjectorHook: '{printable(self.path)}' is not the "
                f'list of faults that it should be ({error}); remove it to '
                'inject them all again.'
            ) from error


def _line(entry: tuple[int, str]) -> str:
    iteration, name = entry
    # One line, even if the message of an exception has several.
    return f'{iteration} {name.encode("unicode_escape").decode("ascii")}'
