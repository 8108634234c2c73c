"""Where a run is: its random generators and its position in the data.

mmengine saves neither. A rollback leaves both alone; a resume needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.dist import all_gather_object, get_rank
from mmengine.runner import BaseLoop, Runner

from mmstable import run_view
from mmstable.checked_json import (
    count,
    fields,
    integer,
    mapping_of,
    text,
    tuple_of,
)
from mmstable.events.stateful_hook import SAVED_STATES, read_state
from mmstable.messages import N_, _
from mmstable.run_state.data_position import check_position
from mmstable.run_state.exactness import (
    judge,
    rounding_doubts,
    stock_loop_doubts,
)
from mmstable.run_state.rng import capture_rng, restore_rng
from mmstable.run_state.rng_check import check_rng

# For the hook that saves it.
check_progress = SAVED_STATES['SafeCheckpointHook'] = fields(
    dict(
        rng=mapping_of(integer(0), check_rng),
        train_loop=check_position,
        placeholders=mapping_of(text(), tuple_of(count, count)),
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
        loop = run_view.built_train_loop(runner)
        if self._state is None or loop is None:
            return
        state, self._state = self._state, None
        doubts = [
            *self._restore_rng(loop, state.get('rng', {})),
            *self._restore_position(runner, loop, state),
            *rounding_doubts(runner),
        ]
        self.restored['result'] = judge(doubts)

    def before_train_iter(self, runner: Runner) -> None:
        """Set the generators for a loop that cannot do it in better time."""
        rng, self._rng = self._rng, None
        # A new run that only starts from these weights is at iteration 0.
        if rng is not None and self._position == (runner.epoch, runner.iter):
            restore_rng(rng)

    def _restore_position(
        self, runner: Runner, loop: BaseLoop, state: Mapping[str, Any]
    ) -> list[str]:
        """Give it to the loop; what will not be as it was."""
        doubts = []
        if not hasattr(loop, 'load_state_dict'):
            found = _(
                'up to {loop}, by the iteration', loop=type(loop).__name__
            )
            doubts = stock_loop_doubts(loop, *self._position)
            if run_view.is_resuming(runner):
                for one in doubts:
                    runner.logger.warning(
                        _(
                            'mmstable: this resume is approximate: {reason}.',
                            reason=one,
                        )
                    )
        elif 'train_loop' in state:
            doubts = loop.resume_doubts(state['train_loop'])
            loop.load_state_dict(state['train_loop'])
            found = _('restored')
        else:
            found = _('not in the checkpoint, found by the iteration')
        self.restored['data position'] = found
        return doubts

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
