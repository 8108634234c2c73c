"""A bad step in one line, for a person."""

from __future__ import annotations

from mmstable.events.step_report import Culprit, Fault, StepReport
from mmstable.messages import say


def describe_step(
    where: str, report: StepReport, scaled: bool, max_names: int
) -> str:
    """Say what was wrong with a step, and what became of it.

    Args:
        where (str): The iteration, and the wrapper if there are several.
        report (StepReport): The step.
        scaled (bool): Whether its wrapper scales losses.
        max_names (int): Most parameters to name.
    """
    return say(
        'step.line',
        where=where,
        what=_fault(report, max_names),
        done=_outcome(report),
        scale=_scale(report) if scaled else say('step.unscaled'),
        origin=_origin(report) if report.origins else '',
    )


def _fault(report: StepReport, max_names: int) -> str:
    if report.fault is Fault.NAN_LOSS:
        return _loss(report)
    if report.fault is Fault.OOM:
        return say('step.memory')
    if report.fault is Fault.SPIKE:
        loss = ''
        if report.loss is not None:
            loss = say('step.spike_loss', loss=report.loss)
        return say('step.spike', loss=loss, norm=report.grad_norm)
    first_of_module: dict[str, Culprit] = {}
    for culprit in report.culprits:
        module = culprit.name.rpartition('.')[0]
        first_of_module.setdefault(module, culprit)
    names = [repr(c.name) for c in first_of_module.values()][:max_names]
    has_nan = any(culprit.kind == 'NaN' for culprit in report.culprits)
    return say(
        'step.gradient' if len(names) == 1 else 'step.gradients',
        names=names,
        kind='NaN' if has_nan else 'Inf',
        parameters=len(report.culprits),
        modules=len(first_of_module),
        note='' if has_nan else say('step.no_nan'),
    )


def _loss(report: StepReport) -> str:
    terms, dropped = '', ''
    if report.loss_terms and report.loss_terms != ('loss',):
        terms = say('step.loss_terms', terms=report.loss_terms)
    if report.dropped_micro_batches:
        dropped = say('step.dropped', count=report.dropped_micro_batches)
    return say('step.loss', terms=terms, dropped=dropped)


def _outcome(report: StepReport) -> str:
    if not report.applied:
        return say('step.was_skipped')
    if report.dropped_micro_batches:
        return say('step.was_dropped')
    return say('step.was_applied')


def _scale(report: StepReport) -> str:
    before, scale = report.loss_scale, report.next_loss_scale
    if before == scale:
        return say('step.same_scale', scale=scale)
    return say('step.new_scale', before=before, scale=scale)


def _origin(report: StepReport) -> str:
    first, *others = report.origins
    late = first.where == 'reduced_gradient'
    copied = ''
    if report.copied_from is not None:
        copied = say('step.copied', rank=report.copied_from)
    return say(
        'step.origin',
        rank=first.rank,
        node=first.node,
        device=first.device,
        late=say('step.after_all_reduce') if late else '',
        more=say('step.other_ranks', count=len(others)) if others else '',
        copied=copied,
    )
