"""The hook that trades time for the memory of activations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import ConfigError
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import names

_NAME = 'SafeActivationCheckpointHook'


@register_globally(HOOKS)
class SafeActivationCheckpointHook(Hook):
    """Compute activations of some modules again instead of keeping them.

    Gradients are bit by bit those of a run without it: random numbers and
    autocast are those of the first time, and running statistics are updated
    once. mmengine's own ``activation_checkpointing`` gives a backbone no
    gradients, because its input needs none.

    Args:
        modules (Sequence[str], optional): Names of modules, or regular
            expressions for whole names. Defaults to None, which means all
            that are called ``backbone``, or end with ``_backbone``.
    """

    priority = 'NORMAL'

    def __init__(
        self,
        modules: Sequence[str] | str | None = None,
    ) -> None:
        self._patterns = None
        if modules is not None:
            self._patterns = names(_NAME, 'modules', modules)
        self._installed = ExitStack()

    def before_train(self, runner: Runner) -> None:
        """Find the modules, and let them compute again."""
        from mmstable.oom import recompute

        self._installed.close()
        if runner_view.is_compiled(runner.model):
            runner.logger.warning(
                _(
                    'SafeActivationCheckpointHook: the model is compiled, '
                    'which decides itself what to keep; it is left alone.'
                )
            )
            return
        model = runner_view.saved_model(runner)
        try:
            chosen = recompute.choose_modules(model, self._patterns, 'modules')
        except ValueError as error:
            raise ConfigError(f'{_NAME}: {error}') from None
        if not chosen:
            raise ConfigError(
                f"{_NAME}: the model has no module called 'backbone'; name "
                'some in `modules`.'
            )
        parts = [
            x for one in chosen.values() for x in recompute.blocks_of(one)
        ]
        self._installed.enter_context(
            recompute.recomputed(dict.fromkeys(parts))
        )
        runner.logger.info(
            _(
                'SafeActivationCheckpointHook: activations of {modules} are '
                'computed again in the backward pass, in '
                '{count:block|blocks}: less memory, same gradients.',
                modules=list(chosen),
                count=len(parts),
            )
        )

    def after_train(self, runner: Runner, **kwargs: Any) -> None:
        """Leave the model as it was."""
        self._installed.close()

    on_exception = after_train
