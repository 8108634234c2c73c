"""What a checkpoint is called, where it goes, and what is written about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Callable

from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner
from torch import Tensor

from mmstable import runner_view
from mmstable.checkpoint.audit import list_culprits
from mmstable.checkpoint.remote import AnyPath, path_of
from mmstable.events import Culprit
from mmstable.io.files import replace_text
from mmstable.messages import _
from mmstable.optim.grad_health import gradient_norms


class Poisoned(Exception):
    """The state to be saved is not finite.

    Args:
        culprits (list[Culprit]): Where.
    """

    def __init__(self, culprits: list[Culprit]) -> None:
        # As the argument of the base, so that it survives being pickled.
        super().__init__(culprits)
        self.culprits = culprits

    def __str__(self) -> str:
        names = list_culprits(self.culprits)
        return _('not finite: {names}', names=names)


EMERGENCY = 'emergency_iter_{}.pth'


def checkpoint_folder(out_dir: str | None, work_dir: str) -> str:
    """Where a ``CheckpointHook`` is going to save, by mmengine's rule."""
    if out_dir is None or out_dir == work_dir:
        return work_dir
    return os.path.join(out_dir, os.path.basename(work_dir.rstrip(os.sep)))


def checkpoint_folders(runner: Runner) -> list[AnyPath]:
    """Where a run that is training keeps checkpoints: its work dir first."""
    folders: list[AnyPath] = [Path(runner.work_dir)]
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook) and hook.out_dir is not None:
            folders.append(path_of(str(hook.out_dir), hook.backend_args))
    return list(dict.fromkeys(folders))


def finish_saves(runner: Runner) -> None:
    """Wait for the checkpoints that this rank is writing in the background."""
    for hook in runner.hooks:
        if hasattr(hook, 'finish_save'):
            hook.finish_save()


def kind_of(name: str, is_limited: bool) -> str:
    """What a checkpoint is, by its name: what may become of it?

    Args:
        name (str): The name.
        is_limited (bool): Whether the number of checkpoints is.
    """
    if name.startswith(EMERGENCY.partition('{')[0]):
        return 'emergency'
    if name.startswith('best_'):
        return 'best'
    return 'rolling' if is_limited else 'kept'


def point_to(runner: Runner, path: str | None) -> bool:
    """Write the file that mmengine resumes by; False if that fails."""
    try:
        pointer = Path(runner.work_dir, 'last_checkpoint')
        replace_text(pointer, str(path), sync=False)
    except OSError as error:
        runner.logger.warning(
            _(
                'mmstable: last_checkpoint does not name {path}: {error}. '
                'Nothing is removed.',
                path=path,
                error=error,
            )
        )
        return False
    return True


class TrainedWeights:
    """Gives a model its own weights back while it is saved.

    ``EMAHook`` swaps them with their average for a validation. A checkpoint
    that is saved meanwhile would have the two in each other's place.
    """

    def __init__(self) -> None:
        self._norms: Tensor | None = None

    def before_val(self, runner: Runner) -> None:
        """Remember what they look like."""
        if runner_view.average_hooks(runner):
            self._norms = _look(runner)

    def after_val(self) -> None:
        """They are there again."""
        self._norms = None

    @contextmanager
    def in_place(self, runner: Runner) -> Iterator[None]:
        """Swap them back, if they are swapped, for as long as this lasts."""
        swapped = self._norms is not None and not _look(runner).equal(
            self._norms
        )
        hooks = runner_view.average_hooks(runner) if swapped else []
        for hook in hooks:
            runner_view.swap_average(hook)
        try:
            yield
        finally:
            for hook in reversed(hooks):
                runner_view.swap_average(hook)


def _look(runner: Runner) -> Tensor:
    # Nothing but a swap changes weights during a validation.
    weights = [param.detach() for param in runner.model.parameters()]
    return gradient_norms(weights).nan_to_num()


# What the hook itself gives when it saves, and what it collects the rest in.
_NOT_TO_BE_SET = {'self', 'filename', 'meta', 'kwargs'}


def hook_arguments(save_checkpoint: Callable[..., Any]) -> set[str]:
    """The arguments of mmengine's ``CheckpointHook``, and of saving.

    The hook keeps what it does not know for ``runner.save_checkpoint``, which
    refuses it hours later.

    Args:
        save_checkpoint (Callable): The method of the runner.
    """
    saving = signature(save_checkpoint).parameters
    return {*signature(CheckpointHook).parameters, *saving} - _NOT_TO_BE_SET
