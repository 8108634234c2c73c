"""Explain a fault of a run: from a runner to an event and its words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner
from torch.nn import Module

from mmstable import runner_view
from mmstable.batch import bytes_of, named_tensors
from mmstable.dist.collectives import Sharing, find_sharing
from mmstable.errors import is_device_lost
from mmstable.events import Fault, StepReport
from mmstable.events.log import device_of
from mmstable.events.records import FaultExplained, Poisoned, Verdict
from mmstable.forensics.crash import CrashFinder
from mmstable.forensics.describe import describe
from mmstable.forensics.find_cause import CauseFinder, Finding
from mmstable.forensics.frames import Place, measure
from mmstable.forensics.replay import StepInputs, setup_of
from mmstable.forensics.trace import BUFFER, OUTSIDE, PARAMETER, Origin
from mmstable.loops.train import SafeLoop
from mmstable.loops.train_step import StepRecord
from mmstable.memory.host import host_room
from mmstable.messages import _
from mmstable.optim.grad_health import unwrap
from mmstable.optim.observer import monitor_of
from mmstable.state.data_position import DataPosition, batch_indices
from mmstable.state.preserve import can_run_uncompiled

_MOST_NAMES, _LONGEST_ERROR = 5, 500
_GIB = 2**30


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
    obstacle = _obstacle(runner, model, all_inputs)
    inputs, taken = None, 0.0
    if obstacle:
        finding = Finding(Verdict.NOT_EXAMINED, reason=obstacle)
        inputs = all_inputs[-1] if all_inputs else None
    else:
        finder = CauseFinder(all_inputs, report.wrapper, seconds)
        finding = finder.run()
        inputs, taken = finder.inputs, finder.clock.seconds
        finding.has_moved = report.applied
        finding.notes += _notes(runner, model, finding, inputs.batch)
    if finding.verdict is Verdict.NOT_REPRODUCED:
        finding.has_moved = report.applied or _others_moved(runner, report)
    if finding.verdict is Verdict.BAD_WEIGHTS:
        finding.since = since
    return _explained(
        finding,
        report.iteration,
        report.fault or Fault.NAN_GRAD,
        model,
        inputs,
        taken,
        report,
    )


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
    finder = CrashFinder(inputs, seconds)
    reason = '' if is_lost else _obstacle(runner, model, [inputs])
    if is_lost or reason:
        finding = Finding(Verdict.NOT_EXAMINED, reason=reason)
    else:
        finding = finder.run()
    if finding.verdict is Verdict.NOT_REPRODUCED and get_world_size() > 1:
        # Most likely a collective, which another rank has left.
        return None
    if finding.culprit is None:
        text = f'{type(error).__name__}: {" ".join(str(error).split())}'
        finding.message = text[:_LONGEST_ERROR]
    return _explained(
        finding,
        record.iteration,
        Fault.CRASH,
        model,
        inputs,
        finder.clock.seconds,
    )


def explain_poison(runner: Runner, event: Poisoned) -> Explained:
    """Explain what is bad in a state that was not saved.

    Args:
        runner (Runner): The runner.
        event (Poisoned): What was found in it.
    """
    model = unwrap(runner.model)
    finding = Finding(Verdict.BAD_WEIGHTS, _find_bad(model, event))
    return _explained(finding, event.iteration, Fault.POISONED, model)


def _explained(
    finding: Finding,
    iteration: int,
    fault: Fault,
    model: Module,
    inputs: StepInputs | None = None,
    seconds: float = 0.0,
    report: StepReport | None = None,
) -> Explained:
    scale = 1.0 if report is None else report.loss_scale
    name = type(model).__name__
    lines = describe(finding, iteration, fault, name, scale)
    event = FaultExplained.now(
        iteration,
        fault=fault,
        text='\n'.join(lines),
        rank=get_rank(),
        wrapper='' if report is None else report.wrapper,
        seconds=round(seconds, 3),
        **finding.facts(),
    )
    return Explained(event, lines, inputs)


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
    loop, indices = runner.train_loop, None
    if isinstance(loop, SafeLoop):
        now = loop.position
        position = DataPosition(now.epoch, now.index - ago)
        indices = batch_indices(
            loop.dataloader, loop.drawn if ago < 0 else position
        )
    return StepInputs(
        model,
        record.batch,
        setups,
        runner_view.has_many_wrappers(runner),
        record.rng,
        tuple(indices or ()),
    )


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
    needed, free = _room(model, all_inputs[-1].batch)
    if needed <= free:
        return ''
    return _(
        'the batch does not fit twice: {needed:.2f} GiB needed, '
        '{free:.2f} GiB free',
        needed=needed / _GIB,
        free=free / _GIB,
    )


def _room(model: Module, batch: Any) -> tuple[float, float]:
    """Estimate the memory that a replay takes, and read what is free.

    On an accelerator it takes the peak of the step itself; on a CPU the peak
    is unknown, and the copies alone have to fit.
    """
    device = device_of(model)
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, 'mem_get_info'):
        free, __ = module.mem_get_info(device)
        used = module.memory_allocated(device)
        cached = module.memory_reserved(device) - used
        return module.max_memory_allocated(device) - used, free + cached
    copied = bytes_of([batch, [*model.parameters()], [*model.buffers()]])
    return 2 * copied, host_room().left


def _notes(
    runner: Runner, model: Module, finding: Finding, batch: Any
) -> Iterator[str]:
    if finding.has_moved:
        yield _('replayed with the weights after the step, which was applied')
    # A module is compiled, or a method that was put into its place.
    if any(
        hasattr(one, '_orig_mod')
        or any(
            hasattr(value, '_torchdynamo_orig_callable')
            for value in vars(one).values()
        )
        for one in [runner.model, *model.modules()]
    ):
        yield (
            _('replayed without torch.compile')
            if can_run_uncompiled()
            else _(
                'what torch.compile has made is named by the first line '
                'of its function; torch 2.6 or newer replays it as it '
                'was written'
            )
        )
    if get_world_size() > 1:
        yield _('replayed on this rank alone, as if all others had its batch')
    # Tensors that the step, or collate, has written to.
    names = [
        name
        for name, one in named_tensors(batch)
        if not one.is_inference() and one._version
    ]
    if names and finding.verdict in (
        Verdict.NOT_REPRODUCED,
        Verdict.BAD_INPUT,
    ):
        yield _(
            '{names} of the batch was written to in place, maybe by the '
            'model: then this is not what the step began with',
            names=names[:_MOST_NAMES],
        )


def _others_moved(runner: Runner, report: StepReport) -> bool:
    """Whether another wrapper has changed weights in the same iteration."""
    runner_view.resolve_steps(runner)
    monitor = monitor_of(runner)
    steps = [monitor.newest_step(name) for name in monitor.sources]
    return any(
        one is not None and one.applied and one.iteration == report.iteration
        for one in steps
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
                return Origin(
                    0, values.kind, Place(), values, source=source, name=name
                )
    # A state of an optimizer, or an average.
    culprit = event.culprits[0]
    values = measure(torch.tensor(float(culprit.kind.lower())))
    return Origin(
        0, values.kind, Place(), values, source=OUTSIDE, name=culprit.name
    )
