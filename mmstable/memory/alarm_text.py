"""A resource that runs out, in words."""

from __future__ import annotations

from mmstable.memory.leaks import FILES, HOST, MAIN, WORKERS, Forecast
from mmstable.memory.loading import Loading
from mmstable.memory.process_tree import Reading
from mmstable.memory.sizes import readable, readable_time
from mmstable.messages import say


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
        source = say(f'memory_source.{forecast.source}')
        holders = _holders(reading, loading)
        return say('memory.host', **facts, source=source, holders=holders)
    if forecast.resource == FILES:
        holder = say(f'memory_holder.{forecast.holder}')
        return say('memory.descriptors', **facts, holder=holder)
    return say('memory.shared', **facts, loading=_loading(loading))


def describe_critical(iteration: int, forecast: Forecast, action: str) -> str:
    """How little is left, and what is done about it.

    Args:
        iteration (int): Iterations done.
        forecast (Forecast): What runs out.
        action (str): What is done: 'warn', 'save' or 'restart'.
    """
    return say(
        'memory.critical',
        iteration=iteration,
        resource=say(f'memory_resource.{forecast.resource}'),
        left=_amount(forecast, forecast.left),
        limit=_amount(forecast, forecast.limit),
        action=say(f'memory_action.{action}'),
    )


def _amount(forecast: Forecast, count: float) -> str:
    if forecast.resource == FILES:
        return f'{count:.3g}' if count < 100 else f'{count:.0f}'
    return readable(count)


def _holders(reading: Reading, loading: Loading) -> str:
    if not reading.worker_pids:
        return say('memory.no_workers')
    share = reading.workers / max(1, reading.tree)
    return say('memory.share', share=share, loading=_loading(loading))


def _loading(loading: Loading) -> str:
    return say(
        'memory.loading', workers=loading.workers, prefetch=loading.prefetch
    )


def _advice(forecast: Forecast) -> str:
    if forecast.resource == HOST and forecast.holder == WORKERS:
        return say('memory.advice_workers')
    if forecast.resource == HOST and forecast.holder == MAIN:
        return say('memory.advice_main')
    if forecast.resource == FILES:
        return say('memory.advice_descriptors')
    return say('memory.advice_shared')
