"""From a dict of a config to a fault and its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, NamedTuple

from mmstable.fault_injection.accidents import (
    Failure,
    Hang,
    OutOfMemory,
    Signal,
)
from mmstable.fault_injection.action import Action
from mmstable.fault_injection.gradients import GradientSpike, SpoiledGradient
from mmstable.fault_injection.inputs import SpoiledInput
from mmstable.fault_injection.losses import LossSpike, SpoiledLoss
from mmstable.fault_injection.schedule import SETTINGS, Schedule
from mmstable.fault_injection.state import (
    PoisonedBuffer,
    PoisonedState,
    PoisonedWeight,
)
from mmstable.fault_injection.values import INF, NAN
from mmstable.messages import _
from mmstable.settings import known_settings, one_of, refuse


class Kind(NamedTuple):
    """A class of faults, and what the name of the kind says about it.

    Args:
        action (type): The class.
        preset (dict): Settings that the name stands for.
    """

    action: Any
    preset: dict[str, Any]

    def settings(self) -> list[Field]:
        """What a config may still choose."""
        return [
            field
            for field in fields(self.action)
            if field.init and field.name not in self.preset
        ]


KINDS: dict[str, Kind] = {
    'nan_grad': Kind(SpoiledGradient, {'value': NAN}),
    'inf_grad': Kind(SpoiledGradient, {'value': INF}),
    'spike_grad': Kind(GradientSpike, {}),
    'nan_loss': Kind(SpoiledLoss, {'value': NAN}),
    'inf_loss': Kind(SpoiledLoss, {'value': INF}),
    'spike_loss': Kind(LossSpike, {}),
    'nan_input': Kind(SpoiledInput, {'value': NAN}),
    'inf_input': Kind(SpoiledInput, {'value': INF}),
    'nan_weight': Kind(PoisonedWeight, {'value': NAN}),
    'inf_weight': Kind(PoisonedWeight, {'value': INF}),
    'nan_buffer': Kind(PoisonedBuffer, {'value': NAN}),
    'inf_buffer': Kind(PoisonedBuffer, {'value': INF}),
    'nan_state': Kind(PoisonedState, {'value': NAN}),
    'inf_state': Kind(PoisonedState, {'value': INF}),
    'oom': Kind(OutOfMemory, {}),
    'hang': Kind(Hang, {}),
    'signal': Kind(Signal, {}),
    'exception': Kind(Failure, {}),
}


@dataclass(frozen=True)
class PlannedFault:
    """A fault of a config.

    Args:
        index (int): Its place in the config's list.
        kind (str): One of :data:`KINDS`.
        action (Action): What it does.
        schedule (Schedule): When and where.
        settings (str): Those of the action, as in the config.
        when (str): Those of the schedule, as in the config.
    """

    index: int
    kind: str
    action: Action
    schedule: Schedule
    settings: str
    when: str

    def is_due(self, iteration: int, rank: int, seed: int) -> bool:
        """Whether it happens now and here."""
        return self.schedule.is_due(iteration, rank, seed, self.index)

    @property
    def name(self) -> str:
        """What it does, without when."""
        settings = f'({self.settings})' if self.settings else ''
        return f'{self.kind}{settings}'

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
        refuse('', where, _('a dict'), config, right_type=False)
    settings = dict(config)
    kind = one_of(where, 'kind', settings.pop('kind', None), KINDS)
    try:
        when = {key: settings.pop(key) for key in SETTINGS if key in settings}
        _check_settings(kind, settings)
        action = KINDS[kind].action(**KINDS[kind].preset, **settings)
        schedule = Schedule(**when)
    except (TypeError, ValueError) as error:
        raise type(error)(f'{where} ({kind}): {error}') from None
    return PlannedFault(
        index, kind, action, schedule, _listed(settings), _listed(when)
    )


def _check_settings(kind: str, settings: Mapping[str, Any]) -> None:
    allowed = {field.name: field for field in KINDS[kind].settings()}
    known_settings('', settings, (*allowed, *SETTINGS))
    for name, field in allowed.items():
        if field.default is MISSING and name not in settings:
            raise ValueError(_('`{name}` is missing.', name=name))


def _listed(settings: Mapping[str, Any]) -> str:
    return ', '.join(f'{key}={value!r}' for key, value in settings.items())
