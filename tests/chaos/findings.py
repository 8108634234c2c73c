"""Was every injected fault found, and was nothing else?

Each process of a run has an event file. In it, whatever was found after a
fault, and before the next one, must be what that fault leads to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmstable.report import InjectedFault, RunEnd, StepFault, read_events
from tests.some_files import some_files

_TOLD = ('step_fault', 'poisoned', 'intervention', 'out_of_memory')
_POISON = ('weight', 'buffer', 'state')


@dataclass
class Findings:
    """What the event files of a run say about its faults."""

    injected: int = 0
    found: int = 0
    told: int = 0
    right: int = 0
    mistakes: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.found / self.injected

    @property
    def precision(self) -> float:
        return self.right / self.told


def judge_run(folder: Path) -> Findings:
    """Go through all event files below a folder."""
    findings = Findings()
    for path in some_files(folder, '**/events*.jsonl'):
        events = read_events(path)
        _judge_file(list(events), findings)
        assert events.skipped == 0, events.reasons
    return findings


def _judge_file(events: list[Any], findings: Findings) -> None:
    groups: list[tuple[Any, list[Any]]] = [(None, [])]
    for event in events:
        if isinstance(event, InjectedFault):
            if groups[-1][0] is not None and _same(groups[-1][0], event):
                continue
            groups.append((event, []))
        elif event.event in _TOLD or (
            isinstance(event, RunEnd) and event.reason != 'finished'
        ):
            groups[-1][1].append(event)
    for fault, told in groups:
        _judge(fault, told, findings)


def _same(one: InjectedFault, other: InjectedFault) -> bool:
    return (one.iteration, one.kind) == (other.iteration, other.kind)


def _judge(fault: Any, told: list[Any], findings: Findings) -> None:
    findings.told += len(told)
    if fault is None:
        findings.mistakes += [f'told of nothing: {event}' for event in told]
        return
    findings.injected += 1
    right, is_found = _compare(fault, told)
    findings.right += len(right)
    findings.found += is_found
    if not is_found:
        findings.mistakes.append(f'not found: {fault}, but {told}')
    findings.mistakes += [
        f'{fault} does not explain {event}'
        for event in told
        if event not in right
    ]


def _compare(fault: InjectedFault, told: list[Any]) -> tuple[list[Any], bool]:
    """What of this fits the fault, and whether that is all it takes."""
    value, _, what = fault.kind.partition('_')
    if what in _POISON:
        return _compare_poison(fault, told)
    if value == 'spike':
        right = [e for e in told if _is_spike(e, fault)]
        return right, len(right) == 2
    if what in ('grad', 'loss', 'input'):
        right = [e for e in told if _is_bad_step(e, fault, what)]
        return right, len(right) == 1
    if fault.kind == 'oom':
        right = [e for e in told if _is_survived(e, fault)]
        return right, len(right) == 1
    if fault.kind == 'hang':
        # Nobody watches the clock.
        return [], True
    right = [e for e in told if _is_end(e, fault)]
    # A process that is killed leaves no line.
    wanted = 0 if fault.value == 'SIGKILL' else 1
    return right, len(right) == wanted


def _is_bad_step(event: Any, fault: InjectedFault, what: str) -> bool:
    if not isinstance(event, StepFault) or event.outcome != 'skipped':
        return False
    if event.iteration != fault.iteration:
        return False
    if what == 'grad':
        # To the wrapper, a scale that can shrink is what is wrong.
        scaled = event.loss_scale > 1.0
        name = 'overflow' if scaled else 'nan_grad'
        culprits = ((fault.target, fault.value),)
        return event.fault == name and event.culprits == culprits
    return event.fault == 'nan_loss' and event.loss_terms == ('loss_seg',)


def _is_survived(event: Any, fault: InjectedFault) -> bool:
    return (
        event.event == 'out_of_memory'
        and event.iteration == fault.iteration
        and event.rung not in ('skip', 'stop')
    )


def _is_spike(event: Any, fault: InjectedFault) -> bool:
    return (
        event.event in ('step_fault', 'intervention')
        and event.fault == 'spike'
        and event.iteration == fault.iteration
        and (
            event.event == 'step_fault'
            or event.subject == 'grad_norm'
            or fault.kind == 'spike_loss'
        )
    )


def _compare_poison(
    fault: InjectedFault, told: list[Any]
) -> tuple[list[Any], bool]:
    section = 'optimizer' if fault.kind.endswith('state') else 'state_dict'
    name = f'{section}.{fault.target}'
    right, rollbacks = [], 0
    for event in told:
        if event.event == 'step_fault':
            # What a poisoned run looks like from outside.
            if event.fault == 'nan_loss':
                right.append(event)
        elif event.event in ('poisoned', 'intervention') and name in [
            culprit.name for culprit in event.culprits
        ]:
            right.append(event)
            rollbacks += event.event == 'intervention'
    return right, rollbacks == 1


def _is_end(event: Any, fault: InjectedFault) -> bool:
    if not isinstance(event, RunEnd):
        return False
    reason = 'stopped' if fault.kind == 'signal' else 'exception'
    return event.reason == reason and fault.value in (event.traceback or '')
