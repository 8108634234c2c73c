"""What the guard has done, and why a run was stopped, for a person."""

from __future__ import annotations

from collections.abc import Sequence

from mmstable.events import Action, Fault, Intervention
from mmstable.messages import say
from mmstable.recovery.configured_lr import ConfiguredRate


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
    incident = say(
        'guard.incident',
        iteration=done.iteration,
        fault=done.fault.value,
        reason=done.reason,
    )
    if done.action is Action.LOWER_LR:
        rate = _rate(done.lr_factor, recovery)
        return say('guard.lower_lr', incident=incident, rate=rate)
    if done.action is Action.ROLLBACK:
        in_memory = done.source == 'memory'
        return say(
            'guard.rollback',
            incident=incident,
            restored=done.restored,
            source=say('guard.in_memory') if in_memory else done.source,
            rate=_rate(done.lr_factor, recovery),
            spent=spent,
            most=most,
        )
    if done.action is Action.SKIP:
        return say('guard.skip', incident=incident)
    return say('guard.warn', incident=incident)


def give_advice(fault: Fault, rate: ConfiguredRate | None) -> list[str]:
    """What to change in the config.

    Args:
        fault (Fault): What the run suffered from.
        rate (ConfiguredRate, optional): The config's learning rate.
    """
    if rate is None:
        lower = say('guard.advice.lr')
    else:
        lower = say(
            'guard.advice.lr_is', path=rate.path, lr=rate.lr, half=rate.half
        )
    cause = say(f'guard.cause.{fault.value}')
    return [lower, say('guard.advice.clip'), cause]


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
        resume = say('guard.no_checkpoint')
    elif rate is None:
        resume = say('resume.command', command=command)
    else:
        resume = say('guard.resume_lower', command=command)
    return say(
        'guard.stop',
        iteration=done.iteration,
        fault=done.fault.value,
        since=done.since,
        reason=done.reason,
        tried=say('guard.tried', rollbacks=rollbacks) if rollbacks else '',
        advice=list(advice),
        resume=resume,
        file=file,
    )


def _rate(factor: float, recovery: int) -> str:
    if factor == 1:
        return say('guard.full_rate')
    if recovery == 0:
        return say('guard.rate', factor=factor)
    return say('guard.recovering_rate', factor=factor, iterations=recovery)
