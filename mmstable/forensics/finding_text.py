"""What an investigation has found, in words."""

from __future__ import annotations

import math

from mmstable.events import Fault
from mmstable.events.number_records import Verdict
from mmstable.forensics.birth import BACKWARD, Birth, External
from mmstable.forensics.finding import Finding
from mmstable.forensics.samples import Samples
from mmstable.messages import N_, _

_MOST_SAMPLES = 8
# The largest number of float16.
_FLOAT16 = 65504.0
_SOURCES = {
    'parameter': N_('parameter'),
    'buffer': N_('buffer'),
    'batch': N_('the batch:'),
    'outside': N_('a tensor that no operation made'),
}
_POINTS = {
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
    """Two lines: where it began, and the verdict.

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
            '{where}: {kind} born in the backward pass of {module} '
            '({lines: <- }), {node}: {what}{terms}{samples}',
            node=culprit.node,
            **facts,
        )
    return _(
        '{where}: {kind} born in {module} ({lines: <- }): '
        '{what}{terms}{samples}',
        **facts,
    )


def _source(culprit: External) -> str:
    source = _(_SOURCES[culprit.source])
    return f'{source} {culprit.name}'.rstrip()


def _what(finding: Finding, culprit: Birth) -> str:
    point = finding.point
    if point is not None:
        operand = point.operand or culprit.output
        return _(_POINTS[point.name], op=culprit.op, operand=operand)
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


def _advice(culprit: Birth, model: str) -> str:
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


def _largest(finding: Finding, culprit: Birth, loss_scale: float) -> str:
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
