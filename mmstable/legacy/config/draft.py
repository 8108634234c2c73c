"""A config on its way from mmcv to mmengine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mmstable.errors import UsageError
from mmstable.finding import Finding, Severity
from mmstable.messages import N_, _
from mmstable.settings import known_settings

NO_TYPE = N_('{path}: must be a dict with a `type`, got {got!r}.')
CONTRADICTION = N_('{path}: {value} contradicts {other}, which is {found}.')


@dataclass
class Draft:
    """What is settled so far, and what there is to tell.

    Args:
        settings (dict): The config, changed step by step.
        origins (dict): From new keys to the old ones behind them.
        remarks (dict): From new keys to what they amount to.
        findings (list): What there is to tell.
        by_epoch (bool): Whether the run is counted in epochs.
        all_old (bool): Whether nothing in it was written for mmengine.
    """

    settings: dict[str, Any]
    origins: dict[str, list[str]] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    by_epoch: bool = True
    all_old: bool = True

    def put(self, key: str, value: Any, *origins: str) -> None:
        """Set a new key."""
        self.settings[key] = value
        self._came_from(key, origins)

    def fill(
        self,
        key: str,
        values: Mapping[str, Any],
        *origins: str,
        serious: bool = True,
    ) -> None:
        """Add to a new key that is a dict; what it has already is kept.

        Args:
            key (str): The new key.
            values (Mapping): What to add.
            *origins (str): The old keys behind it.
            serious (bool): Whether a contradiction matters to the training.
                Defaults to True.
        """
        known = dict(self.settings.get(key) or {})
        for name, value in values.items():
            if known.get(name) is None or known[name] == value:
                known[name] = value
            else:
                self.conflict(
                    origins[0], f'{key}.{name}', value, known[name], serious
                )
        self.put(key, known, *origins)

    def append(self, key: str, value: Any, *origins: str) -> None:
        """Add to a new key that is a list."""
        self.put(key, [*(self.settings.get(key) or []), value], *origins)

    def note(self, path: str, why: str) -> None:
        """Tell what became of a setting that is not missed."""
        self._tell(Severity.HINT, path, why)

    def leave(self, path: str, why: str) -> None:
        """Tell of a setting without counterpart."""
        self._tell(Severity.WARNING, path, why)

    def warn(self, path: str, why: str) -> None:
        """Tell of a setting without which the training is another one."""
        self._tell(Severity.ERROR, path, why)

    def conflict(
        self, old: str, new: str, said: Any, found: Any, serious: bool = True
    ) -> None:
        """Tell of an old and a new setting that contradict each other."""
        tell = self.warn if serious else self.leave
        tell(
            old,
            _(
                'it asks for {said!r}, but `{new}` is {found!r}, which is '
                'kept. Remove one of the two',
                said=said,
                new=new,
                found=found,
            ),
        )

    def unknown(
        self, path: str, settings: Iterable[str], known: Iterable[str]
    ) -> None:
        """Refuse arguments that mmcv would have refused, too."""
        with usage_errors():
            known_settings(path, settings, list(known))

    def _tell(self, severity: Severity, path: str, what: str) -> None:
        self.findings.append(Finding('translated', severity, path, what))

    def _came_from(self, key: str, origins: Iterable[str]) -> None:
        known = self.origins.setdefault(key, [])
        known.extend(name for name in origins if name not in known)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what a check refuses into a mistake of the config's author."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def take_dict(draft: Draft, key: str) -> dict[str, Any] | None:
    """Take an old key, which must be a dict or None, out of the config."""
    value = draft.settings.pop(key, None)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise UsageError(
            _('{key}: must be a dict, got {got!r}.', key=key, got=value)
        )
    return dict(value)
