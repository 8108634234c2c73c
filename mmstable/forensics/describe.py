"""Describe in words why a step was bad, or why it raised an error."""

from __future__ import annotations

import math

from mmstable.events import Fault
from mmstable.events.records import Verdict
from mmstable.forensics.domain import usual_rewrite
from mmstable.forensics.find_cause import Finding, Samples
from mmstable.forensics.trace import BACKWARD, Origin
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
_EXP = N_(
    'Use softplus instead of log(1 + exp(x)), logsumexp or log_softmax '
    'instead of sums of exp; or clamp before it.'
)
# What a value is that an operation does not accept, and the verdict.
_OUT_OF_RANGE = {
    'label': (
        N_('label {value} of {samples}; classes are {low}..{high}'),
        N_(
            'Verdict: a label that is no class. Correct the annotation, '
            'num_classes or ignore_index; `mmstable check-data` lists all '
            'such samples.'
        ),
    ),
    'index': (
        N_('index {value} of {samples}; allowed is {low}..{high}'),
        N_(
            'Verdict: an index out of range. Look at the data it is computed '
            'from, and at the size of the tensor it is used with.'
        ),
    ),
    'probability': (
        N_('value {value} of {samples} is not in {low}..{high}'),
        N_(
            'Verdict: a probability outside 0..1, or NaN. Use '
            'BCEWithLogitsLoss instead of sigmoid and BCELoss.'
        ),
    ),
}
_PASSES = {'forward': N_('forward pass'), 'backward': N_('backward pass')}


def describe(
    finding: Finding,
    iteration: int,
    fault: Fault,
    model: str,
    loss_scale: float = 1.0,
) -> list[str]:
    """Describe where it began, and the verdict, in two lines.

    Args:
        finding (Finding): What was found.
        iteration (int): The iteration of the bad step.
        fault (Fault): Its fault.
        model (str): What to call the model itself.
        loss_scale (float): The scale of the step. Defaults to 1.0.
    """
    if fault is Fault.CRASH:
        return _describe_crash(finding, iteration, model)
    first = _begin(finding, f'Iter {iteration}', fault, model)
    notes = ''.join(f' ({note})' for note in finding.notes)
    return [first, _verdict(finding, model, loss_scale) + notes]


def _describe_crash(finding: Finding, iteration: int, model: str) -> list[str]:
    culprit, values = finding.culprit, finding.values
    if finding.verdict is Verdict.NOT_EXAMINED and not finding.reason:
        return [finding.message]
    if finding.verdict is Verdict.NOT_EXAMINED:
        return [finding.message, _not_examined(finding)]
    if culprit is None:
        return [
            f'Iter {iteration}: {finding.message}',
            _(
                'Verdict: not reproducible. The same batch raises nothing '
                'when the step is run again: a kernel, the driver or the '
                'hardware. CUDA_LAUNCH_BLOCKING=1 names the line; test this '
                'machine with `mmstable doctor`.'
            ),
        ]
    samples, what = name_samples(finding.samples), finding.message
    if samples:
        what = f'{what} ({samples})'
    verdict = _(
        'Verdict: the step raises the same error when it is run again: the '
        'code or the data is to blame, not the machine.'
    )
    if values is not None:
        text, advice = _OUT_OF_RANGE[values.what]
        verdict = _(advice)
        what = _(
            text,
            value=f'{values.value:g}',
            samples=samples or _('this batch'),
            low=values.low,
            high=values.high,
        )
    first = _(
        'Iter {iteration}: {error} in the {phase} of {module} '
        '({lines: <- }): {what}',
        iteration=iteration,
        error=culprit.kind,
        phase=_(_PASSES[culprit.phase]),
        module=culprit.place.module or model,
        lines=[str(line) for line in culprit.place.lines] or ['?'],
        what=what,
    )
    return [first, verdict]


