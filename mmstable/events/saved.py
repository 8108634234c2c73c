"""Objects whose state is part of a checkpoint, checked when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mmstable.io.schema import Check, record


class Saved:
    """An object that saves some of its attributes.

    ``state`` names them, each with the check of its value, or with the class
    of another such object. ``saved`` is the check of the whole state.
    """

    state: ClassVar[Mapping[str, Any]] = {}
    saved: ClassVar[Check]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        checks = {
            name: getattr(check, 'saved', check)
            for name, check in cls.state.items()
        }
        cls.saved = staticmethod(record(**checks))

    def state_dict(self) -> dict[str, Any]:
        """The attributes in plain types, for a checkpoint."""
        return {name: _plain(getattr(self, name)) for name in self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        for name in self.state:
            present, value = getattr(self, name), state[name]
            if isinstance(present, Saved):
                present.load_state_dict(value)
            elif present is None or value is None:
                setattr(self, name, value)
            else:
                # A deque or a counter of a list or a dict.
                setattr(self, name, type(present)(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Saved):
        return value.state_dict()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set)) or hasattr(value, 'maxlen'):
        return [_plain(one) for one in value]
    return value
