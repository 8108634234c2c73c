"""A resource that runs out, in words."""

from __future__ import annotations

from mmstable.memory.leaks import FILES, HOST, MAIN, WORKERS, Forecast
from mmstable.memory.loading import Loading
from mmstable.memory.process_tree import Reading
from mmstable.memory.sizes import readable, readable_time
from mmstable.messages import N_, _

_SOURCES = {
    'cgroup': N_('of the control group'),
    'machine': N_('of the machine'),
    'setting': N_('set by `host_limit`'),
}
_HOLDERS = {
    'main_process': N_('the training process'),
    'workers': N_('a dataloader worker'),
}
_RESOURCES = {
    'host': N_('host RAM is'),
    'descriptors': N_('file descriptors are'),
    'shared_memory': N_('shared memory is'),
}
_ACTIONS = {
    'warn': N_('Nothing is done: `action` is warn.'),
    'save': N_('A checkpoint is saved after this step.'),
    'restart': N_(
        'After this step a checkpoint is saved and the run ends, to be '
        'started again (exit code 22).'
    ),
}
LOADING = N_('{workers:worker|workers} x {prefetch} prefetch')


def describe_growth(
    iteration: int, forecast: Forecast, reading: Reading, loading: Loading
) -> str:
    """What grows, how fast, how long it takes, and what helps.

    Args:
        iteration (int): Iterations done.
        forecast (Forecast): What runs out.
        reading (Reading): The newest reading.
        loading (Loading): What the data loader of training does.
    """
    facts = dict(
        iteration=iteration,
        growth=_amount(forecast, 100 * forecast.per_iteration),
        time=readable_time(forecast.seconds_left),
        limit=_amount(forecast, forecast.limit),
        advice=_advice(forecast),
    )
    if forecast.resource == HOST:
        source = _(_SOURCES[forecast.source])
        holders = _holders(reading, loading)
        return _(
            'Iter {iteration}: host RAM grows {growth} per 100 iterations, '
            '{time} to the limit of {limit} ({source}); {holders}. {advice}',
            **facts,
            source=source,
            holders=holders,
        )
    if forecast.resource == FILES:
        holder = _(_HOLDERS[forecast.holder])
        return _(
            'Iter {iteration}: open files of {holder} grow by {growth} per '
            '100 iterations, {time} to the limit of {limit} (ulimit -n). '
            '{advice}',
            **facts,
            holder=holder,
        )
    return _(
        'Iter {iteration}: shared memory (/dev/shm) grows {growth} per 100 '
        'iterations, {time} to the limit of {limit}; {loading}. {advice}',
        **facts,
        loading=_loading(loading),
    )


def describe_critical(iteration: int, forecast: Forecast, action: str) -> str:
    """How little is left, and what is done about it.

    Args:
        iteration (int): Iterations done.
        forecast (Forecast): What runs out.
        action (str): What is done: 'warn', 'save' or 'restart'.
    """
    return _(
        'Iter {iteration}: {resource} nearly used up: {left} of {limit} '
        'left. {action}',
        iteration=iteration,
        resource=_(_RESOURCES[forecast.resource]),
        left=_amount(forecast, forecast.left),
        limit=_amount(forecast, forecast.limit),
        action=_(_ACTIONS[action]),
    )


def _amount(forecast: Forecast, count: float) -> str:
    if forecast.resource == FILES:
        return f'{count:.3g}' if count < 100 else f'{count:.0f}'
    return readable(count)


def _holders(reading: Reading, loading: Loading) -> str:
    if not reading.worker_pids:
        return _('the training process holds all of it')
    share = reading.workers / max(1, reading.tree)
    return _(
        'dataloader workers hold {share:.0%}; {loading}',
        share=share,
        loading=_loading(loading),
    )


def _loading(loading: Loading) -> str:
    return _(LOADING, workers=loading.workers, prefetch=loading.prefetch)


def _advice(forecast: Forecast) -> str:
    if forecast.resource == HOST and forecast.holder == WORKERS:
        return _(
            'Workers leak: look for lists, caches and open files that the '
            'dataset or a transform keeps; fewer num_workers, a lower '
            'prefetch_factor and persistent_workers=False put it off.'
        )
    if forecast.resource == HOST and forecast.holder == MAIN:
        return _(
            'The training process leaks: look for losses kept with their '
            'graph (use .item()), and for lists of a hook, metric or logger.'
        )
    if forecast.resource == FILES:
        return _(
            'Files are opened and not closed, as HDF5, LMDB or zip handles: '
            'open them once in each worker, or with `with`.'
        )
    return _(
        'Batches on their way from workers are kept: lower num_workers x '
        'prefetch_factor, do not keep batches, or give a container more '
        '(--shm-size).'
    )
