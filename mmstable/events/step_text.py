"""A bad step in one line, for a person."""

from __future__ import annotations

from mmstable.events.step_report import Culprit, Fault, StepReport
from mmstable.messages import _


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
    return _(
        '{where}: {what}, {done}, {scale}{origin}',
        where=where,
        what=_fault(report, max_names),
        done=_outcome(report),
        scale=_scale(report) if scaled else _('no loss_scale in use'),
        origin=_origin(report) if report.origins else '',
    )


def _fault(report: StepReport, max_names: int) -> str:
    if report.fault is Fault.NAN_LOSS:
        return _loss(report)
    if report.fault is Fault.OOM:
        return _('the batch does not fit in memory')
    if report.fault is Fault.SPIKE:
        loss = ''
        if report.loss is not None:
            loss = _('loss {loss:.4g}, ', loss=report.loss)
        return _(
            'spike ({loss}gradient norm {norm:.4g})',
            loss=loss,
            norm=report.grad_norm,
        )
    first_of_module: dict[str, Culprit] = {}
    for culprit in report.culprits:
        module = culprit.name.rpartition('.')[0]
        first_of_module.setdefault(module, culprit)
    names = [repr(c.name) for c in first_of_module.values()][:max_names]
    has_nan = any(culprit.kind == 'NaN' for culprit in report.culprits)
    return _(
        (
            'gradient of {names} is {kind} ({parameters:parameter|parameters} '
            'in {modules:module|modules}{note})'
        )
        if len(names) == 1
        else (
            'gradients of {names} are {kind} '
            '({parameters:parameter|parameters} in '
            '{modules:module|modules}{note})'
        ),
        names=names,
        kind='NaN' if has_nan else 'Inf',
        parameters=len(report.culprits),
        modules=len(first_of_module),
        note='' if has_nan else _(', no NaN'),
    )


def _loss(report: StepReport) -> str:
    terms, dropped = '', ''
    if report.loss_terms and report.loss_terms != ('loss',):
        terms = _(' ({terms})', terms=report.loss_terms)
    if report.dropped_micro_batches:
        dropped = _(
            ' in {count:micro-batch|micro-batches}',
            count=report.dropped_micro_batches,
        )
    return _(
        'loss is NaN or Inf{terms}{dropped}', terms=terms, dropped=dropped
    )


def _outcome(report: StepReport) -> str:
    if not report.applied:
        return _('step skipped')
    if report.dropped_micro_batches:
        return _('dropped from the step')
    return _('WEIGHTS UPDATED WITH IT')


def _scale(report: StepReport) -> str:
    before, scale = report.loss_scale, report.next_loss_scale
    if before == scale:
        return _('loss_scale stays {scale}', scale=scale)
    return _('loss_scale {before} -> {scale}', before=before, scale=scale)


def _origin(report: StepReport) -> str:
    first, *others = report.origins
    late = first.where == 'reduced_gradient'
    copied = ''
    if report.copied_from is not None:
        copied = _(
            '; it had missed the update before, and now has the state of '
            'rank {rank}',
            rank=report.copied_from,
        )
    return _(
        '; began on rank {rank} ({node}, {device}{late}){more}{copied}',
        rank=first.rank,
        node=first.node,
        device=first.device,
        late=_(', after the all-reduce') if late else '',
        more=_(' and {count:other rank|other ranks}', count=len(others))
        if others
        else '',
        copied=copied,
    )
