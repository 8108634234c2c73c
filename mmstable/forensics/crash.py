"""Find why a training step raises an error, by running it again.

On an accelerator a bad label ends in "device-side assert triggered", some
kernels later, and takes the device with it. The same batch on a CPU raises at
the line to blame, where operation, value and sample can be read.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten

from mmstable.batch import batch_size
from mmstable.events.records import Verdict
from mmstable.forensics.find_cause import (
    CauseFinder,
    Finding,
    NotExamined,
    blame_samples,
)
from mmstable.forensics.frames import (
    Range,
    measure,
    module_names,
    place_of,
)
from mmstable.forensics.replay import (
    CollectiveRefused,
    StepInputs,
    replay_step,
)
from mmstable.forensics.trace import FORWARD, Origin, OriginTracer, OutOfTime
from mmstable.torch_internals import is_operator

# What a CPU kernel or an extension of CUDA raises where a GPU is needed.
_NEEDS_DEVICE = ("for 'CPU'", 'not compiled with', 'NVIDIA', 'CUDA backend')
_LONGEST = 500


@dataclass(frozen=True)
class OutOfRange:
    """Values that an operation does not accept.

    Args:
        what (str): 'label', 'index' or 'probability'.
        values (Tensor): All values that it was given.
        low (int): The smallest allowed one.
        high (int): The largest allowed one.
        ignored (int, optional): Another allowed one. Defaults to None.
    """

    what: str
    values: Tensor
    low: int
    high: int
    ignored: int | None = None

    @property
    def bad(self) -> Tensor:
        """The mask of the values that are not accepted."""
        # NaN is neither below nor above.
        mask = ~((self.values >= self.low) & (self.values <= self.high))
        if self.ignored is not None:
            mask &= self.values != self.ignored
        return mask

    @property
    def value(self) -> float:
        """The first one of them."""
        return float(self.values[self.bad].flatten()[0].item())

    def rows(self, size: int) -> tuple[int, ...]:
        """Their indices in the first dimension, if it has this size."""
        bad = self.bad
        if not bad.dim() or len(bad) != size:
            return ()
        rows = bad.reshape(size, -1).any(1).nonzero()
        return tuple(rows.flatten().tolist())


def _labels(
    logits: Tensor,
    target: Tensor,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> list[OutOfRange]:
    classes = logits.shape[1 if logits.dim() > 1 else 0]
    return [OutOfRange('label', target, 0, classes - 1, ignore_index)]


def _rows_of_table(
    table: Tensor, index: Tensor, *rest: Any
) -> list[OutOfRange]:
    return [OutOfRange('index', index, 0, len(table) - 1)]


def _along(
    values: Tensor, dim: int, index: Tensor, *rest: Any
) -> list[OutOfRange]:
    return [OutOfRange('index', index, 0, values.shape[dim] - 1)]


def _subscripts(
    values: Tensor, indices: Sequence[Tensor | None], *rest: Any
) -> list[OutOfRange]:
    return [
        OutOfRange('index', one, -size, size - 1)
        for one, size in zip(indices, values.shape)
        if one is not None and one.dtype is not torch.bool
    ]


def _probabilities(*given: Any) -> list[OutOfRange]:
    tensors = [one for one in given[:2] if isinstance(one, Tensor)]
    return [OutOfRange('probability', one, 0, 1) for one in tensors]


_ACCEPTED: dict[str, Callable[..., list[OutOfRange]]] = {
    **dict.fromkeys(('nll_loss_forward', 'nll_loss2d_forward'), _labels),
    'embedding': _rows_of_table,
    **dict.fromkeys(
        ('index_select', 'gather', 'scatter', 'scatter_add', 'index_add'),
        _along,
    ),
    **dict.fromkeys(('index', 'index_put'), _subscripts),
    'binary_cross_entropy': _probabilities,
}


def out_of_range(name: str, args: Sequence[Any]) -> OutOfRange | None:
    """Find the values that an operation refuses; None if all are accepted.

    Args:
        name (str): The operation, as 'gather'.
        args (Sequence): Its arguments.
    """
    find = _ACCEPTED.get(name.strip('_').removesuffix('_impl'))
    found = [] if find is None else find(*args)
    return next((one for one in found if bool(one.bad.any())), None)


class _CallTracer(OriginTracer):
    """Remember the operation that raises an error."""

    failed: tuple[BaseException, Origin, Sequence[Any]] | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._clock is not None:
            self._clock.check()
        if not is_operator(func):
            return func(*args, **(kwargs or {}))
        here = self._note_place()
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            phase, place, node = self.phase_at(here)
            ranges = [
                measure(one)
                for one in tree_flatten(args)[0]
                if isinstance(one, Tensor)
            ]
            origin = Origin(
                0,
                type(error).__name__,
                place,
                Range(None, '', 0),
                phase,
                str(func),
                tuple(ranges),
                node=node,
            )
            self.failed = error, origin, args
            raise


class CrashFinder(CauseFinder):
    """Search for the cause of an error of a training step.

    Args:
        inputs (StepInputs): The step.
        seconds (float): Time limit. Defaults to 60.0.
        dtype (str, optional): What to autocast to instead of that of the
            step. Defaults to None.
    """

    def __init__(
        self,
        inputs: StepInputs,
        seconds: float = 60.0,
        dtype: str | None = None,
    ) -> None:
        super().__init__([inputs], seconds=seconds)
        self._dtype = dtype

    def search(self) -> Finding:
        """Run the step again, and find the samples that make it fail."""
        finding = self._fail(self.inputs)
        if finding is None:
            return Finding(Verdict.NOT_REPRODUCED)
        culprit, values = finding.culprit, finding.values
        if culprit is None:
            return finding
        if any(words in finding.message for words in _NEEDS_DEVICE):
            raise NotExamined(f'{culprit.kind}: {finding.message}')
        size = batch_size(self.inputs.batch)
        rows = () if values is None else values.rows(size)

        def fails(samples: list[int]) -> bool:
            other = self._fail(self.inputs.only(samples))
            # BatchNorm refuses a single sample, with another error.
            if len(samples) == 1 and other and not _is_same(finding, other):
                other = self._fail(self.inputs.only(samples * 2))
            return other is not None and _is_same(finding, other)

        try:
            finding.samples = blame_samples(
                self.inputs, replace(culprit, rows=rows), fails
            )
        except OutOfTime:
            return finding
        if rows:
            # The value is there, whatever the others make of it.
            finding.samples = replace(finding.samples, only_together=False)
        return finding

    def _fail(self, inputs: StepInputs) -> Finding | None:
        """Run a step; None if it raises nothing."""
        tracer = _CallTracer(inputs.model, clock=self.clock)

        def make_mode(model: Module, batch: Any) -> OriginTracer:
            return tracer

        self.clock.check()
        try:
            replay_step(inputs, self._dtype, make_mode)
        except (OutOfTime, CollectiveRefused):
            raise
        except Exception as error:
            return _explain(error, tracer, inputs.model)
        return None


def _is_same(one: Finding, other: Finding) -> bool:
    first, second = one.culprit, other.culprit
    return (
        first is not None
        and second is not None
        and (first.kind, first.op, first.place)
        == (second.kind, second.op, second.place)
    )


def _explain(
    error: BaseException, tracer: _CallTracer, model: Module
) -> Finding:
    message = ' '.join(str(error).split())[:_LONGEST]
    failed = tracer.failed
    # The model may have caught an earlier error.
    if failed is not None and str(failed[0]) == str(error):
        __, origin, args = failed
        values = out_of_range(origin.op.split('.')[1], args)
        verdict = Verdict.OUT_OF_RANGE if values else Verdict.RAISED
        return Finding(verdict, origin, message=message, values=values)
    frames = list(traceback.walk_tb(error.__traceback__))[::-1]
    origin = Origin(
        0,
        type(error).__name__,
        place_of(frames, module_names(model)),
        Range(None, '', 0),
        FORWARD,
    )
    return Finding(Verdict.RAISED, origin, message=message)
