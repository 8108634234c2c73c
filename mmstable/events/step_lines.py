"""A bad step as one log line, and the rate of bad steps of an optimizer."""

from __future__ import annotations

from collections import Counter, deque

from mmstable.events.records import Culprit, Fault, StepReport
from mmstable.events.saved import Saved
from mmstable.io.schema import (
    boolean,
    count,
    list_of,
    one_of,
    optional,
    tuple_of,
    within,
)
from mmstable.messages import N_, _

LOWER_THE_RATE = N_('lower the learning rate or lengthen the warm-up')
# What to change besides, by fault.
ADVICE = {
    'overflow': N_(
        'do NOT raise loss_scale, because a larger one overflows sooner: '
        'clip gradients, train in bfloat16 '
        "(optim_wrapper.dtype='bfloat16'), or keep the named modules in "
        'float32 (optim_wrapper.fp32_modules)'
    ),
    'nan_loss': N_(
        'look at the data of these iterations: NaN or Inf in inputs or '
        'targets, empty targets, log(0), division by 0; no loss_scale can '
        'help'
    ),
    'nan_grad': N_(
        'look at the named modules for sqrt or norm at 0, division by 0, '
        'masked softmax; keep them in float32 (optim_wrapper.fp32_modules)'
    ),
    'poisoned': N_(
        'find out what writes to the named entries outside the optimizer: a '
        'custom hook, a custom layer, faulty memory of the device'
    ),
    'spike': N_(
        'look at the data of these iterations: wrong labels, outliers, a '
        'mixture of datasets'
    ),
    'diverged': N_(
        'look at the newest held steps in the event file: their samples may '
        'have thrown the run'
    ),
    'transient': N_('test this machine: mmstable doctor'),
    'dead': N_(
        'choose another initialization, or normalization before each block'
    ),
    'oom': N_(
        'take a smaller batch_size with accumulative_counts, smaller crops, '
        'or --memory balanced; mmstable estimate CONFIG tells what fits'
    ),
}


def describe_step(
    where: str, report: StepReport, scaled: bool, max_names: int
) -> str:
    """Describe a bad step and its outcome in one line.

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
    if report.fault in (Fault.SPIKE, Fault.TRANSIENT):
        loss = ''
        if report.loss is not None:
            loss = _('loss {loss:.4g}, ', loss=report.loss)
        return _(
            '{fault} ({loss}gradient norm {norm:.4g})',
            fault=report.fault.value,
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
    if report.culprits:
        return _('WEIGHTS UPDATED WITH IT')
    return _('step applied because all gradients are finite')


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


class StepStatistics(Saved):
    """The recent bad steps, and whether they are too many.

    A step that was applied without some of its micro-batches counts by their
    share.

    Overflows while the loss scale settles raise no alarm: those at the start
    of a run, and the first one after the scale has grown. Steps are numbered
    and only bad ones are kept, so a good step costs nothing.

    Args:
        window (int): Number of recent steps to judge by.
        max_rate (float): The largest share of bad steps without alarm.
        max_consecutive_bad (int): Bad steps in a row that raise an alarm.
        calibration_steps (int): Applied steps before which an overflow
            belongs to the start of the run.
        least (int): Steps needed before their share is judged. Defaults to
            20.
    """

    state = dict(
        steps=count,
        bad=list_of(
            tuple_of(
                count,
                optional(one_of(*(fault.value for fault in Fault))),
                within(0, 1),
            )
        ),
        has_grown=boolean,
    )

    def __init__(
        self,
        window: int,
        max_rate: float,
        max_consecutive_bad: int,
        calibration_steps: int,
        least: int = 20,
    ) -> None:
        self._window, self._least = window, least
        self._max_rate = max_rate
        self._max_consecutive_bad = max_consecutive_bad
        self._calibration_steps = calibration_steps
        self.steps = 0
        # Numbers of bad steps, the fault if it raises an alarm, and the share
        # of the step that was lost.
        self.bad: deque[tuple[int, str | None, float]] = deque()
        self.has_grown = False

    def add(self, report: StepReport, applied: int) -> bool:
        """Take account of a step.

        Args:
            report (StepReport): Its report.
            applied (int): Steps applied so far, over the whole run.

        Returns:
            bool: Whether it is bad, and not part of finding a scale.
        """
        self.steps += 1
        bad = self.bad
        if bad and bad[0][0] <= self.steps - self._window:
            bad.popleft()
        is_searching = False
        if report.fault is Fault.OVERFLOW:
            is_searching = self.has_grown or applied < self._calibration_steps
            self.has_grown = False
        elif report.next_loss_scale > report.loss_scale:
            self.has_grown = True
        if report.fault is None:
            return False
        fault = None if is_searching else report.fault.value
        bad.append((self.steps, fault, report.bad_share))
        return not is_searching

    @property
    def rate(self) -> float:
        """The share of bad steps of any kind."""
        if not self.bad:
            return 0.0
        lost = sum(share for *__, share in self.bad)
        return lost / min(self.steps, self._window)

    @property
    def in_a_row(self) -> int:
        """Alarming steps, by more than half, since the last other one."""
        count = 0
        for number, fault, share in reversed(self.bad):
            is_bad = fault is not None and share > 0.5
            if not is_bad or number != self.steps - count:
                break
            count += 1
        return count

    @property
    def are_too_many_in_a_row(self) -> bool:
        """Whether nothing but bad steps has come for long."""
        return self.in_a_row >= self._max_consecutive_bad

    @property
    def is_too_high(self) -> bool:
        """Whether this is no longer what healthy training does."""
        if self.are_too_many_in_a_row:
            return True
        bad, seen = self.counts()
        return seen >= self._least and bad > self._max_rate * seen

    @property
    def is_hopeless(self) -> bool:
        """Whether most of the recent steps are bad."""
        bad, seen = self.counts()
        return seen >= 2 * self._max_consecutive_bad and 2 * bad > seen

    def counts(self) -> tuple[float, int]:
        """Alarming steps, and all that are looked back at."""
        bad = sum(share for _number, fault, share in self.bad if fault)
        return bad, min(self.steps, self._window)

    def describe(self) -> str:
        """How many of the recent steps were bad."""
        bad, seen = self.counts()
        return _(
            '{bad:.4g} of the last {seen} steps were bad, {consecutive} in a '
            'row',
            bad=bad,
            seen=seen,
            consecutive=self.in_a_row,
        )

    def commonest_fault(self) -> Fault:
        """What most of the alarming steps suffer from."""
        counts = Counter(one[1] for one in self.bad if one[1])
        return Fault(counts.most_common(1)[0][0])

    def start_over(self) -> None:
        """Forget the recent steps."""
        self.bad.clear()
        self.steps = 0
