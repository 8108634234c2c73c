"""From a config of mmcv 1.x to one of mmengine."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmstable.finding import Finding, Severity
from mmstable.legacy.config.checkpoints import translate_checkpoints
from mmstable.legacy.config.custom_hooks import translate_custom_hooks
from mmstable.legacy.config.data import translate_data
from mmstable.legacy.config.draft import Draft
from mmstable.legacy.config.environment import translate_environment
from mmstable.legacy.config.evaluation import translate_evaluation
from mmstable.legacy.config.keys import (
    OLD_KEYS,
    is_all_old,
    is_loop,
    old_keys_of,
)
from mmstable.legacy.config.log import translate_log
from mmstable.legacy.config.loop import translate_loop
from mmstable.legacy.config.misspelt import find_misspelt
from mmstable.legacy.config.optimizer import translate_optimizer
from mmstable.legacy.config.pipelines import find_old_pipelines
from mmstable.legacy.config.runtime_hooks import add_runtime_hooks
from mmstable.legacy.config.schedule import translate_schedule
from mmstable.legacy.config.start import translate_start
from mmstable.legacy.config.validation import settle_validation

# In this order: what the loop is decides how much else is meant.
_STEPS = (
    translate_loop,
    translate_optimizer,
    translate_schedule,
    translate_checkpoints,
    translate_evaluation,
    translate_log,
    find_old_pipelines,
    translate_data,
    settle_validation,
    translate_custom_hooks,
    translate_environment,
    translate_start,
    find_misspelt,
    add_runtime_hooks,
)


@dataclass(frozen=True)
class Translation:
    """A translated config, and what there is to tell about it.

    Args:
        settings (dict): The new config, in plain types.
        origins (Mapping): From new keys to the old ones they came from.
        remarks (Mapping): From new keys to what they amount to.
        findings (tuple): What became of the rest.
    """

    settings: dict[str, Any]
    origins: Mapping[str, list[str]]
    remarks: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def changed(self) -> bool:
        """Whether there was anything to translate."""
        return bool(self.origins or self.findings)

    def of_severity(self, *severities: Severity) -> list[Finding]:
        """The findings that are this bad."""
        return [one for one in self.findings if one.severity in severities]

    def summary(self) -> list[str]:
        """Which keys became which, in as few lines as possible."""
        lines: dict[str, list[str]] = {}
        for new, old in self.origins.items():
            remark = self.remarks.get(new)
            lines.setdefault(', '.join(old), []).append(
                f'{new} ({remark})' if remark else new
            )
        return [f'{old} -> {", ".join(new)}' for old, new in lines.items()]


def translate(config: Mapping[str, Any]) -> Translation:
    """Translate a config whose bases are merged already.

    Args:
        config (Mapping): The config, left as it is. One without old keys
            comes back equal.
    """
    settings = copy.deepcopy(dict(config))
    old = old_keys_of(settings)
    if not old:
        return Translation(settings, {}, {}, ())
    order = list(settings)
    # Variables of a new config are none of the business of the steps below.
    variables = {
        key: settings.pop(key)
        for key in order
        if key in OLD_KEYS and key not in old
    }
    draft = Draft(settings, all_old=is_all_old(settings))
    draft.by_epoch = _counts_epochs(settings.get('train_cfg'))
    for one in _STEPS:
        one(draft)
    draft.settings.update(variables)
    return Translation(
        _in_order(draft, order),
        draft.origins,
        draft.remarks,
        tuple(draft.findings),
    )


def _counts_epochs(loop: Any) -> bool:
    if not is_loop(loop):
        return True
    if 'by_epoch' in loop:
        return bool(loop['by_epoch'])
    return 'max_iters' not in loop and 'IterBased' not in str(loop.get('type'))


def _in_order(draft: Draft, order: list[str]) -> dict[str, Any]:
    """Every new key in the place of the first old one behind it."""
    ordered: list[str] = []
    for key in order:
        if key in draft.settings and key not in draft.origins:
            ordered.append(key)
        ordered += [
            new
            for new, old in draft.origins.items()
            if key in (new, *old) and new not in ordered
        ]
    rest = [key for key in draft.settings if key not in ordered]
    return {
        key: draft.settings[key]
        for key in [*ordered, *rest]
        if key in draft.settings
    }
