"""The hook for training engines that own the optimizer, such as DeepSpeed.

Such an engine scales losses, skips steps and saves checkpoints itself, as
folders. So nothing here touches the optimizer: steps that the engine skipped
are logged, losses that are not finite too, and a finished checkpoint gets a
list of its files, by which a resumed run knows that it is complete.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.batch import batch_size, name_sample, take_samples, tensors_in
from mmstable.checkpoint.folders import EMERGENCY, point_to
from mmstable.events.samples import read_losses
from mmstable.hooks.step_hook import QuietHook
from mmstable.io.files import read_bounded, replace_text
from mmstable.io.schema import integer, mapping_of, parse_json, record, text
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally

# Most lines about losses, and samples in one of them.
_MAX_LINES, _MAX_SAMPLES = 20, 8
_COMPLETE = 'mmstable_complete.json'
_MAX_BYTES = 1 << 20


@register_globally(HOOKS)
class EngineHook(QuietHook):
    """Watch a run whose engine owns optimizer and checkpoints.

    It logs steps that the engine has skipped for an overflow, with the loss
    scale, and losses that are not finite, with the samples whose data is not.
    ``mmstable train`` adds it for ``DeepSpeedStrategy`` and
    ``ColossalAIStrategy`` of ``FlexibleRunner``.
    """

    # After the checkpoint of this iteration, if there is one (VERY_LOW).
    priority = 'LOWEST'

    def __init__(self) -> None:
        self._left, self._skipped = _MAX_LINES, 0
        self._saved: Any = None

    def before_train(self, runner: Runner) -> None:
        """Begin to count."""
        self._skipped = getattr(runner.model, 'skipped_steps', 0) or 0
        self._saved = runner.message_hub.get_info('last_ckpt', None)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        """Look at the engine, the losses and the newest checkpoint."""
        done, engine = runner_view.iterations_done(runner), runner.model
        skipped = getattr(engine, 'skipped_steps', 0) or 0
        if skipped > self._skipped:
            self._skipped = skipped
            scale: Any = getattr(engine, 'loss_scale', None)
            runner.logger.warning(
                _(
                    'mmstable: Iter {iteration}: the engine skipped the step '
                    'after an overflow; loss scale {scale}, {count} skipped '
                    'so far.',
                    iteration=done,
                    scale=scale() if callable(scale) else scale,
                    count=skipped,
                )
            )
        losses = read_losses(outputs)
        bad = [n for n, v in losses.items() if not math.isfinite(v or 0)]
        if bad and self._left:
            self._left -= 1
            runner.logger.error(
                _(
                    'mmstable: Iter {iteration}: not finite: {names}. The '
                    'engine owns the optimizer, so the step is not skipped. '
                    '{cause}',
                    iteration=done,
                    names=bad,
                    cause=_find_cause(data_batch),
                )
            )
        saved = runner.message_hub.get_info('last_ckpt', None)
        if saved != self._saved:
            self._saved = saved
            mark_complete(saved, done)


def _find_cause(batch: Any) -> str:
    """Tell bad data from a bad model, as far as the batch shows it."""
    bad, names = [], []
    for index in range(batch_size(batch)):
        sample = take_samples(batch, [index])
        names.append(name_sample(sample, 0) or f'#{index}')
        if not all(bool(one.isfinite().all()) for one in tensors_in(sample)):
            bad.append(names[-1])
    if bad:
        return _('The data holds NaN or Inf: {samples}.', samples=bad)
    return _('The data is finite: {samples}.', samples=names[:_MAX_SAMPLES])


def save_by_strategy(runner: Any) -> str | None:
    """Let the strategy save an emergency checkpoint. A collective call.

    Args:
        runner (FlexibleRunner): The runner.
    """
    meta = runner_view.resume_meta(runner)
    path = Path(runner.work_dir, EMERGENCY.format(meta['iter']))
    meta.update(
        cfg=runner.cfg.pretty_text, experiment_name=runner.experiment_name
    )

    def call_hooks(checkpoint: dict) -> None:
        runner.call_hook('before_save_checkpoint', checkpoint=checkpoint)

    runner.strategy.save_checkpoint(
        str(path),
        extra_ckpt={
            'meta': meta,
            'message_hub': runner.message_hub.state_dict(),
        },
        callback=call_hooks,
    )
    if is_main_process():
        mark_complete(path, meta['iter'])
        point_to(runner, str(path))
    return str(path)


def mark_complete(path: Any, iteration: int) -> None:
    """List the files of a checkpoint folder, after all ranks have saved."""
    folder = Path(str(path))
    if not is_main_process() or not folder.is_dir():
        return
    sizes = {
        str(one.relative_to(folder)): one.stat().st_size
        for one in folder.rglob('*')
        if one.is_file() and one.name != _COMPLETE
    }
    content = json.dumps(dict(iteration=iteration, sizes=sizes))
    replace_text(folder / _COMPLETE, content)


def newest_complete(work_dir: Path) -> Path | None:
    """Find the newest checkpoint folder that has all of its files."""
    found = [
        (iteration, folder)
        for folder in work_dir.glob('*.pth')
        if (iteration := _complete_iteration(folder)) is not None
    ]
    return max(found)[1] if found else None


def _complete_iteration(folder: Path) -> int | None:
    sizes = mapping_of(text(), integer(0))
    check = record(iteration=integer(0), sizes=sizes)
    try:
        content = read_bounded(folder / _COMPLETE, _MAX_BYTES)
        known = check(parse_json(content, _MAX_BYTES))
        is_whole = all(
            (folder / name).stat().st_size == size
            for name, size in known['sizes'].items()
        )
    except (OSError, ValueError):
        return None
    return known['iteration'] if is_whole else None
