"""What the guard reports, and the diagnosis of a run that it has stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mmengine.dist import is_main_process
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.signals import resume_command_for
from mmstable.events import Action, Fault, Intervention
from mmstable.events.codec import plain
from mmstable.events.monitor import StepTally
from mmstable.events.records import (
    FaultExplained,
    HeldStep,
    HeldVerdict,
    Verdict,
)
from mmstable.events.samples import read_lr, read_scale
from mmstable.events.step_lines import ADVICE, LOWER_THE_RATE
from mmstable.guard.rollback import last_good_checkpoint
from mmstable.io.files import replace_text
from mmstable.messages import N_, _
from mmstable.settings import is_number

# Verdicts of FaultForensicsHook that are not about the learning rate.
_OTHER_CAUSES = (
    Verdict.BAD_INPUT,
    Verdict.DOMAIN_ERROR,
    Verdict.NOT_REPRODUCED,
)


def describe_intervention(
    done: Intervention, spent: int, most: int, recovery: int
) -> str:
    """One line about an intervention.

    Args:
        done (Intervention): The intervention.
        spent (int): Rollbacks so far, this one included.
        most (int): Rollbacks that the run may have.
        recovery (int): Iterations in which the learning rate recovers; 0 if
            it does not.
    """
    incident = _('Iter {iteration}: {fault}: {reason}', **vars(done))
    if done.action is Action.SKIP:
        return _('{incident}, step skipped', incident=incident)
    if done.action not in (Action.LOWER_LR, Action.ROLLBACK):
        return _('{incident}; reported only', incident=incident)
    rate = _('learning rate as it was')
    if done.lr_factor != 1:
        rate = _('learning rate x {factor:g}', factor=done.lr_factor)
        if recovery:
            rate += _(
                ', back to 1 in {iterations} iterations', iterations=recovery
            )
    if done.action is Action.LOWER_LR:
        return _('{incident}; {rate}', incident=incident, rate=rate)
    in_memory = done.source == 'memory'
    return _(
        '{incident}. Rolled back to the state of iteration {restored} '
        '({source}), resumed with the next batch; {rate}. Rollback '
        '{spent} of {most}',
        incident=incident,
        restored=done.restored,
        source=_('in memory') if in_memory else done.source,
        rate=rate,
        spent=spent,
        most=most,
    )


def describe_held(held: HeldStep, subject: str) -> str:
    """One line about a step that was held and repeated, with the evidence.

    Args:
        held (HeldStep): The step.
        subject (str): What to call the number that was too high.
    """
    found = _(
        'Iter {iteration}: {subject} {value:.4g} (peak so far {peak:.4g})',
        subject=subject,
        **vars(held),
    )
    if held.verdict is HeldVerdict.NOT_ASKED:
        reason = held.reason
        return found + _(', not repeated: {reason}; applied', reason=reason)
    end = N_(', again {again:.4g}: caused by the data or the model; applied')
    if held.verdict is HeldVerdict.TRANSIENT:
        end = N_(', again {again:.4g}: transient fault, step skipped')
    elif held.samples:
        end = N_(', again {again:.4g}: sample {samples}; applied')
    return found + _(end, again=held.again, samples=held.samples)


def why_dead(zeros: int, count: int) -> str:
    """The likely cause of a run that has stopped learning.

    Args:
        zeros (int): Parameters whose gradient is exactly 0.
        count (int): Parameters that have a gradient.
    """
    if 2 * zeros >= count:
        return _(
            '{zeros} of {count} parameters have a gradient of exactly 0: '
            'units are dead (ReLU that is negative for all inputs), or the '
            'output does not depend on the input any more. Start again with '
            'a lower learning rate, a warm-up or another initialization',
            zeros=zeros,
            count=count,
        )
    return _(
        'gradients vanish on their way through the model: a collapsed '
        'attention or a saturated activation. Start again with a warm-up, a '
        'lower learning rate, normalization before each block (pre-norm) or '
        'another initialization'
    )


class ConfiguredRate(NamedTuple):
    """A learning rate, and where the config has it.

    Args:
        path (str): E.g. 'optim_wrapper.optimizer.lr'.
        lr (float): What a schedule starts from.
    """

    path: str
    lr: float


def configured_lr(runner: Runner) -> ConfiguredRate | None:
    """The learning rate in the config of a run; of several, the first.

    The current rate of an optimizer, which a schedule has computed, is not
    what its owner can change.
    """
    wrapper = runner.cfg.get('optim_wrapper') or {}
    each = {f'optim_wrapper.{name}': one for name, one in wrapper.items()}
    for path, one in {'optim_wrapper': wrapper, **each}.items():
        optimizer = one.get('optimizer') if isinstance(one, dict) else None
        lr = optimizer.get('lr') if isinstance(optimizer, dict) else None
        if lr is not None and is_number(lr):
            return ConfiguredRate(f'{path}.optimizer.lr', float(lr))
    return None


def give_advice(
    fault: Fault,
    rate: ConfiguredRate | None,
    explained: FaultExplained | None = None,
) -> list[str]:
    """What to change in the config, or in the data.

    Args:
        fault (Fault): What the run suffered from.
        rate (ConfiguredRate, optional): The config's learning rate.
        explained (FaultExplained, optional): The newest explanation of a bad
            step, if it is not about the learning rate. Defaults to None.
    """
    if explained is not None:
        if explained.verdict is Verdict.BAD_INPUT:
            names = list(explained.sample_names) or ['?']
            text = N_(
                'fix or leave out the samples that hold NaN or Inf: {samples}'
            )
            return [_(text, samples=names)]
        if explained.verdict is Verdict.DOMAIN_ERROR:
            line = explained.text.splitlines()[0]
            return [_('guard the operation that gives NaN: {line}', line=line)]
        return [_(ADVICE['transient'])]
    lower = _(LOWER_THE_RATE)
    if rate is not None:
        lower = _(
            'lower the learning rate ({path} is {lr:g} in the config: try '
            '{half:g}) or lengthen the warm-up',
            path=rate.path,
            lr=rate.lr,
            half=rate.lr / 2,
        )
    clip = _(
        'clip harder (optim_wrapper.clip_grad.max_norm), or choose '
        'stability/safe.py'
    )
    return [lower, clip, _(ADVICE[fault.value])]


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
    tried = ''
    if rollbacks:
        tried = _(
            ' {rollbacks:rollback|rollbacks} did not help.',
            rollbacks=rollbacks,
        )
    return _(
        'training is stopped at iteration {iteration}, because of {fault} '
        'since iteration {since}: {reason}.{tried} Nothing was validated or '
        'saved after that. What to change: {advice:; }. {resume} (details: '
        '{file})',
        tried=tried,
        advice=list(advice),
        resume=resume,
        file=file,
        **vars(done),
    )


def diagnose(
    runner: Runner,
    stop: Intervention,
    rollbacks: Sequence[Intervention],
    rollback_count: int,
    tallies: Mapping[str, StepTally],
    explained: FaultExplained | None = None,
) -> tuple[str, Path]:
    """Write ``diagnosis.json`` for the run's owner. A collective call.

    Args:
        runner (Runner): The runner.
        stop (Intervention): The last one.
        rollbacks (Sequence[Intervention]): What this process tried before.
        rollback_count (int): Rollbacks of the whole run.
        tallies (Mapping): Steps applied and skipped, by wrapper.
        explained (FaultExplained, optional): The newest explanation of a bad
            step. Defaults to None.

    Returns:
        tuple: One paragraph about the stop, and the file.
    """
    good = last_good_checkpoint(runner, stop.since)
    rate = configured_lr(runner)
    if explained is not None and explained.verdict in _OTHER_CAUSES:
        rate = None
    else:
        explained = None
    checkpoint = None if good is None else str(good.path)
    resume = checkpoint and resume_command_for(runner, checkpoint)
    if resume is not None and rate is not None:
        half = f'{rate.path}={rate.lr / 2:g}'
        resume = f'{resume} --override-lr-schedule --cfg-options {half}'
    advice = give_advice(stop.fault, rate, explained)
    path = runner_view.stability_folder(runner) / 'diagnosis.json'
    text = describe_stop(stop, rollback_count, advice, resume, rate, str(path))
    if is_main_process():
        content = dict(
            schema=1,
            stop=stop,
            rollbacks=rollbacks,
            wrappers={
                name: dict(
                    applied=tallies[name].applied,
                    skipped=tallies[name].skipped,
                    lr=read_lr(wrapper),
                    loss_scale=read_scale(wrapper),
                )
                for name, wrapper in runner_view.wrappers(runner).items()
            },
            checkpoint=checkpoint,
            resume=resume,
            advice=advice,
            text=text,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        written = json.dumps(plain(content), indent=2, ensure_ascii=False)
        replace_text(path, written + '\n', encoding='utf-8')
    return text, path
