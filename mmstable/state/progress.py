"""Save and restore the random generators and the data position of a run.

mmengine saves neither. A rollback leaves both alone; a resume needs them, and
:func:`judge` says whether the resumed run equals an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner
from torch.nn.parallel import DistributedDataParallel

from mmstable import runner_view
from mmstable.events.monitor import SAVED_STATES, read_state
from mmstable.io.schema import (
    any_number,
    count,
    fields,
    integer,
    list_of,
    mapping_of,
    text,
    tuple_of,
)
from mmstable.messages import N_, _, printable
from mmstable.state.data_position import check_position
from mmstable.state.rng import capture_rng, restore_rng
from mmstable.state.rng_check import check_rng


def rounding_warnings(runner: Runner) -> list[str]:
    """List why sums may be rounded in another way."""
    found = []
    model, device = runner.model, get_device()
    if get_world_size() > 2 and isinstance(model, DistributedDataParallel):
        found.append(
            _(
                'to rounding: with {ranks} ranks DDP sums the first '
                'iteration in another order',
                ranks=get_world_size(),
            )
        )
    if device != 'cpu' and not torch.are_deterministic_algorithms_enabled():
        found.append(
            _(
                'to rounding: kernels on {device} may sum in any order '
                'unless torch.use_deterministic_algorithms(True) is set',
                device=device,
            )
        )
    return found


def stock_loop_warnings(
    loop: BaseLoop, epoch: Any, iteration: Any
) -> list[str]:
    """List why a loop of mmengine does not repeat its data exactly.

    Args:
        loop (BaseLoop): The loop.
        epoch (int): Epochs done, as the checkpoint says.
        iteration (int): Iterations done, as the checkpoint says.
    """
    found = [
        _(
            "mmengine's {loop} reads its first batch before random numbers "
            'are restored; the Safe... loops do not',
            loop=type(loop).__name__,
        )
    ]
    if isinstance(loop, EpochBasedTrainLoop) and iteration is not None:
        count = iteration - epoch * len(loop.dataloader)
        if count > 0:
            found.append(
                _(
                    "mmengine's {loop} starts the epoch anew and trains on "
                    '{count:batch|batches} twice; SafeEpochBasedTrainLoop '
                    'does not',
                    count=count,
                    loop=type(loop).__name__,
                )
            )
    return found


def judge(reasons: list[str]) -> str:
    """One line for the table of a resume."""
    if not reasons:
        return _('exact (identical to an uninterrupted run)')
    return _('approximate: {reasons}', reasons='; '.join(reasons))


# For the hook that saves it.
check_progress = SAVED_STATES['SafeCheckpointHook'] = fields(
    dict(
        rng=mapping_of(integer(0), check_rng),
        train_loop=check_position,
        placeholders=mapping_of(text(), tuple_of(count, count)),
        inexact=text(1000),
        hooks=mapping_of(text(200), mapping_of(text(200), any_number)),
        unsaved_hooks=list_of(text(200)),
    )
)
STARTS_ANEW = N_('not in the checkpoint, starts anew')


def capture_progress(runner: Runner, all_ranks: bool = True) -> dict[str, Any]:
    """Where this run is, for its checkpoint.

    Args:
        runner (Runner): The runner.
        all_ranks (bool): Whether to ask all ranks for their generators,
            which makes this a collective call. Defaults to True.
    """
    loop = runner.train_loop
    rng = loop.rng_state() if hasattr(loop, 'rng_state') else capture_rng()
    ranks = all_gather_object(rng) if all_ranks else [rng]
    first = 0 if all_ranks else get_rank()
    state: dict[str, Any] = {'rng': dict(enumerate(ranks, first))}
    if hasattr(loop, 'state_dict'):
        state['train_loop'] = loop.state_dict()
    return state


def _saved_reasons(runner: Runner, state: Mapping[str, Any]) -> list[str]:
    """List why the checkpoint itself is not exact."""
    reasons = [state['inexact']] if 'inexact' in state else []
    present = {type(hook).__name__ for hook in runner.hooks}
    for name in state.get('unsaved_hooks', ()):
        if name in present:
            reasons.append(
                _('{hook} does not save its state', hook=printable(name))
            )
    return reasons


class ProgressResumer:
    """Bring a resumed run to where its checkpoint was saved.

    ``restored`` says for 'RNG' and 'data position' what became of them, and
    for 'result' whether the run ends as it would have without the break.
    """

    def __init__(self) -> None:
        self.restored: dict[str, str] = {}
        self._state: Mapping[str, Any] | None = None
        self._position: tuple[Any, Any] = (None, None)
        self._rng: Any = None

    def load(self, checkpoint: dict[str, Any], owner: str) -> None:
        """Keep the state in a checkpoint for :meth:`restore`.

        Args:
            checkpoint (dict): The checkpoint.
            owner (str): The class of the hook that saved it.

        Raises:
            CheckpointError: If it cannot be that of a run.
        """
        meta = checkpoint.get('meta', {})
        self._position = meta.get('epoch'), meta.get('iter')
        self._state = read_state(checkpoint, owner) or {}
        self._rng = None
        self.restored = {}

    def restore(self, runner: Runner) -> None:
        """Give the loop its state, as soon as there is a loop.

        A loop ignores it when the run does not resume from there.
        """
        loop = runner_view.built_train_loop(runner)
        if self._state is None or loop is None:
            return
        state, self._state = self._state, None
        reasons = [
            *_saved_reasons(runner, state),
            *self._restore_rng(loop, state.get('rng', {})),
            *self._restore_position(runner, loop, state),
            *rounding_warnings(runner),
        ]
        self.restored['result'] = judge(reasons)

    @property
    def has_generators(self) -> bool:
        """Whether :meth:`set_generators` has to be called."""
        return self._rng is not None

    def set_generators(self, runner: Runner) -> None:
        """Set the generators for a loop that cannot do it in better time."""
        rng, self._rng = self._rng, None
        # A new run that only starts from these weights is at iteration 0.
        if rng is not None and self._position == (runner.epoch, runner.iter):
            restore_rng(rng)

    def _restore_position(
        self, runner: Runner, loop: BaseLoop, state: Mapping[str, Any]
    ) -> list[str]:
        """Give it to the loop; what will not be as it was."""
        reasons = []
        if not hasattr(loop, 'load_state_dict'):
            found = _(
                'up to {loop}, by the iteration', loop=type(loop).__name__
            )
            reasons = stock_loop_warnings(loop, *self._position)
            if runner_view.is_resuming(runner):
                for one in reasons:
                    runner.logger.warning(
                        _(
                            'mmstable: this resume is approximate: {reason}.',
                            reason=one,
                        )
                    )
        elif 'train_loop' in state:
            reasons = loop.resume_warnings(state['train_loop'])
            loop.load_state_dict(state['train_loop'])
            found = _('restored')
        else:
            found = _('not in the checkpoint, found by the iteration')
        self.restored['data position'] = found
        return reasons

    def _restore_rng(
        self, loop: BaseLoop, ranks: Mapping[int, Any]
    ) -> list[str]:
        """Give them to the loop; what will not be as it was."""
        mine = ranks.get(get_rank())
        if mine is None:
            self.restored['RNG'] = (
                _(
                    'of {ranks:other rank|other ranks} only in the '
                    'checkpoint, starts anew',
                    ranks=len(ranks),
                )
                if ranks
                else _(STARTS_ANEW)
            )
            return [_('random numbers are new')]
        if hasattr(loop, 'resume_rng'):
            loop.resume_rng(mine)
        else:
            self._rng = mine
        self.restored['RNG'] = _('restored')
        return []
