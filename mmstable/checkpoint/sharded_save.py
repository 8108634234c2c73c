"""Save a sharded model: the parts of all ranks, then what names them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process

from mmstable.checkpoint.saver import Poisoned
from mmstable.checkpoint.sharded_run import find_poison_on_all, local_parts
from mmstable.checkpoint.shards import remove_shards


def save_shards(
    runner: Any,
    path: Path,
    save_optimizer: bool,
    save_rest: Callable[[Any, dict], Exception | None],
) -> Exception | None:
    """Save one checkpoint by shards. A collective call.

    Args:
        runner (FlexibleRunner): The runner.
        path (Path): The small file; the parts are in a folder beside it.
        save_optimizer (bool): Whether to save its state.
        save_rest (Callable): Saves the small file, on the main process, given
            the optimizer's groups and the record of the parts.

    Returns:
        Exception or None: What went wrong, on the main process.
    """
    parts, groups = local_parts(runner, save_optimizer)
    poison = find_poison_on_all(parts)
    if poison:
        return Poisoned(poison)
    from mmstable.checkpoint.shard_files import new_folder, write_shards

    folder = new_folder(path)
    record, failure = write_shards(parts, folder)
    if not is_main_process():
        return None
    if failure is None:
        failure = save_rest(groups, record)
    if failure is None:
        remove_shards(path, but=folder.name)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return failure
