"""What is said about a step, in English."""

from __future__ import annotations

from mmstable.events import Fault, StepReport
from mmstable.messages.wording import Wording, examples, modules_of

_ADVICE = {
    Fault.OVERFLOW: (
        'Gradients overflow fp16 although the loss scale is backing off. Do '
        'NOT raise loss_scale: a larger one overflows sooner. Lower the '
        'learning rate or lengthen the warm-up, clip gradients '
        '(clip_grad=dict(max_norm=...)), or train in bfloat16, which has the '
        'range of float32.'
    ),
    Fault.NAN_LOSS: (
        'The loss itself is NaN or Inf before it is scaled, so no loss_scale '
        'can help. Check the data of these iterations (NaN or Inf in inputs '
        'or targets, empty targets, log(0), division by 0); run the loss in '
        "float32 (fp32_modules=['...']); lower the learning rate or lengthen "
        'the warm-up.'
    ),
    Fault.NAN_GRAD: (
        'The loss is finite, but its gradient is not, and no loss_scale is '
        'to blame (it is off, or at its floor). Look at the named modules '
        'for sqrt or norm at 0, division by 0, masked softmax; run them in '
        "float32 (fp32_modules=['...']); lower the learning rate or lengthen "
        'the warm-up; with bfloat16, try float16 or float32.'
    ),
    Fault.SPIKE: (
        'Loss or gradient norm keep jumping far above their recent level. '
        'Look at the data of these iterations (wrong labels, outliers); clip '
        'gradients (clip_grad=dict(max_norm=...)); lower the learning rate '
        'or lengthen the warm-up.'
    ),
}


_LATE = 'reduced_gradient'


class English(Wording):
    """English lines; they can be searched for ``loss_scale`` and ``NaN``."""

    def enabled(self, short_name: str, loss_scale: float) -> str | None:
        """The wrapper has said so already."""
        return None

    def bad_step(self, where: str, report: StepReport, scaled: bool) -> str:
        """One line about one bad step."""
        return (
            f'{where}: {self._what(report)}, {_done(report)}, '
            f'{_scale(report, scaled)}{_origins(report)}'
        )

    def _what(self, report: StepReport) -> str:
        if report.fault is Fault.NAN_LOSS:
            dropped = report.dropped_micro_batches
            among = f' in {_micro_batches(dropped)}' if dropped else ''
            terms = ', '.join(report.loss_terms)
            which = f' ({terms})' if terms not in ('', 'loss') else ''
            return f'loss is NaN or Inf{which}{among}'
        if report.fault is Fault.SPIKE:
            return f'spike (gradient norm {report.grad_norm:.4g})'
        names = examples(report.culprits, self.max_names)
        modules = modules_of(report.culprits)
        kinds = {culprit.kind for culprit in report.culprits}
        kind = 'NaN' if 'NaN' in kinds else 'Inf'
        note = '' if kind == 'NaN' else ', no NaN'
        listed = ', '.join(map(repr, names))
        subject, verb = (
            ('gradient', 'is') if len(names) == 1 else ('gradients', 'are')
        )
        return (
            f'{subject} of {listed} {verb} {kind} '
            f'({_count(len(report.culprits), "parameter")} in '
            f'{_count(len(modules), "module")}{note})'
        )

    def left_out(self, count: int, first: int, last: int) -> str:
        """That some bad steps were not printed."""
        return (
            f'{_count(count, "more bad step")} (NaN or Inf) between Iter '
            f'{first} and Iter {last} not printed; loss_scale and culprits '
            'of each are in the event file'
        )

    def too_many(
        self, bad: int, seen: int, in_a_row: int, report: StepReport
    ) -> str:
        """That this is no longer normal, and what to do."""
        fault = report.fault or Fault.NAN_GRAD
        return (
            f'Iter {report.iteration}: {bad} of the last {seen} steps were '
            f'bad ({100 * bad / seen:.1f} %), {in_a_row} in a row; healthy '
            f'training stays below 5 %. {_ADVICE[fault]}'
        )

    def observes_only(self, wrapper: str) -> str:
        """That nothing is protected."""
        return (
            f'GradNanLoggerHook can only observe {wrapper}: a NaN is named, '
            'but not kept from the weights. Use '
            "type='mmstable.SafeOptimWrapper' or "
            "'mmstable.SafeAmpOptimWrapper' to be protected."
        )


def _done(report: StepReport) -> str:
    if report.applied and report.fault is Fault.NAN_LOSS:
        return 'left out of the step'
    return 'WEIGHTS UPDATED WITH IT' if report.applied else 'step skipped'


def _scale(report: StepReport, scaled: bool) -> str:
    if not scaled:
        return 'no loss_scale in use'
    if report.loss_scale == report.next_loss_scale:
        return f'loss_scale stays {report.loss_scale}'
    return f'loss_scale {report.loss_scale} -> {report.next_loss_scale}'


def _origins(report: StepReport) -> str:
    if not report.origins:
        return ''
    first = report.origins[0]
    others = len(report.origins) - 1
    more = f' and {_count(others, "other rank")}' if others else ''
    late = ', after the all-reduce' if first.where == _LATE else ''
    copied = ''
    if report.copied_from is not None:
        copied = (
            f'; it had missed the update before, and has the state of rank '
            f'{report.copied_from} now'
        )
    return (
        f'; began on rank {first.rank} ({first.node}, {first.device}{late})'
        f'{more}{copied}'
    )


def _micro_batches(number: int) -> str:
    return '1 micro-batch' if number == 1 else f'{number} micro-batches'


def _count(number: int, noun: str) -> str:
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'
