"""Samplers that do not fit the ranks, or the loop."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.finding import Severity
from mmstable.preflight.config_tree import kind_of
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.rule import Hit, rule

# torch's own, which know nothing of ranks.
_ALONE = (
    'RandomSampler',
    'SequentialSampler',
    'SubsetRandomSampler',
    'WeightedRandomSampler',
)


@rule('sampler_repeats_data', Severity.ERROR)
def sampler_repeats_data(view: ConfigView) -> Iterator[Hit]:
    """Every rank would train on the same samples, or on all of them.

    For validation some published configs want that: it is left alone.
    """
    path = 'train_dataloader.sampler'
    kind = kind_of(view.get(path))
    if view.ranks > 1 and kind in _ALONE:
        shuffle = kind != 'SequentialSampler'
        sampler = {'type': 'DefaultSampler', 'shuffle': shuffle}
        fields = {'kind': kind, 'ranks': view.ranks}
        yield Hit(path, fields, {path: sampler})


@rule('endless_epoch', Severity.ERROR)
def endless_epoch(view: ConfigView) -> Iterator[Hit]:
    """An epoch that never ends: the sampler has no end."""
    path = 'train_dataloader.sampler'
    if not view.by_epoch or view.length is None:
        return
    if kind_of(view.get(path)) == 'InfiniteSampler':
        change = {'type': 'DefaultSampler', 'shuffle': True}
        yield Hit(path, {}, {path: change})
