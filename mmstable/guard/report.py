"""What the guard did, in words, and the diagnosis of a run it has stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.runner import Runner
from torch import Tensor

from mmstable import runner_view
from mmstable.checkpoint.signals import resume_command_for
from mmstable.events import Action, Fault, Intervention
from mmstable.events.codec import plain
from mmstable.events.records import (
    FaultExplained,
    HeldStep,
    HeldVerdict,
    Verdict,
)
from mmstable.events.samples import read_lr, read_scale
from mmstable.guard.rollback import (
    ConfiguredRate,
    configured_lr,
    last_good_checkpoint,
)
from mmstable.io.files import replace_text
from mmstable.messages import N_, _

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
        'mixture of datasets'
    ),
    'diverged': N_(
        'look at the newest held steps in the event file: their samples may '
        'have thrown the run'
    ),
    'transient': N_('test this machine: mmstable doctor'),
    'dead': N_(
        'choose another initialization, or normalization before each block'
    ),
}
# Verdicts of FaultForensicsHook that are not about the learning rate.
_OTHER_CAUSES = (
    Verdict.BAD_INPUT,
    Verdict.DOMAIN_ERROR,
    Verdict.NOT_REPRODUCED,
)


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


def describe_held(held: HeldStep, subject: str) -> str:
    """One line about a step that was held and repeated, with the evidence.

    Args:
        held (HeldStep): The step.
        subject (str): What to call the number that was too high.
    """
    facts = dict(
        iteration=held.iteration,
        subject=subject,
        value=held.value,
        peak=held.peak,
        again=math.nan if held.again is None else held.again,
    )
    if held.verdict is HeldVerdict.NOT_ASKED:
        return _(
            'Iter {iteration}: {subject} {value:.4g} (peak so far '
            '{peak:.4g}), not repeated: {reason}; applied',
            reason=held.reason,
            **facts,
        )
    if held.verdict is HeldVerdict.TRANSIENT:
        return _(
            'Iter {iteration}: {subject} {value:.4g} (peak so far '
            '{peak:.4g}), again {again:.4g}: transient fault, step skipped',
            **facts,
        )
    if held.samples:
        return _(
            'Iter {iteration}: {subject} {value:.4g} (peak so far '
            '{peak:.4g}), again {again:.4g}: sample {samples}; applied',
            samples=held.samples,
            **facts,
        )
    return _(
        'Iter {iteration}: {subject} {value:.4g} (peak so far {peak:.4g}), '
        'again {again:.4g}: it belongs to the data or the model; applied',
        **facts,
    )


def describe_dead(norms: Tensor | None) -> str:
    """The likely cause of a run that learns nothing any more.

    Args:
        norms (Tensor, optional): Of the gradient of each parameter.
    """
    count = 0 if norms is None else norms.numel()
    zeros = 0 if norms is None else int((norms == 0).sum())
    if 2 * zeros > count:
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
            step. Defaults to None.
    """
    if explained is not None and explained.verdict in _OTHER_CAUSES:
        return [_follow_verdict(explained)]
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
    return [
        lower,
        _(
            'clip harder (optim_wrapper.clip_grad.max_norm), or choose '
            'stability/safe.py'
        ),
        _(_CAUSES[fault.value]),
    ]


def _follow_verdict(explained: FaultExplained) -> str:
    if explained.verdict is Verdict.BAD_INPUT:
        return _(
            'fix or leave out the samples that hold NaN or Inf: {samples}',
            samples=list(explained.sample_names) or ['?'],
        )
    if explained.verdict is Verdict.DOMAIN_ERROR:
        line = explained.text.splitlines()[0]
        return _('guard the operation that gives NaN: {line}', line=line)
    return _('test this machine: mmstable doctor')


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


FILE_NAME = 'diagnosis.json'
SCHEMA = 1


@dataclass(frozen=True)
class Diagnosis:
    """What is known about a run that was stopped.

    Args:
        stop (Intervention): The last one: what was wrong, and since when.
        rollbacks (tuple[Intervention]): The rollbacks before it.
        wrappers (dict): Steps applied and skipped, learning rate and loss
            scale, by optimizer wrapper.
        checkpoint (str, optional): The newest good checkpoint from before
            the incident.
        resume (str, optional): The command to resume from it.
        advice (tuple[str]): What to change in the config.
        text (str): All of it for a person.
    """

    stop: Intervention
    rollbacks: tuple[Intervention, ...]
    wrappers: dict[str, dict[str, Any]]
    checkpoint: str | None
    resume: str | None
    advice: tuple[str, ...]
    text: str

    def write(self, folder: Path) -> Path:
        """Write ``diagnosis.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE_NAME
        content = {'schema': SCHEMA, **plain(self)}
        text = json.dumps(content, indent=2, ensure_ascii=False)
        replace_text(path, text + '\n', encoding='utf-8')
        return path


def diagnose(
    runner: Runner,
    stop: Intervention,
    rollbacks: Sequence[Intervention],
    rollback_count: int,
    counts: Mapping[str, Mapping[str, int]],
    explained: FaultExplained | None = None,
) -> Diagnosis:
    """Collect what its owner has to know. A collective call.

    Args:
        runner (Runner): The runner.
        stop (Intervention): The last one.
        rollbacks (Sequence[Intervention]): What this process tried before.
        rollback_count (int): Rollbacks of the whole run.
        counts (Mapping): Steps applied and skipped, by wrapper.
        explained (FaultExplained, optional): The newest explanation of a bad
            step. Defaults to None.
    """
    good = last_good_checkpoint(runner, stop.since)
    path = None if good is None else str(good.path)
    rate = configured_lr(runner)
    if explained is not None and explained.verdict in _OTHER_CAUSES:
        # It is not about the learning rate.
        rate = None
    resume = None if path is None else resume_command_for(runner, path)
    if resume is not None and rate is not None:
        resume = f'{resume} {rate.halving_options}'
    wrappers = {
        name: {
            **counts.get(name, {}),
            'lr': read_lr(wrapper),
            'loss_scale': read_scale(wrapper),
        }
        for name, wrapper in runner_view.wrappers(runner).items()
    }
    advice = give_advice(stop.fault, rate, explained)
    return Diagnosis(
        stop=stop,
        rollbacks=tuple(rollbacks),
        wrappers=wrappers,
        checkpoint=path,
        resume=resume,
        advice=tuple(advice),
        text=describe_stop(
            stop,
            rollback_count,
            advice,
            resume,
            rate,
            str(runner_view.stability_folder(runner) / FILE_NAME),
        ),
    )
