"""What a train loop may do when memory runs out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmstable.settings import (
    flag,
    integer,
    known_settings,
    mapping,
    names,
    overriding,
)

_KNOWN = (
    'enabled',
    'chunk',
    'offload',
    'allow_approximate',
    'max_skipped',
    'calm_period',
)


@dataclass(frozen=True)
class OomSettings:
    """The settings ``oom=dict(...)`` of a train loop.

    Args:
        enabled (bool): Whether to go on after an out-of-memory error.
            Defaults to True.
        chunk (tuple[str]): Names of the modules, or regular expressions for
            whole names, that may see a batch part by part. Each sample must
            be computed by itself there. Defaults to (), which means all
            modules that are called ``backbone``, or end with ``_backbone``.
        offload (bool, optional): Whether activations may be moved to the
            memory of the host. Defaults to None, which means on an
            accelerator.
        allow_approximate (bool): Whether a batch may be trained on in
            several parts, each with a loss of its own, if nothing else
            helps. The gradients then differ from those of the batch.
            Defaults to False.
        max_skipped (int): Most batches to leave out in a run before it is
            stopped. Defaults to 10.
        calm_period (int): Iterations with batches of the same shapes after
            which a milder remedy is tried again. Defaults to 200.
    """

    enabled: bool = True
    chunk: tuple[str, ...] = ()
    offload: bool | None = None
    allow_approximate: bool = False
    max_skipped: int = 10
    calm_period: int = 200

    @classmethod
    def parse(cls, owner: str, given: Any) -> OomSettings:
        """Check settings of a config.

        Args:
            owner (str): The class that has them.
            given (Any): A dict, or None for all defaults.
        """
        where = f'{owner}: `oom`'
        settings = overriding(mapping(owner, 'oom', given))
        known_settings(where, settings, _KNOWN)
        for name in ('enabled', 'allow_approximate'):
            flag(where, name, settings.get(name, False))
        if settings.get('offload') is not None:
            flag(where, 'offload', settings['offload'])
        if 'chunk' in settings:
            settings['chunk'] = names(where, 'chunk', settings['chunk'])
        if 'max_skipped' in settings:
            settings['max_skipped'] = integer(
                where, 'max_skipped', settings['max_skipped'], 0
            )
        if 'calm_period' in settings:
            settings['calm_period'] = integer(
                where, 'calm_period', settings['calm_period']
            )
        return cls(**settings)
