"""The hook that refuses to resume from a checkpoint that does not fit."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.fit import compare_optimizers, compare_weights
from mmstable.checkpoint.shards import SHARDS
from mmstable.distributed.join_ranks import decide_on_rank_zero
from mmstable.errors import CheckpointError
from mmstable.legacy.checkpoints import prepare_to_resume
from mmstable.messages import _, choose_language
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import number

_NAME = 'ResumeCheckHook'


@register_globally(HOOKS)
class ResumeCheckHook(Hook):
    """Compare a checkpoint with the model before a run is resumed from it.

    ``mmstable train`` adds it to every run that it resumes. Names and shapes
    of the weights, and the groups of the optimizers, have to be the same;
    otherwise the run ends with exit code 3 before anything is trained or
    saved. What the model itself does not save may be missing.

    Args:
        allow_partial (float): The share of the weights, from 0 to 1, that may
            differ. They start with what the model was built with, and
            optimizer and average start anew. A checkpoint that has nothing
            in common with the model is always refused. Defaults to 0.
    """

    # Ahead of EMAHook (NORMAL), which fails on weights that do not fit.
    priority = 'ABOVE_NORMAL'

    def __init__(self, allow_partial: float = 0.0) -> None:
        self._allowed = number(
            _NAME, 'allow_partial', allow_partial, at_least=0, at_most=1
        )
        self._is_training = False

    def before_run(self, runner: Runner) -> None:
        """A run begins."""
        choose_language(runner.hooks)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare, and refuse what does not fit."""
        # A rollback loads what this run has saved.
        if self._is_training or not run_view.is_resuming(runner):
            return
        for note in prepare_to_resume(checkpoint):
            runner.logger.info(_('mmstable: checkpoint: {note}.', note=note))
        if SHARDS in checkpoint.get('mmstable', {}):
            # torch compares names and shapes of shards itself.
            return
        text = decide_on_rank_zero(lambda: self._judge(runner, checkpoint))
        if text is not None:
            runner.logger.warning(
                _(
                    'mmstable: resumed in part: {differences}. What differs '
                    'starts with the values that the model was built with; '
                    'the optimizer starts anew.',
                    differences=text,
                )
            )
            for section in ('optimizer', 'ema_state_dict'):
                checkpoint.pop(section, None)

    def before_train(self, runner: Runner) -> None:
        """What is loaded from now on is loaded by a rollback."""
        self._is_training = True

    def after_train(self, runner: Runner) -> None:
        """The next run may resume again."""
        self._is_training = False

    def _judge(self, runner: Runner, checkpoint: dict[str, Any]) -> str | None:
        fit = compare_weights(
            run_view.saved_model(runner), checkpoint['state_dict']
        )
        if fit.differences:
            if fit.share > self._allowed or not fit.matching:
                raise CheckpointError(_refusal(fit.share, str(fit)))
            return str(fit)
        if 'optimizer' not in checkpoint:
            return None
        text = compare_optimizers(runner, checkpoint['optimizer'])
        if text is not None and not self._allowed:
            raise CheckpointError(_refusal(0.01, text))
        return text


def _refusal(share: float, differences: str) -> str:
    if share == 1:
        return _(
            'the checkpoint has nothing in common with the model; '
            '{differences}. Nothing was trained or saved. It is of another '
            'model, and cannot be resumed.',
            differences=differences,
        )
    # Rounded up, so that the advice works.
    needed = f'{int(share * 100 + 0.999999) / 100:g}'
    return _(
        'the checkpoint does not fit this run; {differences}. Nothing was '
        'trained or saved. Check `model` and `optim_wrapper` of the config. '
        'To resume with what fits, add --allow-partial {share}; the '
        'optimizer starts anew then.',
        differences=differences,
        share=needed,
    )
