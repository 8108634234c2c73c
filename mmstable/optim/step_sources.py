"""Who reports the steps of a run?"""

from __future__ import annotations

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.events.run_monitor import RunMonitor, StepSource
from mmstable.optim.stock_observer import StockObserver

_STAGES = ('after_step', 'after_bad_step', 'after_event')


def monitor_of(runner: Runner) -> RunMonitor:
    """The one monitor of a runner; the first who asks registers it."""
    monitor = RunMonitor.of(runner)
    if monitor is None:
        monitor = RunMonitor(find_sources)
        run_view.add_hook(runner, monitor)
    return monitor


def find_sources(runner: Runner) -> dict[str, StepSource]:
    """Safe wrappers, and observers of others if any hook wants these.

    Returns:
        dict: The sources of steps, by the name of their wrapper.
    """
    observes = any(map(_observes_stock, runner.hooks))
    sources: dict[str, StepSource] = {}
    for name, wrapper in run_view.wrappers(runner).items():
        if hasattr(wrapper, 'record_losses'):
            # For the line that it logs when it meets the model.
            wrapper.steps.wrapper = name
            wrapper.bind_model(runner.model)
            sources[name] = wrapper
        elif observes:
            sources[name] = StockObserver(wrapper, runner.model)
    return sources


def _observes_stock(hook: object) -> bool:
    """Whether a hook listens to steps, those of mmengine's wrappers too."""
    listens = any(hasattr(hook, stage) for stage in _STAGES)
    return listens and getattr(hook, 'observes_stock', True)