def _begin(finding: Finding, where: str, fault: Fault, model: str) -> str:
    culprit = finding.culprit
    if culprit is None:
        return _('{where}: {fault}, cause not found', where=where, fault=fault)
    samples = name_samples(finding.samples)
    facts = dict(
        where=where,
        kind=culprit.kind,
        module=culprit.place.module or model,
        lines=[str(line) for line in culprit.place.lines] or ['?'],
        terms=_('; reached {terms}', terms=finding.terms)
        if finding.terms
        else '',
        samples=_('; in {samples}', samples=samples) if samples else '',
        values=culprit.output,
        node=culprit.node,
        source='',
        what='',
    )
    if culprit.source:
        source = _(_SOURCES[culprit.source])
        facts['source'] = f'{source} {culprit.name}'.rstrip()
        if fault is Fault.POISONED:
            return _(
                '{where}: {kind} in {source} ({values}), so the state was '
                'not saved',
                **facts,
            )
        return _(
            '{where}: {kind} was in {source} before the step ({values}), '
            'first used in {module} ({lines: <- }){terms}{samples}',
            **facts,
        )
    if finding.domain_error is not None:
        facts['what'] = finding.domain_error.describe(culprit)
    else:
        facts['what'] = _(
            '{op} of values up to {peak:.4g} is beyond {dtype}',
            op=culprit.op,
            peak=max((one.peak for one in culprit.inputs), default=0.0),
            dtype=culprit.output.dtype,
        )
    if culprit.phase == BACKWARD:
        return _(
            '{where}: first {kind} in the backward pass of {module} '
            '({lines: <- }), {node}: {what}{terms}{samples}',
            **facts,
        )
    return _(
        '{where}: first {kind} in {module} ({lines: <- }): '
        '{what}{terms}{samples}',
        **facts,
    )


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


def _not_examined(finding: Finding) -> str:
    return _('Verdict: not examined, {reason}.', reason=finding.reason)


def _verdict(finding: Finding, model: str, loss_scale: float) -> str:
    culprit, verdict = finding.culprit, finding.verdict
    if verdict is Verdict.NOT_EXAMINED:
        return _not_examined(finding)
    if culprit is None and finding.has_moved:
        return _(
            'Verdict: not reproducible with the weights of now. An '
            'optimizer has changed them in that iteration, so those of '
            'before are gone.'
        )
    if culprit is None:
        return _(
            'Verdict: not reproducible. The same batch with the same weights '
            'and random numbers is finite: hardware, or an operation that is '
            'not deterministic. Test this machine with `mmstable doctor`.'
        )
    facts = dict(name=culprit.name, kind=culprit.kind, values=culprit.output)
    if verdict is Verdict.BAD_INPUT and not culprit.name:
        return _(
            'Verdict: {kind} from outside of torch, such as numpy or an '
            'extension in C, which entered in that line ({values}).',
            **facts,
        )
    if verdict is Verdict.BAD_INPUT:
        return _(
            'Verdict: bad input data. {name} holds {values}. Look at the '
            'file, the labels and the data pipeline.',
            **facts,
        )
    if verdict is Verdict.BAD_WEIGHTS:
        since = N_(', since iteration {iteration} at the latest')
        return _(
            'Verdict: bad weights. {name} holds {values}{since}. Go back to '
            'a checkpoint from before; every batch will fail with these.',
            since=''
            if finding.since is None
            else _(since, iteration=finding.since),
            **facts,
        )
    if verdict is Verdict.FP16_OVERFLOW:
        return _(
            'Verdict: fp16 overflow. The same batch is finite in '
            'float32{largest}. {advice}',
            largest=_largest(finding, culprit, loss_scale),
            advice=_advice(culprit, model),
        )
    if verdict is Verdict.FP16_UNDERFLOW:
        return _(
            'Verdict: fp16 underflow. The divisor or operand of {op} is 0 in '
            'float16 only: numbers below 6e-8 become 0 there, such as an '
            'epsilon of 1e-12. {advice} Or use an epsilon of at least 1e-6.',
            op=culprit.op,
            advice=_advice(culprit, model),
        )
    if verdict is Verdict.EXPLODING:
        peaks = [f'{name or model} {peak:.3g}' for name, peak in finding.peaks]
        return _(
            'Verdict: exploding activations. Largest values by module: '
            '{peaks: -> }. The learning rate is too high, or the warm-up too '
            'short; clip gradients (clip_grad=dict(max_norm=...)).{rewrite}',
            peaks=peaks or ['?'],
            rewrite=' ' + _(_EXP)
            if culprit.function.startswith(('exp', 'cosh', 'sinh'))
            else '',
        )
    return _(
        'Verdict: {op} in {what} is undefined for its operand. {rewrite}',
        op=culprit.op,
        what=finding.terms or culprit.place.module or model,
        rewrite=usual_rewrite(finding.domain_error, culprit.node),
    )


def _advice(culprit: Origin, model: str) -> str:
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


def _largest(finding: Finding, culprit: Origin, loss_scale: float) -> str:
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
