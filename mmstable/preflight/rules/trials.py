"""What only shows when a model is built and tried (``--deep``)."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.rule import Hit, rule

_MOST_NAMED = 3


@rule('unseen_parameters', Severity.WARNING)
def unseen_parameters(view: ConfigView) -> Iterator[Hit]:
    """Parameters that the optimizer does not have."""
    if view.trial is not None and view.trial.unseen:
        yield _hit('optim_wrapper', view.trial.unseen, view.trial.parameters)


@rule('no_gradient', Severity.WARNING)
def no_gradient(view: ConfigView) -> Iterator[Hit]:
    """Parameters that one step leaves alone."""
    if view.trial is not None and view.trial.without_gradient:
        names = view.trial.without_gradient
        yield _hit('model', names, view.trial.parameters)


@rule('deep_failed', Severity.WARNING)
def deep_failed(view: ConfigView) -> Iterator[Hit]:
    """What could not be built or tried."""
    for what, error in view.trial.failures if view.trial is not None else ():
        yield Hit(what, {'what': what, 'error': error})


def _hit(path: str, names: list[str], total: int) -> Hit:
    fields = {
        'names': names[:_MOST_NAMED],
        'count': len(names),
        'total': total,
    }
    return Hit(path, fields)
