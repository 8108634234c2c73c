"""What is done about which fault?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mmstable.events import Action, Fault
from mmstable.recovery.incident import Incident
from mmstable.settings import known_settings, mapping, one_of

# The actions that a fault allows, the default first. A bad step is always
# skipped; these come on top when there are too many of them.
_TOO_MANY = ('rollback', 'warn', 'lower_lr', 'stop')
_CHOICES: Mapping[Fault, tuple[str, ...]] = {
    Fault.OVERFLOW: _TOO_MANY,
    Fault.NAN_LOSS: _TOO_MANY,
    Fault.NAN_GRAD: _TOO_MANY,
    Fault.POISONED: ('rollback', 'warn', 'stop'),
    Fault.SPIKE: ('skip', 'warn', 'lower_lr', 'rollback', 'stop'),
}


class Policy:
    """The action for each fault.

    Args:
        actions (Mapping[Fault, Action]): From :func:`parse_actions`.
    """

    def __init__(self, actions: Mapping[Fault, Action]) -> None:
        self._actions = dict(actions)
        spikes = self._actions[Fault.SPIKE]
        # Whether steps that are spikes are skipped before they are made.
        self.skips_spikes = spikes is Action.SKIP
        # Whether a spike leads to something that all ranks must do.
        self.spikes_change_the_run = spikes not in (Action.WARN, Action.SKIP)

    def __getitem__(self, fault: Fault) -> Action:
        return self._actions[fault]

    @property
    def can_roll_back(self) -> bool:
        """Whether any fault leads to a rollback."""
        return Action.ROLLBACK in self._actions.values()

    def action(self, incident: Incident) -> Action:
        """What to do about an incident."""
        chosen = self[incident.fault]
        if chosen is Action.SKIP and incident.is_series:
            # Skipping did not end it.
            return self[Fault.NAN_GRAD]
        if chosen is Action.SKIP and not incident.is_skipped:
            return Action.WARN
        return chosen

    def gravest(self, incidents: Iterable[Incident]) -> Incident | None:
        """The one to act on: of equally grave ones, the first."""
        return max(incidents, key=self._gravity, default=None)

    def _gravity(self, incident: Incident) -> tuple[int, bool]:
        order = list(Action).index(self.action(incident))
        return order, incident.fault is Fault.POISONED


def parse_actions(
    where: str, actions: Mapping[str, str] | None
) -> dict[Fault, Action]:
    """The action for each fault; what is not named gets its default.

    Args:
        where (str): What to call the place of the settings in an error.
        actions (Mapping, optional): Fault to action, both by name.
    """
    known = [fault.value for fault in _CHOICES]
    chosen = {fault: Action(names[0]) for fault, names in _CHOICES.items()}
    given = mapping(where, 'actions', actions)
    known_settings(f'{where}: `actions`', given, known)
    for name, action in given.items():
        fault = Fault(name)
        one_of(where, f"actions['{name}']", action, _CHOICES[fault])
        chosen[fault] = Action(action)
    return chosen
