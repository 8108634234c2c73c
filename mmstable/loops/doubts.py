"""Why the data of a resumed run may not be that of an unbroken one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.dataset import DefaultSampler, InfiniteSampler

from mmstable.loops.own_generators import samplers_of
from mmstable.loops.skip_batches import can_skip
from mmstable.messages import _
from mmstable.run_state.data_position import DataSignature, is_endless
from mmstable.run_state.workers import has_workers, workers_persist

_KNOWN = (DefaultSampler, InfiniteSampler)
_PLAIN = (bool, int, float, str)


def data_doubts(
    dataloader: Any, replay: bool, state: Mapping[str, Any]
) -> list[str]:
    """What is only nearly as it was, in words; empty if nothing is.

    Args:
        dataloader (DataLoader): The training data.
        replay (bool): Whether past batches of a pass are read again.
        state (Mapping): What ``state_dict`` of the loop gave.
    """
    changes = DataSignature.from_state(state).changes(
        DataSignature.of(dataloader)
    )
    if changes:
        return [
            _('the data settings have changed: {changes}', changes=changes)
        ]
    return [
        *_doubts_of_workers(dataloader, replay, state),
        *_doubts_of_samplers(dataloader, state),
    ]


def _doubts_of_workers(
    dataloader: Any, replay: bool, state: Mapping[str, Any]
) -> Iterator[str]:
    persist = workers_persist(dataloader) and not replay
    if not can_skip(dataloader):
        if state['epoch'] > 0:
            name = type(dataloader.dataset).__name__
            yield _(
                '{dataset} is read again, and its passes may not be alike',
                dataset=name,
            )
    elif has_workers(dataloader) and not replay:
        is_inside = state['index'] > 0
        if is_inside or (persist and not is_endless(dataloader)):
            yield _(
                'random numbers drawn inside workers are new; '
                'train_cfg=dict(replay=True) repeats them'
            )


def _doubts_of_samplers(
    dataloader: Any, state: Mapping[str, Any]
) -> Iterator[str]:
    before = state.get('samplers')
    now = sampler_numbers(dataloader)
    for sampler in samplers_of(dataloader):
        name = type(sampler).__name__
        if isinstance(sampler, _KNOWN):
            continue
        for attribute, value in vars(sampler).items():
            if isinstance(value, Iterator):
                yield _(
                    '{sampler}.{attribute} is an iterator, which cannot be '
                    'saved',
                    sampler=name,
                    attribute=attribute,
                )
    for key, value in (before or {}).items():
        if key in now and now[key] != value:
            yield _(
                '{attribute} was {before} when this pass began, and is {now} '
                'now',
                attribute=key,
                before=value,
                now=now[key],
            )


def sampler_numbers(dataloader: Any) -> dict[str, Any]:
    """Numbers and texts that samplers keep, without what is set again."""
    return {
        f'{type(sampler).__name__}.{name}': value
        for sampler in samplers_of(dataloader)
        for name, value in getattr(sampler, '__dict__', {}).items()
        if type(value) in _PLAIN and name not in ('epoch', 'seed', 'rank')
    }
