"""What hooks that obey optimizer steps have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.events import StepReport
from mmstable.messages.language import choose_language
from mmstable.optim.new_steps import (
    NewSteps,
    record_losses,
    reporting_wrappers,
)


class StepHook(Hook):
    """A hook that hears of every optimizer step once, and can resume.

    What :meth:`state_dict` gives is saved in every checkpoint, below
    ``checkpoint['mmstable']``, where mmengine does not look.
    """

    # After RuntimeInfoHook (VERY_HIGH) has read the loss, so that reading
    # the verdict of the step waits for nothing; before all that log or obey.
    priority = 'HIGH'

    def __init__(self) -> None:
        self._steps = NewSteps({})

    def before_run(self, runner: Runner) -> None:
        """Choose the language of the run."""
        choose_language(runner.hooks)

    def before_train(self, runner: Runner) -> None:
        """Find out whose steps to follow."""
        for wrapper in run_view.wrappers(runner).values():
            if hasattr(wrapper, 'bind_model'):
                wrapper.bind_model(runner.model)
        self._steps = NewSteps(self.step_sources(runner))

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Pass on what is new."""
        # The loops of mmstable have done so, mmengine's own do not.
        record_losses(runner, outputs)
        for name, report in self._steps:
            # Wrappers in a dict do not know of iterations before a resume.
            counted = replace(report, iteration=runner.iter + 1)
            self.after_step(runner, name, counted)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Save the state of this hook."""
        state = self.state_dict()
        if state:
            ours = checkpoint.setdefault('mmstable', {})
            ours[type(self).__name__] = state

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the state of this hook, if the run goes on from there."""
        # As mmengine's EMAHook does: weights alone start a new run.
        if not run_view.is_resuming(runner):
            return
        state = checkpoint.get('mmstable', {}).get(type(self).__name__)
        if state is not None:
            self.load_state_dict(state)

    def step_sources(self, runner: Runner) -> dict[str, Any]:
        """The wrappers that report their steps, by name."""
        return reporting_wrappers(runner)

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Hear of a step.

        Args:
            runner (Runner): The runner.
            name (str): The optimizer wrapper's name; 'optim_wrapper' if
                there is only one.
            report (StepReport): What became of the step.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know, in plain Python types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
