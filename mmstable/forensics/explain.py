"""Explain a fault of a run: from a runner to an event and its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner
from torch.nn import Module

from mmstable import runner_view
from mmstable.dist.collectives import Sharing, find_sharing
from mmstable.events import Fault, StepReport
from mmstable.events.log import device_of
from mmstable.events.records import FaultExplained, Poisoned, Verdict
from mmstable.forensics.find_cause import (
    CauseFinder,
    Finding,
    Samples,
    room_for,
)
from mmstable.forensics.frames import Place, measure
from mmstable.forensics.replay import StepInputs, setup_of
from mmstable.forensics.trace import (
    BACKWARD,
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
from mmstable.messages import N_, _
from mmstable.optim.grad_health import unwrap
from mmstable.optim.observer import monitor_of
from mmstable.state.data_position import DataPosition, batch_indices
from mmstable.state.preserve import can_run_uncompiled

_MOST_SAMPLES = 8
# The largest number of float16.
_FLOAT16 = 65504.0
_SOURCES = {
    'parameter': N_('parameter'),
    'buffer': N_('buffer'),
    'batch': N_('the batch:'),
    'outside': N_('a tensor that no operation made'),
}
_DOMAIN_ERRORS = {
    'log_zero': N_('log(0), {op} of {operand}'),
    'log_negative': N_('log of a negative number, {op} of {operand}'),
    'zero_by_zero': N_('0/0, {op} by {operand}'),
    'by_zero': N_('division by 0, {op} of {operand}'),
    'by_almost_zero': N_('division by almost 0, {op} by {operand}'),
    'nan_number': N_(
        'the code gives the number NaN to {op}, besides {operand}'
    ),
    'root_negative': N_('root of a negative number, {op} of {operand}'),
    'pow_negative': N_(
        'fractional power of a negative number, {op} of {operand}'
    ),
    'outside_one': N_('beyond -1..1, {op} of {operand}'),
    'masked_row': N_(
        'softmax over a row that is masked with -Inf everywhere, {op} of '
        '{operand}'
    ),
    'one_value': N_('variance of a single value, {op} of {operand}'),
    'empty': N_('mean over nothing, {op} of {operand}'),
    'no_target': N_(
        'average over targets of which none counts, {op} of {operand}'
    ),
    'undefined': N_('{op} of {operand} is undefined'),
}


def describe(
    finding: Finding,
    iteration: int,
    fault: Fault,
    model: str,
    since: int | None = None,
    loss_scale: float = 1.0,
    has_moved: bool = False,
) -> list[str]:
    """Describe where it began, and the verdict, in two lines.

    Args:
        finding (Finding): What was found.
        iteration (int): The iteration of the bad step.
        fault (Fault): Its fault.
        model (str): What to call the model itself.
        since (int, optional): Since when all steps are bad. Defaults to
            None.
        loss_scale (float): The scale of the step. Defaults to 1.0.
        has_moved (bool): Whether weights have changed since. Defaults to
            False.
    """
    where = f'Iter {iteration}'
    first = _begin(finding, where, fault, model)
    second = _verdict(finding, model, since, loss_scale, has_moved)
    notes = ''.join(f' ({note})' for note in finding.notes)
    return [first, second + notes]


def _begin(finding: Finding, where: str, fault: Fault, model: str) -> str:
    culprit = finding.culprit
    if culprit is None:
        return _('{where}: {fault}, cause not found', where=where, fault=fault)
    if fault is Fault.POISONED and isinstance(culprit, External):
        return _(
            '{where}: {kind} in {source} ({values}), so the state was not '
            'saved',
            where=where,
            kind=culprit.kind,
            source=_source(culprit),
            values=culprit.values,
        )
    facts = dict(
        where=where,
        kind=culprit.kind,
        module=culprit.place.module or model,
        lines=[str(line) for line in culprit.place.lines] or ['?'],
        terms=_terms(finding.terms),
        samples=_samples(finding.samples),
    )
    if isinstance(culprit, External):
        return _(
            '{where}: {kind} was in {source} before the step ({values}), '
            'first used in {module} ({lines: <- }){terms}{samples}',
            source=_source(culprit),
            values=culprit.values,
            **facts,
        )
    facts['what'] = _what(finding, culprit)
    if culprit.phase == BACKWARD:
        return _(
            '{where}: first {kind} in the backward pass of {module} '
            '({lines: <- }), {node}: {what}{terms}{samples}',
            node=culprit.node,
            **facts,
        )
    return _(
        '{where}: first {kind} in {module} ({lines: <- }): '
        '{what}{terms}{samples}',
        **facts,
    )


def _source(culprit: External) -> str:
    source = _(_SOURCES[culprit.source])
    return f'{source} {culprit.name}'.rstrip()


def _what(finding: Finding, culprit: NanOrigin) -> str:
    error = finding.domain_error
    if error is not None:
        operand = error.operand or culprit.output
        return _(_DOMAIN_ERRORS[error.name], op=culprit.op, operand=operand)
    return _(
        '{op} of values up to {peak:.4g} is beyond {dtype}',
        op=culprit.op,
        peak=max((one.peak for one in culprit.inputs), default=0.0),
        dtype=culprit.output.dtype,
    )


def _terms(terms: tuple[str, ...]) -> str:
    return _('; reached {terms}', terms=terms) if terms else ''


def _samples(samples: Samples) -> str:
    if not samples.indices:
        return ''
    if len(samples.indices) == samples.total > 1:
        return _('; in all {count} samples', count=samples.total)
    named = [
        f'{index} ({name})' if name else str(index)
        for index, name in zip(samples.indices, samples.names)
    ]
    if len(named) > _MOST_SAMPLES:
        named = [*named[:_MOST_SAMPLES], '...']
    if samples.only_together:
        return _(
            '; in sample {samples}, but only in this company (a statistic of '
            'the batch couples them)',
            samples=named,
        )
    return _('; in sample {samples}', samples=named)


def _verdict(
    finding: Finding,
    model: str,
    since: int | None,
    loss_scale: float,
    has_moved: bool,
) -> str:
    culprit = finding.culprit
    if finding.verdict is Verdict.NOT_EXAMINED:
        return _('Verdict: not examined, {reason}.', reason=finding.reason)
    if finding.verdict is Verdict.NOT_REPRODUCED or culprit is None:
        if has_moved:
            return _(
                'Verdict: not reproducible with the weights of now. An '
                'optimizer has changed them in that iteration, so those of '
                'before are gone.'
            )
        return _(
            'Verdict: not reproducible. The same batch with the same weights '
            'and random numbers is finite: hardware, or an operation that is '
            'not deterministic. Test this machine with `mmstable doctor`.'
        )
    if isinstance(culprit, External):
        if finding.verdict is Verdict.BAD_INPUT:
            return _(
                'Verdict: bad input data. {name} holds {values}. Look at the '
                'file, the labels and the data pipeline.',
                name=culprit.name or _('a tensor that no operation made'),
                values=culprit.values,
            )
        late = since is not None
        return _(
            'Verdict: bad weights. {name} holds {values}{since}. Go back to '
            'a checkpoint from before; every batch will fail with these.',
            name=culprit.name,
            values=culprit.values,
            since=_(
                ', since iteration {iteration} at the latest', iteration=since
            )
            if late
            else '',
        )
    if finding.verdict is Verdict.FP16_OVERFLOW:
        return _(
            'Verdict: fp16 overflow. The same batch is finite in '
            'float32{largest}. {advice}',
            largest=_largest(finding, culprit, loss_scale),
            advice=_advice(culprit, model),
        )
    if finding.verdict is Verdict.EXPLODING:
        peaks = [f'{name or model} {peak:.3g}' for name, peak in finding.peaks]
        return _(
            'Verdict: exploding activations. Largest values by module: '
            '{peaks: -> }. The learning rate is too high, or the warm-up too '
            'short; clip gradients (clip_grad=dict(max_norm=...)).',
            peaks=peaks or ['?'],
        )
    return _(
        'Verdict: {what} at a singular point. Guard the operand of {op} '
        '(clamp it, add an epsilon, or leave out empty targets).',
        what=finding.terms or culprit.place.module or model,
        op=culprit.op,
    )


def _advice(culprit: NanOrigin, model: str) -> str:
    if culprit.place.module:
        return _(
            "Keep the module in float32 (fp32_modules=['{module}']) or train "
            'in bfloat16.',
            module=culprit.place.module,
        )
    # No setting keeps the model itself out of autocast.
    return _(
        'Compute this line of {model} in float32 (.float()), or train in '
        'bfloat16.',
        model=model,
    )


def _largest(finding: Finding, culprit: NanOrigin, loss_scale: float) -> str:
    value = finding.largest
    if not value:
        return ''
    if culprit.phase == BACKWARD:
        return _(
            ': the gradient, with loss_scale {scale:g}, is {value:.4g} '
            'there, float16 ends at 65504, so loss_scale {fits:g} would fit',
            scale=loss_scale,
            value=value,
            fits=2.0 ** math.floor(math.log2(_FLOAT16 * loss_scale / value)),
        )
    return _(
        ': the value is {value:.4g} there, float16 ends at 65504', value=value
    )


_MOST_NAMES = 5


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
        _inputs_of(runner, model, report, one, ago)
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
    report: StepReport,
    record: StepRecord,
    ago: int,
) -> StepInputs:
    setups = {
        name: setup_of(
            wrapper,
            model,
            report.loss_scale if name == report.wrapper else None,
        )
        for name, wrapper in runner_view.wrappers(runner).items()
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
