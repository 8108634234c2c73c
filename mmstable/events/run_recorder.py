"""Turn what happens in one run into records of its event file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from mmengine.optim import BaseOptimWrapper

from mmstable.events import Culprit, Fault, Injection, Intervention, StepReport
from mmstable.events.event_log import EventLog
from mmstable.events.records import (
    GuardIntervention,
    Heartbeat,
    InjectedFault,
    Poisoned,
    ReplicasDiverged,
    RunEnd,
    ScaleChange,
    StepFault,
    WrapperSample,
)
from mmstable.events.samples import (
    IterationTimer,
    device_memory,
    host_memory,
    read_losses,
    read_lr,
    read_scale,
)
from mmstable.events.step_watch import StepWatch

_Outputs = Mapping[str, Any]


class RunRecorder:
    """The records of one run on one rank.

    Rank 0 writes everything; the others only the faults that they saw, into
    files that do not exist before. All of them ask their wrappers after
    every iteration, because ranks may have to agree on the answer.

    Args:
        log (EventLog): Where the records go.
        wrappers (Mapping): The optimizer wrappers by name.
        rank (int): Which process this is.
    """

    def __init__(
        self,
        log: EventLog,
        wrappers: Mapping[str, BaseOptimWrapper],
        rank: int,
    ) -> None:
        self.timer = IterationTimer()
        self._log = log
        self._wrappers = wrappers
        self._rank = rank
        self._watches = {
            name: StepWatch(name, wrapper)
            for name, wrapper in wrappers.items()
            if hasattr(wrapper, 'last_step')
        }
        if rank == 0:
            log.begin()

    def check_steps(self, iteration: int, outputs: _Outputs | None) -> None:
        """Record what is unusual about the steps of an iteration."""
        self.timer.count()
        for watch in self._watches.values():
            report = watch.new_step()
            if report is None:
                continue
            if report.fault is not None:
                self._write_fault(
                    iteration, watch.name, report, report.fault, outputs
                )
            change = watch.new_scale(report)
            if change is not None and self._rank == 0:
                self._log.write(
                    ScaleChange(iteration, time.time(), watch.name, *change)
                )

    def record_poison(
        self, iteration: int, culprits: tuple[Culprit, ...]
    ) -> None:
        """Record that a checkpoint was not saved."""
        if self._rank == 0:
            self._log.write(Poisoned(iteration, time.time(), culprits))

    def record_divergence(
        self,
        iteration: int,
        name: str,
        count: int,
        ranks: tuple[int, ...],
        action: str,
    ) -> None:
        """Record that ranks are not alike."""
        if self._rank == 0:
            self._log.write(
                ReplicasDiverged(
                    iteration, time.time(), name, count, ranks, action
                )
            )

    def record_intervention(self, done: Intervention) -> None:
        """Record what was done about a fault of the run."""
        if self._rank == 0:
            facts = {
                **{f.name: getattr(done, f.name) for f in fields(done)},
                'action': done.action.value,
                'fault': done.fault.value,
            }
            self._log.write(GuardIntervention(time=time.time(), **facts))

    def record_injection(self, fault: Injection) -> None:
        """Record what was broken on purpose; every rank tells of its own."""
        self._log.write(
            InjectedFault(
                iteration=fault.iteration,
                time=time.time(),
                rank=fault.rank,
                kind=fault.kind,
                target=fault.target,
                value=fault.value,
            )
        )

    def sample(
        self,
        iteration: int,
        outputs: _Outputs | None,
        device: torch.device,
    ) -> None:
        """Record a heartbeat."""
        if self._rank != 0:
            return
        allocated, peak = device_memory(device)
        self._log.write(
            Heartbeat(
                iteration=iteration,
                time=time.time(),
                losses=read_losses(outputs),
                wrappers={
                    name: self._sample_wrapper(name, wrapper)
                    for name, wrapper in self._wrappers.items()
                },
                iteration_time=self.timer.lap(),
                host_memory=host_memory(),
                device_memory=allocated,
                device_memory_peak=peak,
            )
        )

    def end(
        self, iteration: int, reason: str, traceback: str | None = None
    ) -> None:
        """Record the end of the run."""
        if self._rank == 0:
            self._log.write(
                RunEnd(
                    iteration=iteration,
                    time=time.time(),
                    reason=reason,
                    wrappers={
                        name: watch.totals()
                        for name, watch in self._watches.items()
                    },
                    lost_events=self._log.lost,
                    traceback=traceback,
                )
            )
        self._log.close()

    def _sample_wrapper(
        self, name: str, wrapper: BaseOptimWrapper
    ) -> WrapperSample:
        watch = self._watches.get(name)
        return WrapperSample(
            lr=read_lr(wrapper),
            grad_norm=None if watch is None else watch.grad_norm,
            loss_scale=read_scale(wrapper),
        )

    def _write_fault(
        self,
        iteration: int,
        name: str,
        report: StepReport,
        fault: Fault,
        outputs: _Outputs | None,
    ) -> None:
        self._log.write(
            StepFault(
                iteration=iteration,
                time=time.time(),
                wrapper=name,
                rank=self._rank,
                outcome=report.outcome.value,
                fault=fault.value,
                loss_scale=report.loss_scale,
                next_loss_scale=report.next_loss_scale,
                culprits=report.culprits,
                dropped_micro_batches=report.dropped_micro_batches,
                losses=read_losses(outputs),
                loss_terms=report.loss_terms,
                origins=report.origins,
                copied_from=report.copied_from,
            )
        )
