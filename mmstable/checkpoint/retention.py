"""Decide which checkpoints of a run stay: the newest, and the best.

A process can be killed between any two steps: a checkpoint without its
manifest, a manifest without its checkpoint, and an old checkpoint beside the
new one can be left. The next start or save removes the leftovers of this run,
known by their manifests. Files of other runs are never touched.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstable.checkpoint.loaders import keep_own_references
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    inspect_checkpoint,
    read_content,
)
from mmstable.checkpoint.manifest import (
    Lineage,
    Manifest,
    lineage_in,
    manifests_in,
    remove_manifest,
)
from mmstable.checkpoint.writer import CheckpointWriter


class Retention:
    """Removes the needless checkpoints of a run.

    Args:
        folder (Path): The folder, on a local disk.
        lineage (Lineage): Of the run.
        remove (Callable): Removes a checkpoint and its manifest.
    """

    def __init__(
        self, folder: Path, lineage: Lineage, remove: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._lineage = lineage
        self._remove = remove

    def is_foreign(self, path: Path) -> bool:
        """Whether a checkpoint says that it is not of this run's past."""
        manifest = Manifest.read(path)
        return (
            manifest is not None
            and manifest.lineage is not None
            and not self._is_own(manifest)
        )

    def complete_manifests(self) -> None:
        """Write those that are missing, and remove those of nothing."""
        for path, manifest in manifests_in(self._folder).items():
            if not path.exists() and self._is_own(manifest):
                remove_manifest(path)
        for path in self._folder.glob('*.pth'):
            if Manifest.read(path) is None:
                # Whatever is wrong with it, it is not ours.
                with suppress(BadCheckpoint, OSError, KeyError, TypeError):
                    self._complete(path)

    def remove_outdated(
        self,
        kind: str,
        template: str,
        before: int,
        kept: Collection[str] = (),
    ) -> None:
        """Remove checkpoints that more recent ones have replaced.

        Args:
            kind (str): Of the checkpoints, as their manifests have it.
            template (str): How they are named, with '{}' for a number.
            before (int): Only those with fewer iterations done.
            kept (Collection[str]): Names of those that stay. Defaults to ().
        """
        begin, __, end = template.partition('{')
        end = end.partition('}')[2]
        pattern = re.compile(rf'{re.escape(begin)}\d+{re.escape(end)}')
        for path, manifest in self._own(kind).items():
            if (
                manifest.iteration < before
                and path.name not in kept
                and pattern.fullmatch(path.name)
            ):
                self._remove(str(path))

    def settle_best(
        self, prefix: str, current: str | None, done: int
    ) -> tuple[str, dict[str, Any]] | None:
        """Leave one of several best checkpoints: scores only get better.

        Args:
            prefix (str): How their names begin.
            current (str, optional): The one that the resumed run knows of.
            done (int): Iterations done by now.

        Returns:
            tuple or None: The newest, if it is another one, and the
            ``runtime_info`` in it.
        """
        own = {
            path: manifest.iteration
            for path, manifest in self._own('best').items()
            if path.name.startswith(prefix) and manifest.iteration <= done
        }
        if not own:
            return None
        known = None if current is None else Path(current)
        # Of two of one iteration, the known one.
        newest = max(own, key=lambda path: (own[path], path == known))
        try:
            content = inspect_checkpoint(newest).get('message_hub', {})
        except BadCheckpoint:
            return None
        for path in own.keys() - {newest}:
            self._remove(str(path))
        info = content.get('runtime_info')
        if newest == known or not isinstance(info, dict):
            return None
        return str(newest), info

    def _complete(self, path: Path) -> None:
        checkpoint = inspect_checkpoint(path)
        manifest = Manifest.of(checkpoint, path.stat().st_size, '')
        if lineage_in(checkpoint) and self._is_own(manifest):
            # It was looked through before it was saved.
            content = read_content(path, values_up_to=0, with_digest=True)
            replace(manifest, sha256=content.sha256).write(path)

    def _own(self, kind: str) -> dict[Path, Manifest]:
        return {
            path: manifest
            for path, manifest in manifests_in(self._folder).items()
            if manifest.kind == kind and self._is_own(manifest)
        }

    def _is_own(self, manifest: Manifest) -> bool:
        return manifest.lineage is not None and self._lineage.includes(
            manifest.lineage, manifest.iteration
        )


def split_outdated(
    ids: Iterable[int], step: int, most: int
) -> tuple[list[int], list[int]]:
    """Which checkpoints to keep with a new one, and which not.

    Args:
        ids (Iterable[int]): Numbers of those that are there, the oldest first.
        step (int): The number of the new one.
        most (int): How many to keep; all if it is not positive, without
            counting them.
    """
    if most <= 0:
        return [], []
    steps = [*(one for one in ids if one != step), step]
    return steps[-most:], steps[:-most]


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
