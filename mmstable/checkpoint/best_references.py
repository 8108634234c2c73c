"""Which file holds the best checkpoint of this run?"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstable.checkpoint.housekeeping import Housekeeping
from mmstable.checkpoint.references import keep_own_references


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
    hook: CheckpointHook, runner: Runner, house: Housekeeping | None
) -> None:
    """Know the best one, also if the run was killed when it was saved.

    A collective call.

    Args:
        hook (CheckpointHook): The hook, with its ``key_indicators``.
        runner (Runner): The runner.
        house (Housekeeping, optional): Looks through the files.
    """
    names = {'best_ckpt': hook.key_indicators[0]}
    if len(hook.key_indicators) > 1:
        names = {f'best_ckpt_{key}': key for key in hook.key_indicators}
    info, hub = runner.message_hub.runtime_info, runner.message_hub
    found: list[Any] = [{}]
    if is_main_process() and house is not None:
        for name, key in names.items():
            begin = '' if key == 'auto' else f'{key}_'.replace('/', '_')
            found[0][name] = house.settle_best(
                f'best_{begin}', info.get(name), runner.iter
            )
    broadcast_object_list(found)
    for name, best in found[0].items():
        score = name.replace('ckpt', 'score')
        if best is not None and score in best.info:
            hub.update_info(score, best.info[score])
            hub.update_info(name, best.path)
    keep_own_best(hook, info)
