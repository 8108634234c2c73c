"""Let mmengine choose the best checkpoint, but save before it deletes.

Its ``CheckpointHook`` removes the old best file and then writes the new one.
Stand-ins for the runner and the file backend turn that around.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

_BEST = ('best_score', 'best_ckpt')


class NotSaved(Exception):
    """Ends mmengine's choice: what it chose could not be saved."""


class RunnerStandIn:
    """A runner whose checkpoints are saved in another way.

    Args:
        runner (Runner): Does everything else.
        save (Callable): Called with the name of the checkpoint and the
            arguments of ``save_checkpoint``; says whether it was saved.
    """

    def __init__(self, runner: Runner, save: Callable[..., bool]) -> None:
        self.runner = runner
        self._save = save
        self.saved: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def save_checkpoint(
        self, out_dir: str, filename: str, **kwargs: Any
    ) -> None:
        """Save, or end it all."""
        if not self._save(self.runner, filename, **kwargs):
            raise NotSaved
        self.saved.append(filename)


class _LateRemoval:
    """A file backend that only takes down what is to be removed."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.removed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        """Take it down."""
        self.removed.append(path)


@contextmanager
def save_first(
    hook: CheckpointHook,
    runner: Runner,
    save: Callable[..., bool],
    remove: Callable[[str], None],
) -> Iterator[Any]:
    """Stand-ins while mmengine saves the best checkpoint.

    Args:
        hook (CheckpointHook): The hook.
        runner (Runner): The runner.
        save (Callable): See :class:`RunnerStandIn`.
        remove (Callable): Removes a checkpoint.

    Yields:
        RunnerStandIn: To be given to the hook instead of the runner.
    """
    stand_in = RunnerStandIn(runner, save)
    backend = hook.file_backend
    late = hook.file_backend = _LateRemoval(backend)
    undo = _remember(hook, runner)
    try:
        yield stand_in
    except NotSaved:
        undo()
        return
    finally:
        hook.file_backend = backend
    kept = {backend.join_path(hook.out_dir, name) for name in stand_in.saved}
    for path in late.removed:
        if path not in kept:
            remove(path)


def _remember(hook: CheckpointHook, runner: Runner) -> Callable[[], None]:
    hub = runner.message_hub
    info = {k: v for k, v in hub.runtime_info.items() if k.startswith(_BEST)}
    path = getattr(hook, 'best_ckpt_path', None)
    paths = dict(getattr(hook, 'best_ckpt_path_dict', {}))

    def undo() -> None:
        for key in [k for k in hub.runtime_info if k.startswith(_BEST)]:
            hub.pop_info(key)
        hub.update_info_dict(info)
        if hasattr(hook, 'best_ckpt_path'):
            hook.best_ckpt_path = path
        if hasattr(hook, 'best_ckpt_path_dict'):
            hook.best_ckpt_path_dict = paths

    return undo
