"""What mmengine does not save: random generators and the data position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.dist import all_gather_object, get_rank
from mmengine.runner import BaseLoop, Runner

from mmstable.messages import say
from mmstable.run_state.rng import capture_rng, restore_rng


def collect_run_state(runner: Runner, all_ranks: bool = True) -> dict:
    """The state of this run, for its checkpoint.

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


class RunStateResumer:
    """Give a resumed run its state back.

    ``restored`` says for 'RNG' and 'data position' what became of them.
    """

    def __init__(self) -> None:
        self.restored: dict[str, str] = {}
        self._state: Mapping[str, Any] | None = None
        self._position: tuple[Any, Any] | None = None
        self._rng: Any = None

    def keep(
        self, checkpoint: Mapping[str, Any], state: Mapping[str, Any]
    ) -> None:
        """Remember the state of a loaded checkpoint.

        Args:
            checkpoint (Mapping): The checkpoint.
            state (Mapping): From :func:`collect_run_state`; empty if the
                checkpoint has none.
        """
        meta = checkpoint.get('meta', {})
        self._position = meta.get('epoch'), meta.get('iter')
        self._state = state
        self._rng = None
        self.restored = {}

    def hand_over(self, runner: Runner) -> None:
        """Give the loop its part, as soon as there is a loop.

        A loop leaves it aside when the run does not go on from there.
        """
        loop = _built_train_loop(runner)
        if self._state is None or loop is None:
            return
        state, self._state = self._state, None
        self._hand_over_position(loop, state)
        self._hand_over_rng(loop, state.get('rng', {}))

    def before_train_iter(self, runner: Runner) -> None:
        """Set the generators for a loop that cannot do it in better time."""
        rng, self._rng = self._rng, None
        if rng is not None and self._goes_on(runner):
            restore_rng(rng)

    def _goes_on(self, runner: Runner) -> bool:
        # A new run that only starts from these weights is at iteration 0.
        return self._position == (runner.epoch, runner.iter)

    def _hand_over_position(
        self, loop: BaseLoop, state: Mapping[str, Any]
    ) -> None:
        if not hasattr(loop, 'load_state_dict'):
            found = say('resume.data_by_loop', loop=type(loop).__name__)
        elif 'train_loop' in state:
            loop.load_state_dict(state['train_loop'])
            found = say('resume.restored')
        else:
            found = say('resume.data_by_iteration')
        self.restored['data position'] = found

    def _hand_over_rng(self, loop: BaseLoop, ranks: Mapping[int, Any]) -> None:
        mine = ranks.get(get_rank())
        if mine is None:
            self.restored['RNG'] = (
                say('resume.rng_of_others', ranks=len(ranks))
                if ranks
                else say('resume.starts_anew')
            )
            return
        if hasattr(loop, 'resume_rng'):
            loop.resume_rng(mine)
        else:
            self._rng = mine
        self.restored['RNG'] = say('resume.restored')


def _built_train_loop(runner: Runner) -> BaseLoop | None:
    # `runner.train_loop` would build it, and the training data with it,
    # although a checkpoint may be loaded for a test.
    loop = runner._train_loop
    return loop if isinstance(loop, BaseLoop) else None
