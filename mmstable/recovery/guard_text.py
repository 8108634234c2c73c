"""What the guard has done, and why a run was stopped, for a person."""

from __future__ import annotations

from collections.abc import Sequence

from mmstable.events import Action, Fault, Intervention
from mmstable.messages import N_, _
from mmstable.recovery.configured_lr import ConfiguredRate

_CAUSES = {
    'overflow': N_(
        'train in bfloat16 (optim_wrapper.dtype="bfloat16"), or keep the '
        'named modules in float32 (optim_wrapper.fp32_modules)'
    ),
    'nan_loss': N_(
        'look at the data of these iterations: NaN or Inf in inputs or '
        'targets, empty targets, log(0), division by 0'
    ),
    'nan_grad': N_(
        'look at the named modules for sqrt or norm at 0, division by 0, '
        'masked softmax; keep them in float32 (optim_wrapper.fp32_modules)'
    ),
    'poisoned': N_(
        'find out what writes to the named entries outside the optimizer: a '
        'custom hook, a custom layer, faulty memory of the device'
    ),
    'spike': N_(
        'look at the data of these iterations: wrong labels, outliers, a '
        'mixture of data sets'
    ),
}


def describe_intervention(
    done: Intervention, spent: int, most: int, recovery: int
) -> str:
    """One line about what was done.

    Args:
        done (Intervention): What.
        spent (int): Rollbacks so far, this one included.
        most (int): Rollbacks that the run may have.
        recovery (int): Iterations in which the learning rate recovers; 0 if
            it does not.
    """
    incident = _(
        'Iter {iteration}: {fault}: {reason}',
        iteration=done.iteration,
        fault=done.fault.value,
        reason=done.reason,
    )
    if done.action is Action.LOWER_LR:
        rate = _rate(done.lr_factor, recovery)
        return _('{incident}; {rate}', incident=incident, rate=rate)
    if done.action is Action.ROLLBACK:
        in_memory = done.source == 'memory'
        return _(
            '{incident}. Rolled back to the state of iteration {restored} '
            '({source}), resumed with the next batch; {rate}. Rollback '
            '{spent} of {most}',
            incident=incident,
            restored=done.restored,
            source=_('in memory') if in_memory else done.source,
            rate=_rate(done.lr_factor, recovery),
            spent=spent,
            most=most,
        )
    if done.action is Action.SKIP:
        return _('{incident}, step skipped', incident=incident)
    return _('{incident}; reported only', incident=incident)


def give_advice(fault: Fault, rate: ConfiguredRate | None) -> list[str]:
    """What to change in the config.

    Args:
        fault (Fault): What the run suffered from.
        rate (ConfiguredRate, optional): The config's learning rate.
    """
    if rate is None:
        lower = _('lower the learning rate or lengthen the warm-up')
    else:
        lower = _(
            'lower the learning rate ({path} is {lr:g} in the config: try '
            '{half}) or lengthen the warm-up',
            path=rate.path,
            lr=rate.lr,
            half=rate.half,
        )
    cause = _(_CAUSES[fault.value])
    return [
        lower,
        _(
            'clip harder (optim_wrapper.clip_grad.max_norm), or choose '
            'stability/safe.py'
        ),
        cause,
    ]


def describe_stop(
    done: Intervention,
    rollbacks: int,
    advice: Sequence[str],
    command: str | None,
    rate: ConfiguredRate | None,
    file: str,
) -> str:
    """One paragraph about a run that was stopped.

    Args:
        done (Intervention): The last one.
        rollbacks (int): How many there were before.
        advice (Sequence[str]): What to change.
        command (str, optional): The command that resumes the run; None if
            there is no good checkpoint.
        rate (ConfiguredRate, optional): The config's learning rate, of which
            the command takes half.
        file (str): The diagnosis file.
    """
    if command is None:
        resume = _('There is no good checkpoint from before: start a new run.')
    elif rate is None:
        resume = _('Resume with: {command}', command=command)
    else:
        resume = _(
            'Resume with half the learning rate by: {command} . Leave out '
            'the options from --override-lr-schedule on to resume as it was.',
            command=command,
        )
    return _(
        'training is stopped at iteration {iteration}, because of {fault} '
        'since iteration {since}: {reason}.{tried} Nothing was validated or '
        'saved after that. What to change: {advice:; }. {resume} (details: '
        '{file})',
        iteration=done.iteration,
        fault=done.fault.value,
        since=done.since,
        reason=done.reason,
        tried=_(
            ' {rollbacks:rollback|rollbacks} did not help.',
            rollbacks=rollbacks,
        )
        if rollbacks
        else '',
        advice=list(advice),
        resume=resume,
        file=file,
    )


def _rate(factor: float, recovery: int) -> str:
    if factor == 1:
        return _('learning rate as it was')
    if recovery == 0:
        return _('learning rate x {factor:g}', factor=factor)
    return _(
        'learning rate x {factor:g}, back to 1 in {iterations} iterations',
        factor=factor,
        iterations=recovery,
    )
