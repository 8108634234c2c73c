"""Examine a fault of a run: from a runner to a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner
from torch.nn import Module

from mmstable import run_view
from mmstable.distributed.parallelism import Sharing, find_sharing
from mmstable.events import Fault, StepReport
from mmstable.events.number_records import FaultExplained, Verdict
from mmstable.events.records import Poisoned
from mmstable.events.run_header import device_of
from mmstable.forensics.birth import (
    BUFFER,
    OUTSIDE,
    PARAMETER,
    Birth,
    External,
    Origin,
)
from mmstable.forensics.finding import Finding
from mmstable.forensics.finding_text import describe
from mmstable.forensics.frames import Place
from mmstable.forensics.investigate import Investigation
from mmstable.forensics.memory import room_for
from mmstable.forensics.ranges import measure
from mmstable.forensics.replay import StepScene, can_run_uncompiled
from mmstable.forensics.step_setup import setup_of
from mmstable.forensics.storage_map import walk_tensors
from mmstable.loops.safe_loop import SafeLoop
from mmstable.loops.skip_batches import batch_indices
from mmstable.loops.train_step import StepRecord
from mmstable.messages import _
from mmstable.optim.parameter_names import unwrap
from mmstable.optim.step_sources import monitor_of
from mmstable.run_state.data_position import DataPosition

_MOST_NAMES = 5


class Examined(NamedTuple):
    """A fault that was looked at.

    Args:
        event (FaultExplained): What was found.
        lines (list[str]): The same for people.
        scene (StepScene, optional): The step that it happened in.
    """

    event: FaultExplained
    lines: list[str]
    scene: StepScene | None


def examine_step(
    runner: Runner,
    report: StepReport,
    records: Sequence[StepRecord],
    since: int,
    seconds: float,
) -> Examined:
    """Find out why a step was bad.

    Args:
        runner (Runner): The runner.
        report (StepReport): The bad step.
        records (Sequence[StepRecord]): Its batch, or those of its
            accumulation window.
        since (int): The first bad step of those in a row.
        seconds (float): How long it may take.
    """
    model = unwrap(runner.model)
    scenes = [
        _scene(runner, model, report, one, ago)
        for ago, one in zip(reversed(range(len(records))), records)
    ]
    has_moved = report.applied
    obstacle = _obstacle(runner, model, scenes)
    if obstacle:
        finding = Finding(Verdict.NOT_EXAMINED, reason=obstacle)
        taken = 0.0
    else:
        investigation = Investigation(scenes, report.wrapper, seconds)
        finding = investigation.run()
        finding.notes += _notes(runner, model, has_moved)
        taken = investigation.clock.seconds
        scenes = [investigation.scene]
        if finding.verdict in (Verdict.NOT_REPRODUCED, Verdict.BAD_INPUT):
            finding.notes += _batch_notes(investigation.scene.batch)
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
    return Examined(event, lines, scenes[-1] if scenes else None)


def examine_poison(runner: Runner, event: Poisoned) -> Examined:
    """Say what is bad in a state that was not saved.

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
    return Examined(found, lines, None)


def _fault_of(report: StepReport) -> Fault:
    return report.fault or Fault.NAN_GRAD


def _scene(
    runner: Runner,
    model: Module,
    report: StepReport,
    record: StepRecord,
    ago: int,
) -> StepScene:
    setups = {
        name: setup_of(
            wrapper,
            model,
            report.loss_scale if name == report.wrapper else None,
        )
        for name, wrapper in run_view.wrappers(runner).items()
    }
    has_many = run_view.has_many_wrappers(runner)
    indices = _indices(runner, ago) or ()
    return StepScene(
        model, record.batch, setups, has_many, record.rng, tuple(indices)
    )


def _indices(runner: Runner, ago: int) -> list[int] | None:
    """Where in the data set the samples of a batch are.

    Args:
        runner (Runner): The runner.
        ago (int): How many batches came after it.
    """
    loop = runner.train_loop
    if not isinstance(loop, SafeLoop):
        return None
    now = loop.position
    return batch_indices(
        loop.dataloader, DataPosition(now.epoch, now.index - ago)
    )


def _obstacle(
    runner: Runner, model: Module, scenes: Sequence[StepScene]
) -> str:
    """Why nothing can be replayed; '' if it can."""
    if not scenes:
        return _('the batch of this step was not kept')
    if find_sharing(runner.model) is Sharing.SHARDED:
        return _(
            'ranks hold parts of the weights (FSDP), and a replay on one '
            'rank would wait for the others'
        )
    room = room_for(model, scenes[-1].batch, device_of(model))
    if room is not None and not room.is_enough:
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
    """What the step itself, or the collate function, has written to."""
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
    run_view.resolve_steps(runner)
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


def _find_bad(model: Module, event: Poisoned) -> Origin:
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
    """What the event says of a finding."""
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
    if isinstance(culprit, Birth):
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
