"""Batches that cannot be, are too large, or are too small."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.errors import ConfigError
from mmstable.finding import Severity
from mmstable.loops.batch_checks import (
    check_batch_size,
    check_counts,
    is_longer,
)
from mmstable.preflight.config_tree import kind_of, walk
from mmstable.preflight.config_view import (
    LOADERS,
    ConfigView,
    whole_number,
)
from mmstable.preflight.rule import Hit, rule

# From here on a larger batch has taken the memory of others.
_MUCH_LARGER = 4
_SAMPLING = ('sample_batch_size', 'sampling_batch_size')
_BATCH_NORMS = ('BN', 'BN1d', 'BN2d', 'BN3d')


@rule('bad_batch_size', Severity.ERROR, refuses=True)
def bad_batch_size(view: ConfigView) -> Iterator[Hit]:
    """Zero by a division of whole numbers, for example."""
    for name in LOADERS:
        try:
            check_batch_size(view.get(name), name)
        except ConfigError as error:
            yield Hit(f'{name}.batch_size', {'error': error})


@rule('accumulation_too_long', Severity.ERROR, refuses=True)
def accumulation_too_long(view: ConfigView) -> Iterator[Hit]:
    """A step of one of several wrappers that never comes."""
    length = None if view.by_epoch else view.length
    several = [one for one in view.wrappers if one.path != 'optim_wrapper']
    for wrapper in several if length else ():
        counts = wrapper.settings.get('accumulative_counts')
        try:
            check_counts(wrapper.path, counts, length or 0)
        except ConfigError as error:
            path = f'{wrapper.path}.accumulative_counts'
            yield Hit(path, {'error': error})


@rule('accumulation_of_one_step', Severity.WARNING)
def accumulation_of_one_step(view: ConfigView) -> Iterator[Hit]:
    """A step that takes more iterations than the run has."""
    length = None if view.by_epoch else view.length
    wrapper = view.part('optim_wrapper')
    counts = wrapper.settings.get('accumulative_counts')
    if length and is_longer(counts, length):
        path = f'{wrapper.path}.accumulative_counts'
        yield Hit(path, {'counts': counts, 'length': length})


@rule('accumulation_not_counted', Severity.HINT)
def accumulation_not_counted(view: ConfigView) -> Iterator[Hit]:
    """Iterations are not steps: the run makes fewer of those."""
    counts, length = view.accumulation, view.length
    if counts == 1 or view.by_epoch or not length or length < counts:
        return
    ends = [
        end
        for one in view.schedulers
        if (end := whole_number(one.settings.get('end')))
    ]
    warmup = min([*ends, length])
    fields = {
        'counts': counts,
        'length': length,
        'steps': length // counts,
        'first': warmup,
        'first_steps': warmup // counts,
    }
    yield Hit('optim_wrapper.accumulative_counts', fields)


@rule('large_val_batch', Severity.WARNING)
def large_val_batch(view: ConfigView) -> Iterator[Hit]:
    """Validation or sampling with much more at once than training has."""
    size = view.batch_size
    if size is None:
        return
    places = [('val_dataloader', view.get('val_dataloader'), 'batch_size')]
    places += [
        (path, node, name)
        for path, node in walk(view.settings)
        for name in _SAMPLING
        if name in node
    ]
    for path, node, name in places:
        other = whole_number((node or {}).get(name))
        if other is not None and other >= _MUCH_LARGER * size:
            where = f'{path}.{name}'.lstrip('.')
            fields = {'path': where, 'size': other, 'train': size}
            yield Hit(where, fields, {where: size})


@rule('batchnorm_of_one', Severity.WARNING)
def batchnorm_of_one(view: ConfigView) -> Iterator[Hit]:
    """Batch statistics of a single sample."""
    if view.batch_size != 1:
        return
    for path, node in walk(view.get('model'), 'model'):
        norm = node.get('norm_cfg')
        # In evaluation mode, and where nothing is trained, they are fixed.
        if node.get('norm_eval') or not isinstance(norm, dict):
            continue
        kind = kind_of(norm)
        alone = kind == 'SyncBN' and view.ranks == 1
        if kind in _BATCH_NORMS or alone:
            yield Hit(f'{path}.norm_cfg', {'kind': kind})
            return
