"""What an investigation has found, in words."""

from __future__ import annotations

import math

from mmstable.events import Fault
from mmstable.events.number_records import Verdict
from mmstable.forensics.birth import BACKWARD, Birth, External
from mmstable.forensics.finding import Finding
from mmstable.forensics.samples import Samples
from mmstable.messages import say

_MOST_SAMPLES = 8
# The largest number of float16.
_FLOAT16 = 65504.0


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
        return say('forensics.nothing', where=where, fault=fault)
    if fault is Fault.POISONED and isinstance(culprit, External):
        return say(
            'forensics.poisoned',
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
        return say(
            'forensics.external',
            source=_source(culprit),
            values=culprit.values,
            **facts,
        )
    facts['what'] = _what(finding, culprit)
    if culprit.phase == BACKWARD:
        return say('forensics.backward', node=culprit.node, **facts)
    return say('forensics.forward', **facts)


def _source(culprit: External) -> str:
    source = say(f'forensics.source.{culprit.source}')
    return f'{source} {culprit.name}'.rstrip()


def _what(finding: Finding, culprit: Birth) -> str:
    point = finding.point
    if point is not None:
        operand = point.operand or culprit.output
        return say(
            f'forensics.point.{point.name}', op=culprit.op, operand=operand
        )
    return say(
        'forensics.too_large',
        op=culprit.op,
        peak=max((one.peak for one in culprit.inputs), default=0.0),
        dtype=culprit.output.dtype,
    )


def _terms(terms: tuple[str, ...]) -> str:
    return say('forensics.terms', terms=terms) if terms else ''


def _samples(samples: Samples) -> str:
    if not samples.indices:
        return ''
    if len(samples.indices) == samples.total > 1:
        return say('forensics.all_samples', count=samples.total)
    named = [
        f'{index} ({name})' if name else str(index)
        for index, name in zip(samples.indices, samples.names)
    ]
    if len(named) > _MOST_SAMPLES:
        named = [*named[:_MOST_SAMPLES], '...']
    if samples.only_together:
        return say('forensics.together', samples=named)
    return say('forensics.sample', samples=named)


def _verdict(
    finding: Finding,
    model: str,
    since: int | None,
    loss_scale: float,
    has_moved: bool,
) -> str:
    culprit = finding.culprit
    if finding.verdict is Verdict.NOT_EXAMINED:
        return say('forensics.verdict.not_examined', reason=finding.reason)
    if finding.verdict is Verdict.NOT_REPRODUCED or culprit is None:
        if has_moved:
            return say('forensics.weights_moved')
        return say('forensics.verdict.not_reproduced')
    if isinstance(culprit, External):
        if finding.verdict is Verdict.BAD_INPUT:
            return say(
                'forensics.verdict.bad_input',
                name=culprit.name or say('forensics.source.outside'),
                values=culprit.values,
            )
        late = since is not None
        return say(
            'forensics.verdict.bad_weights',
            name=culprit.name,
            values=culprit.values,
            since=say('forensics.since', iteration=since) if late else '',
        )
    if finding.verdict is Verdict.FP16_OVERFLOW:
        return say(
            'forensics.verdict.fp16_overflow',
            largest=_largest(finding, culprit, loss_scale),
            advice=_advice(culprit, model),
        )
    if finding.verdict is Verdict.EXPLODING:
        peaks = [f'{name or model} {peak:.3g}' for name, peak in finding.peaks]
        return say('forensics.verdict.exploding', peaks=peaks or ['?'])
    return say(
        'forensics.verdict.singular_point',
        what=finding.terms or culprit.place.module or model,
        op=culprit.op,
    )


def _advice(culprit: Birth, model: str) -> str:
    if culprit.place.module:
        return say('forensics.keep_module', module=culprit.place.module)
    # No setting keeps the model itself out of autocast.
    return say('forensics.keep_line', model=model)


def _largest(finding: Finding, culprit: Birth, loss_scale: float) -> str:
    value = finding.largest
    if not value:
        return ''
    if culprit.phase == BACKWARD:
        return say(
            'forensics.largest_backward',
            scale=loss_scale,
            value=value,
            fits=2.0 ** math.floor(math.log2(_FLOAT16 * loss_scale / value)),
        )
    return say('forensics.largest', value=value)
