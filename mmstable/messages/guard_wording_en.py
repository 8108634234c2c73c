"""What is said about a run that is in trouble, in English."""

from __future__ import annotations

from mmstable.events import Action, Fault, Intervention
from mmstable.messages.guard_wording import GuardWording
from mmstable.messages.printable import printable

_CAUSES = {
    Fault.OVERFLOW: (
        'train in bfloat16 (optim_wrapper.dtype="bfloat16"), or keep the '
        'named modules in float32 (optim_wrapper.fp32_modules)'
    ),
    Fault.NAN_LOSS: (
        'look at the data of these iterations: NaN or Inf in inputs or '
        'targets, empty targets, log(0), division by 0'
    ),
    Fault.NAN_GRAD: (
        'look at the named modules for sqrt or norm at 0, division by 0, '
        'masked softmax; keep them in float32 (optim_wrapper.fp32_modules)'
    ),
    Fault.POISONED: (
        'find out what writes to the named entries outside the optimizer: '
        'a custom hook, a custom layer, faulty memory of the device'
    ),
    Fault.SPIKE: (
        'look at the data of these iterations: wrong labels, outliers, a '
        'mixture of data sets'
    ),
}


class EnglishGuard(GuardWording):
    """English."""

    def bad_steps(self, bad: int, seen: int, in_a_row: int) -> str:
        """Why there are too many bad steps."""
        return f'{bad} of the last {seen} steps were bad, {in_a_row} in a row'

    def poisoned(self, names: str) -> str:
        """What is not finite."""
        return f'the state of the run is not finite: {names}'

    def spike(self, subject: str, value: float, level: float) -> str:
        """What has jumped, and how far."""
        return f'{subject} jumped to {value:.4g} from a level of {level:.4g}'

    def elsewhere(self, subject: str) -> str:
        """What has jumped on another rank."""
        return f'{subject} jumped on another rank'

    def snapshots(self, interval: int, mebibytes: float) -> str:
        """That states are kept in memory."""
        return (
            f'a snapshot every {interval} iterations; the two newest take '
            f'{mebibytes:.3g} MiB of host memory'
        )

    def no_snapshots(self, gibibytes: float, limit: float) -> str:
        """That states are too large to be kept in memory."""
        return (
            f'two snapshots would take {gibibytes:.1f} GiB of host memory, '
            f'more than max_snapshot_memory={limit:g}: rollbacks go to the '
            'newest good checkpoint instead'
        )

    def intervention(
        self, done: Intervention, budget: str, recovery: int
    ) -> str:
        """One line about what was done."""
        line = f'Iter {done.iteration}: {done.fault.value}: {done.reason}'
        back = f' and back to 1 in {recovery} iterations' * bool(recovery)
        rate = f'learning rate x {done.lr_factor:g}{back}'
        if done.action is Action.SKIP:
            return f'{line}, step skipped'
        if done.action is Action.LOWER_LR:
            return f'{line}; {rate}'
        if done.action is Action.ROLLBACK:
            where = (
                'in memory'
                if done.source == 'memory'
                else printable(done.source)
            )
            return (
                f'{line}. Rolled back to the state of iteration '
                f'{done.restored} ({where}), going on with the next data; '
                f'{rate}. Rollback {budget}'
            )
        return line

    def advice(self, fault: Fault, lr: float | None) -> list[str]:
        """What to change in the config."""
        rate = 'lower the learning rate'
        if lr is not None:
            rate += f' (optim_wrapper.optimizer.lr was {lr:g}: try {lr / 2:g})'
        return [
            f'{rate} or lengthen the warm-up',
            'clip harder (optim_wrapper.clip_grad.max_norm), or choose '
            'stability/safe.py',
            _CAUSES[fault],
        ]

    def stopped(
        self,
        done: Intervention,
        rollbacks: int,
        advice: list[str],
        resume: str | None,
        file: str,
    ) -> str:
        """One paragraph about a run that is given up."""
        tried = ''
        if rollbacks:
            times = 'once' if rollbacks == 1 else f'{rollbacks} times'
            tried = f' Going back {times} with a lower rate did not help.'
        ways = '; '.join(advice)
        go_on = f'Go on with: {resume}'
        if resume is None:
            go_on = 'There is no good checkpoint from before: start anew.'
        return (
            f'training is stopped at iteration {done.iteration}, because of '
            f'{done.fault.value} since iteration {done.since}: '
            f'{done.reason}.{tried} Nothing was validated or saved after '
            f'that. What to change: {ways}. {go_on} (details: {file})'
        )
