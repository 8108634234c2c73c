"""Explain a fault of a run: from a runner to an event and its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner
from torch.nn import Module

from mmstable import runner_view
from mmstable.dist.collectives import Sharing, find_sharing
from mmstable.errors import is_device_lost
from mmstable.events import Fault, StepReport
from mmstable.events.log import device_of
from mmstable.events.records import FaultExplained, Poisoned, Verdict
from mmstable.forensics.crash import CrashFinder, NotExamined, crash_facts
from mmstable.forensics.describe import describe, describe_crash
from mmstable.forensics.find_cause import CauseFinder, Finding, room_for
from mmstable.forensics.frames import Place, measure
from mmstable.forensics.replay import StepInputs, setup_of
from mmstable.forensics.trace import (
    BUFFER,
    OUTSIDE,
    PARAMETER,
    AnyOrigin,
    External,
    NanOrigin,
    walk_tensors,
)
from mmstable.loops.train import SafeLoop
from mmstable.loops.train_step import StepRecord
from mmstable.messages import _
from mmstable.optim.grad_health import unwrap
from mmstable.optim.observer import monitor_of
from mmstable.state.data_position import DataPosition, batch_indices
from mmstable.state.preserve import can_run_uncompiled

_MOST_NAMES, _LONGEST_ERROR = 5, 500


class Explained(NamedTuple):
    """A fault that was explained.

    Args:
        event (FaultExplained): What was found.
        lines (list[str]): The same as text.
        inputs (StepInputs, optional): The step that it happened in.
    """

    event: FaultExplained
    lines: list[str]
    inputs: StepInputs | None


def explain_step(
    runner: Runner,
    report: StepReport,
    records: Sequence[StepRecord],
    since: int,
    seconds: float,
) -> Explained:
    """Explain why a step was bad.

    Args:
        runner (Runner): The runner.
        report (StepReport): The bad step.
        records (Sequence[StepRecord]): Its batch, or those of its
            accumulation window.
        since (int): The first bad step of those in a row.
        seconds (float): How long it may take.
    """
    model = unwrap(runner.model)
    all_inputs = [
        _inputs_of(runner, model, one, ago, report.loss_scale, report.wrapper)
        for ago, one in zip(reversed(range(len(records))), records)
    ]
    has_moved = report.applied
    obstacle = _obstacle(runner, model, all_inputs)
    if obstacle:
        finding = Finding(Verdict.NOT_EXAMINED, reason=obstacle)
        taken = 0.0
    else:
        investigation = CauseFinder(all_inputs, report.wrapper, seconds)
        finding = investigation.run()
        finding.notes += _notes(runner, model, has_moved)
        taken = investigation.clock.seconds
        all_inputs = [investigation.inputs]
        if finding.verdict in (Verdict.NOT_REPRODUCED, Verdict.BAD_INPUT):
            finding.notes += _batch_notes(investigation.inputs.batch)
        if finding.verdict is Verdict.NOT_REPRODUCED:
            has_moved = has_moved or _others_moved(runner, report)
    lines = describe(
        finding,
        report.iteration,
        _fault_of(report),
        type(model).__name__,
        since,
        report.loss_scale,
        has_moved,
    )
    of_weights = finding.verdict is Verdict.BAD_WEIGHTS
    event = FaultExplained.now(
        report.iteration,
        fault=_fault_of(report),
        verdict=finding.verdict,
        text='\n'.join(lines),
        rank=get_rank(),
        wrapper=report.wrapper,
        since=since if of_weights else None,
        seconds=round(taken, 3),
        **_facts(finding),
    )
    return Explained(event, lines, all_inputs[-1] if all_inputs else None)


def explain_crash(
    runner: Runner,
    record: StepRecord,
    error: BaseException,
    seconds: float,
) -> Explained | None:
    """Explain why a training step has raised an error.

    After the loss of a device nothing is replayed here: the bundle is, in
    another process.

    Args:
        runner (Runner): The runner.
        record (StepRecord): The step.
        error (BaseException): The error.
        seconds (float): How long it may take.

    Returns:
        Explained: What was found; None if other ranks may be to blame.
    """
    model, is_lost = unwrap(runner.model), is_device_lost(error)
    # The scale of a loss may be a tensor of the lost device.
    inputs = _inputs_of(runner, model, record, -1, 1.0 if is_lost else None)
    text = f'{type(error).__name__}: {" ".join(str(error).split())}'
    reason, crash, finder = '', None, CrashFinder(inputs, seconds)
    if not is_lost:
        reason = _obstacle(runner, model, [inputs])
    if not (is_lost or reason):
        try:
            crash = finder.run()
        except NotExamined as obstacle:
            reason = str(obstacle)
        if crash is None and not reason and get_world_size() > 1:
            # Most likely a collective, which another rank has left.
            return None
    facts, lines = crash_facts(crash), [text[:_LONGEST_ERROR]]
    if reason or is_lost:
        facts['verdict'] = Verdict.NOT_EXAMINED
    if reason:
        lines.append(_('Verdict: not examined, {reason}.', reason=reason))
    elif not is_lost:
        name = type(model).__name__
        lines = describe_crash(crash, lines[0], record.iteration, name)
    event = FaultExplained.now(
        record.iteration,
        fault=Fault.CRASH,
        text='\n'.join(lines),
        rank=get_rank(),
        seconds=round(finder.clock.seconds, 3),
        **facts,
    )
    return Explained(event, lines, inputs)


def explain_poison(runner: Runner, event: Poisoned) -> Explained:
    """Explain what is bad in a state that was not saved.

    Args:
        runner (Runner): The runner.
        event (Poisoned): What was found in it.
    """
    model = unwrap(runner.model)
    finding = Finding(Verdict.BAD_WEIGHTS, _find_bad(model, event))
    name = type(model).__name__
    lines = describe(finding, event.iteration, Fault.POISONED, name)
    found = FaultExplained.now(
        event.iteration,
        fault=Fault.POISONED,
        verdict=finding.verdict,
        text='\n'.join(lines),
        rank=get_rank(),
        **_facts(finding),
    )
    return Explained(found, lines, None)


def _fault_of(report: StepReport) -> Fault:
    return report.fault or Fault.NAN_GRAD


def _inputs_of(
    runner: Runner,
    model: Module,
    record: StepRecord,
    ago: int,
    loss_scale: float | None,
    wrapper: str | None = None,
) -> StepInputs:
    """Collect what a step needs to be run again.

    Args:
        runner (Runner): The runner.
        model (Module): The model, without DDP and the like around it.
        record (StepRecord): The step.
        ago (int): How many batches came after it; -1 if it is not done.
        loss_scale (float, optional): Its loss scale; None for that of now.
        wrapper (str, optional): The only wrapper with that scale. Defaults
            to None.
    """
    setups = {
        name: setup_of(
            one, model, loss_scale if wrapper in (None, name) else None
        )
        for name, one in runner_view.wrappers(runner).items()
    }
    has_many = runner_view.has_many_wrappers(runner)
    indices = _indices(runner, ago) or ()
    return StepInputs(
        model, record.batch, setups, has_many, record.rng, tuple(indices)
    )


def _indices(runner: Runner, ago: int) -> list[int] | None:
    """List the dataset indices of a batch.

    Args:
        runner (Runner): The runner.
        ago (int): How many batches came after it; -1 if its step is not
            done.
    """
    loop = runner.train_loop
    if not isinstance(loop, SafeLoop):
        return None
    now = loop.position
    position = DataPosition(now.epoch, now.index - ago)
    return batch_indices(loop.dataloader, loop.drawn if ago < 0 else position)


def _obstacle(
    runner: Runner, model: Module, all_inputs: Sequence[StepInputs]
) -> str:
    """Return the reason why nothing can be replayed, or ''."""
    if not all_inputs:
        return _('the batch of this step was not kept')
    if find_sharing(runner.model) is Sharing.SHARDED:
        return _(
            'ranks hold parts of the weights (FSDP), and a replay on one '
            'rank would wait for the others'
        )
    room = room_for(model, all_inputs[-1].batch, device_of(model))
    if not room.is_enough:
        return _(
            'the batch does not fit twice: {needed:.2f} GiB needed, '
            '{free:.2f} GiB free',
            needed=room.needed,
            free=room.free,
        )
    return ''


def _notes(runner: Runner, model: Module, has_moved: bool) -> list[str]:
    notes = []
    if has_moved:
        notes.append(
            _('replayed with the weights after the step, which was applied')
        )
    if any(map(_is_compiled, [runner.model, *model.modules()])):
        if can_run_uncompiled():
            notes.append(_('replayed without torch.compile'))
        else:
            notes.append(
                _(
                    'what torch.compile has made is named by the first line '
                    'of its function; torch 2.6 or newer replays it as it '
                    'was written'
                )
            )
    if get_world_size() > 1:
        notes.append(
            _('replayed on this rank alone, as if all others had its batch')
        )
    return notes


def _batch_notes(batch: Any) -> list[str]:
    """Name the tensors that the step, or collate, has written to."""
    names = [
        name
        for name, one in walk_tensors(batch)
        if not one.is_inference() and one._version
    ]
    if not names:
        return []
    return [
        _(
            '{names} of the batch was written to in place, maybe by the '
            'model: then this is not what the step began with',
            names=names[:_MOST_NAMES],
        )
    ]


def _others_moved(runner: Runner, report: StepReport) -> bool:
    """Whether another wrapper has changed weights in the same iteration."""
    runner_view.resolve_steps(runner)
    monitor = monitor_of(runner)
    steps = [monitor.newest_step(name) for name in monitor.sources]
    return any(
        one is not None and one.applied and one.iteration == report.iteration
        for one in steps
    )


def _is_compiled(model: Module) -> bool:
    # A module, or a method that was put into its place.
    return hasattr(model, '_orig_mod') or any(
        hasattr(one, '_torchdynamo_orig_callable')
        for one in vars(model).values()
    )


def _find_bad(model: Module, event: Poisoned) -> AnyOrigin:
    """The first bad tensor of a model, or of what belongs to it."""
    sources: list[tuple[str, Any]] = [
        (PARAMETER, model.named_parameters()),
        (BUFFER, model.named_buffers()),
    ]
    for source, named in sources:
        for name, tensor in named:
            values = measure(tensor)
            if values.kind != 'finite' and not values.looks_like_mask:
                return External(0, source, name, values, Place())
    # A state of an optimizer, or an average.
    culprit = event.culprits[0]
    values = measure(torch.tensor(float(culprit.kind.lower())))
    return External(0, OUTSIDE, culprit.name, values, Place())


def _facts(finding: Finding) -> dict[str, Any]:
    """Fields of the event."""
    culprit, samples = finding.culprit, finding.samples
    facts: dict[str, Any] = dict(
        loss_terms=finding.terms,
        samples=samples.indices,
        sample_names=samples.names,
        only_together=samples.only_together,
        largest=finding.largest,
        chain=tuple(map(str, finding.chain)),
        notes=tuple(finding.notes),
    )
    if culprit is None:
        return facts
    facts.update(
        kind=culprit.kind,
        module=culprit.place.module or '',
        lines=tuple(map(str, culprit.place.lines)),
    )
    if isinstance(culprit, NanOrigin):
        return dict(
            facts,
            phase=culprit.phase,
            op=culprit.op,
            node=culprit.node,
            inputs=tuple(map(str, culprit.inputs)),
            output=str(culprit.output),
            bad_share=culprit.output.bad_share,
        )
    return dict(
        facts,
        source=culprit.source,
        name=culprit.name,
        output=str(culprit.values),
        bad_share=culprit.values.bad_share,
    )
