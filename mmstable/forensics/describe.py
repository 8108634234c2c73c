"""Describe in words why a step was bad, or why it raised an error."""

from __future__ import annotations

import math

from mmstable.events import Fault
from mmstable.events.records import Verdict
from mmstable.forensics.crash import Crash
from mmstable.forensics.find_cause import DomainError, Finding, Samples
from mmstable.forensics.trace import BACKWARD, External, NanOrigin
from mmstable.messages import N_, _

_MOST_SAMPLES = 8
# The largest number of float16.
_FLOAT16 = 65504.0
_SOURCES = {
    'parameter': N_('parameter'),
    'buffer': N_('buffer'),
    'batch': N_('the batch:'),
    'outside': N_('a tensor that no torch operation made'),
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
# The usual rewrite of each error.
_LOG = N_(
    'Use log_softmax instead of log(softmax), logsigmoid or '
    'BCEWithLogitsLoss instead of log(sigmoid), logsumexp instead of '
    'log(sum(exp)); or clamp before the log.'
)
_ROOT = N_(
    'Clamp before the root, and put the epsilon inside of it: '
    'sqrt(x.clamp(min=0) + eps). The gradient of sqrt(x) is infinite at 0.'
)
_DIVISION = N_(
    'Clamp the divisor (clamp(min=eps)), or leave out empty targets.'
)
_COUNT = N_('Divide by max(count, 1), or leave out empty targets.')
_REWRITES = {
    **dict.fromkeys(('log_zero', 'log_negative'), _LOG),
    **dict.fromkeys(('zero_by_zero', 'by_zero', 'by_almost_zero'), _DIVISION),
    'root_negative': _ROOT,
    'pow_negative': N_('Clamp the base to positive numbers before the power.'),
    'outside_one': N_(
        'Clamp to -1 + eps..1 - eps before acos, asin or atanh; atan2 needs '
        'no clamp.'
    ),
    'masked_row': N_(
        'Leave out rows without a valid entry, or mask with a large negative '
        'number instead of -Inf.'
    ),
    'one_value': N_('Use unbiased=False, or leave out single values.'),
    **dict.fromkeys(('empty', 'no_target'), _COUNT),
    'nan_number': N_('Look where that number comes from.'),
    'undefined': N_('Clamp the operand, or add an epsilon.'),
}
_ROOT_NODES = ('Sqrt', 'Rsqrt', 'Norm', 'Pow')
# Errors of values that have become 0.
_EXP = N_(
    'Use softplus instead of log(1 + exp(x)), logsumexp or log_softmax '
    'instead of sums of exp.'
)
_OUT_OF_RANGE = {
    'label': N_('label {value} of {samples}; classes are {low}..{high}'),
    'index': N_('index {value} of {samples}; allowed is {low}..{high}'),
    'probability': N_('value {value} of {samples} is not in {low}..{high}'),
}
_OUT_OF_RANGE_ADVICE = {
    'label': N_(
        'Verdict: a label that is no class. Correct the annotation, '
        'num_classes or ignore_index; `mmstable check-data` lists all such '
        'samples.'
    ),
    'index': N_(
        'Verdict: an index out of range. Look at the data it is computed '
        'from, and at the size of the tensor it is used with.'
    ),
    'probability': N_(
        'Verdict: a probability outside 0..1, or NaN. Use '
        'BCEWithLogitsLoss instead of sigmoid and BCELoss.'
    ),
}
_PASSES = {'forward': N_('forward pass'), 'backward': N_('backward pass')}


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


def describe_crash(
    crash: Crash | None, error: str, iteration: int, model: str
) -> list[str]:
    """Describe where a step raises an error, and the verdict.

    Args:
        crash (Crash, optional): The cause; None if it is not reproducible.
        error (str): What the run has raised.
        iteration (int): The iteration of the step.
        model (str): What to call the model itself.
    """
    if crash is None:
        return [
            f'Iter {iteration}: {error}',
            _(
                'Verdict: not reproducible. The same batch raises nothing '
                'when the step is run again: a kernel, the driver or the '
                'hardware. CUDA_LAUNCH_BLOCKING=1 names the line; test this '
                'machine with `mmstable doctor`.'
            ),
        ]
    values, samples = crash.values, name_samples(crash.samples)
    what = f'{crash.message} ({samples})' if samples else crash.message
    verdict = _(
        'Verdict: the step raises the same error when it is run again: the '
        'code or the data is to blame, not the machine.'
    )
    if values is not None:
        what = _(
            _OUT_OF_RANGE[values.what],
            value=f'{values.value:g}',
            samples=samples or _('this batch'),
            low=values.low,
            high=values.high,
        )
        verdict = _(_OUT_OF_RANGE_ADVICE[values.what])
    first = _(
        'Iter {iteration}: {error} in the {phase} of {module} '
        '({lines: <- }): {what}',
        iteration=iteration,
        error=crash.error,
        phase=_(_PASSES[crash.phase]),
        module=crash.place.module or model,
        lines=[str(line) for line in crash.place.lines] or ['?'],
        what=what,
    )
    return [first, verdict]


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
    samples = name_samples(finding.samples)
    facts = dict(
        where=where,
        kind=culprit.kind,
        module=culprit.place.module or model,
        lines=[str(line) for line in culprit.place.lines] or ['?'],
        terms=_terms(finding.terms),
        samples=_('; in {samples}', samples=samples) if samples else '',
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


def name_samples(samples: Samples) -> str:
    """Name samples by index and file; '' if there are none."""
    if not samples.indices:
        return ''
    if len(samples.indices) == samples.total > 1:
        return _('all {count} samples', count=samples.total)
    named = [
        f'{index} ({name})' if name else str(index)
        for index, name in zip(samples.indices, samples.names)
    ]
    if len(named) > _MOST_SAMPLES:
        named = [*named[:_MOST_SAMPLES], '...']
    if samples.only_together:
        return _(
            'sample {samples}, but only together with others of the batch (a '
            'statistic of the batch couples them)',
            samples=named,
        )
    return _('sample {samples}', samples=named)


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
        if finding.verdict is Verdict.BAD_INPUT and not culprit.name:
            return _(
                'Verdict: {kind} from outside of torch, such as numpy or an '
                'extension in C, which entered in that line ({values}).',
                kind=culprit.kind,
                values=culprit.values,
            )
        if finding.verdict is Verdict.BAD_INPUT:
            return _(
                'Verdict: bad input data. {name} holds {values}. Look at the '
                'file, the labels and the data pipeline.',
                name=culprit.name,
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
    if finding.verdict is Verdict.FP16_UNDERFLOW:
        return _(
            'Verdict: fp16 underflow. The divisor or operand of {op} is 0 in '
            'float16 only: numbers below 6e-8 become 0 there, such as an '
            'epsilon of 1e-12. {advice} Or use an epsilon of at least 1e-6.',
            op=culprit.op,
            advice=_advice(culprit, model),
        )
    if finding.verdict is Verdict.EXPLODING:
        peaks = [f'{name or model} {peak:.3g}' for name, peak in finding.peaks]
        return _(
            'Verdict: exploding activations. Largest values by module: '
            '{peaks: -> }. The learning rate is too high, or the warm-up too '
            'short; clip gradients (clip_grad=dict(max_norm=...)).{rewrite}',
            peaks=peaks or ['?'],
            rewrite=' ' + _(_EXP) if culprit.name.startswith('exp') else '',
        )
    return _(
        'Verdict: {op} in {what} is undefined for its operand. {rewrite}',
        op=culprit.op,
        what=finding.terms or culprit.place.module or model,
        rewrite=_rewrite(finding.domain_error, culprit.node),
    )


def _rewrite(error: DomainError | None, node: str) -> str:
    """Return the usual rewrite of an operation.

    Args:
        error (DomainError, optional): Its error.
        node (str): In the backward pass, the autograd node.
    """
    if node.startswith(_ROOT_NODES) or 'Norm' in node:
        return _(_ROOT)
    if node.startswith(('Log', 'Xlogy')):
        return _(_LOG)
    name = 'undefined' if error is None else error.name
    return _(_REWRITES[name])


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
