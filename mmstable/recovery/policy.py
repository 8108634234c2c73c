"""What is done about which fault?"""

from __future__ import annotations

from collections.abc import Mapping

from mmstable.events import Action, Fault
from mmstable.settings import known_settings, mapping, one_of

# What each fault can be met with, the default first. A bad step is always
# skipped; these come on top when there are too many of them.
_TOO_MANY = ('rollback', 'warn', 'lower_lr', 'stop')
_CHOICES: Mapping[Fault, tuple[str, ...]] = {
    Fault.OVERFLOW: _TOO_MANY,
    Fault.NAN_LOSS: _TOO_MANY,
    Fault.NAN_GRAD: _TOO_MANY,
    Fault.POISONED: ('rollback', 'warn', 'stop'),
    Fault.SPIKE: ('warn', 'skip', 'lower_lr', 'rollback', 'stop'),
}


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
