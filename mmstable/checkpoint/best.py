"""Save the best checkpoint of each metric, and know it after a resume."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial
from typing import Any

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstable.checkpoint.loaders import keep_own_references
from mmstable.checkpoint.retention import Retention
from mmstable.checkpoint.writer import CheckpointWriter


def save_best(
    hook: CheckpointHook,
    runner: Runner,
    metrics: dict[str, Any],
    writer: CheckpointWriter,
) -> bool:
    """Save a checkpoint for each metric that is better than ever before.

    mmengine's method removes the old best file, then writes the new one. This
    one writes first, and if that fails, the old one remains the best.

    Args:
        hook (CheckpointHook): The hook, with its ``key_indicators``.
        runner (Runner): The runner.
        metrics (dict): Of the validation; None for those that are missing.
        writer (CheckpointWriter): Saves and removes.

    Returns:
        bool: Whether a checkpoint was to be saved.
    """
    kind = 'epoch' if hook.by_epoch else 'iter'
    step = getattr(runner, kind)
    if 'auto' in hook.key_indicators:
        hook._init_rule(hook.rules, [next(iter(metrics))])
    is_single = len(hook.key_indicators) == 1
    is_updated = False
    for key, rule in zip(hook.key_indicators, hook.rules):
        # The best one of another metric may be on its way.
        writer.settle(runner)
        suffix = '' if is_single else f'_{key}'
        info = runner.message_hub.runtime_info
        best = info.get(f'best_score{suffix}', hook.init_value_map[rule])
        score = metrics[key]
        if score is None or not hook.is_better_than[key](score, best):
            continue
        name = f'best_{key}_{hook.filename_tmpl.format(step)}'
        name = name.replace('/', '_')
        path = writer.storage.path(name)
        # Part of the checkpoint.
        before = _set_best(hook, runner, suffix, (score, path))
        text = (
            f'The best checkpoint with {score:0.4f} {key} at {step} {kind} '
            f'is saved to {name}.'
        )
        old = before[1] if before[1] != path else None
        writer.save(
            runner,
            name,
            dict(
                meta=dict(epoch=runner.epoch, iter=runner.iter),
                save_optimizer=False,
                save_param_scheduler=False,
            ),
            then=partial(_replace_best, runner, writer, text, old),
            undo=partial(_set_best, hook, runner, suffix, before),
        )
        is_updated = True
    return is_updated


def _replace_best(
    runner: Runner, writer: CheckpointWriter, text: str, old: str | None
) -> None:
    runner.logger.info(text)
    if old:
        writer.storage.remove(old)
        runner.logger.info(f'The previous best checkpoint {old} is removed')


def _set_best(
    hook: CheckpointHook, runner: Runner, suffix: str, best: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Note score and path of the best checkpoint; return the old ones."""
    hub = runner.message_hub
    old_score = hub.runtime_info.get(f'best_score{suffix}')
    if suffix:
        paths, key = hook.best_ckpt_path_dict, suffix[1:]
    else:
        paths, key = vars(hook), 'best_ckpt_path'
    old_path, paths[key] = paths.get(key), best[1]
    for name, value in zip(('best_score', 'best_ckpt'), best):
        if value is not None:
            hub.update_info(name + suffix, value)
        elif name + suffix in hub.runtime_info:
            hub.pop_info(name + suffix)
    return old_score, old_path


def keep_own_best(hook: CheckpointHook, info: MutableMapping) -> None:
    """Never remove the best checkpoint of another run.

    Args:
        hook (CheckpointHook): The hook that is going to save and remove.
        info (MutableMapping): The ``runtime_info`` of its run.
    """
    keep_own_references(info, hook.out_dir)
    if not hook.save_best:
        return
    if len(hook.key_indicators) == 1:
        hook.best_ckpt_path = info.get('best_ckpt')
        return
    for key in hook.best_ckpt_path_dict:
        hook.best_ckpt_path_dict[key] = info.get(f'best_ckpt_{key}')


def settle_best(
    hook: CheckpointHook, runner: Runner, retention: Retention | None
) -> None:
    """Know the best one, also if the run was killed when it was saved.

    A collective call.

    Args:
        hook (CheckpointHook): The hook, with its ``key_indicators``.
        runner (Runner): The runner.
        retention (Retention, optional): Looks through the files.
    """
    names = {'best_ckpt': hook.key_indicators[0]}
    if len(hook.key_indicators) > 1:
        names = {f'best_ckpt_{key}': key for key in hook.key_indicators}
    info, hub = runner.message_hub.runtime_info, runner.message_hub
    found: list[Any] = [{}]
    if is_main_process() and retention is not None:
        for name, key in names.items():
            begin = '' if key == 'auto' else f'{key}_'.replace('/', '_')
            found[0][name] = retention.settle_best(
                f'best_{begin}', info.get(name), runner.iter
            )
    broadcast_object_list(found)
    for name, best in found[0].items():
        score = name.replace('ckpt', 'score')
        if best is not None and score in best[1]:
            hub.update_info(score, best[1][score])
            hub.update_info(name, best[0])
    keep_own_best(hook, info)
