"""Find why a training step raises an error, by running it again.

On an accelerator a bad label ends in "device-side assert triggered", some
kernels later, and takes the device with it. The same batch on a CPU raises at
the line to blame, where operation, value and sample can be read.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten

from mmstable.batch import batch_size
from mmstable.events.records import Verdict
from mmstable.forensics.find_cause import Samples, blame_samples
from mmstable.forensics.frames import (
    Place,
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
from mmstable.forensics.trace import FORWARD, Clock, OriginTracer, OutOfTime
from mmstable.messages import _
from mmstable.torch_internals import is_operator

# What a CPU kernel or an extension of CUDA raises where a GPU is needed.
_NEEDS_DEVICE = ("for 'CPU'", 'not compiled with', 'NVIDIA', 'CUDA backend')
_LONGEST = 500


class Allowed(NamedTuple):
    """Values that an operation is given, and those it accepts.

    Args:
        what (str): 'label', 'index' or 'probability'.
        values (Tensor): The values.
        low (int): The smallest allowed one.
        high (int): The largest allowed one.
        ignored (int, optional): Another allowed one. Defaults to None.
    """

    what: str
    values: Tensor
    low: int
    high: int
    ignored: int | None = None

    def bad(self) -> Tensor:
        """Return the mask of the values that are not accepted."""
        # NaN is neither below nor above.
        mask = ~((self.values >= self.low) & (self.values <= self.high))
        return (
            mask
            if self.ignored is None
            else (mask & (self.values != self.ignored))
        )


@dataclass(frozen=True)
class OutOfRange:
    """Values that an operation does not accept.

    Args:
        what (str): 'label', 'index' or 'probability'.
        value (float): The first one of them.
        low (int): The smallest allowed one.
        high (int): The largest allowed one.
        rows (tuple[int]): Their indices in the first dimension.
        length (int): The size of that.
    """

    what: str
    value: float
    low: int
    high: int
    rows: tuple[int, ...] = ()
    length: int = 0


def _labels(
    logits: Tensor,
    target: Tensor,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> list[Allowed]:
    classes = logits.shape[1 if logits.dim() > 1 else 0]
    return [Allowed('label', target, 0, classes - 1, ignore_index)]


def _rows_of_table(table: Tensor, index: Tensor, *rest: Any) -> list[Allowed]:
    return [Allowed('index', index, 0, len(table) - 1)]


def _along(
    values: Tensor, dim: int, index: Tensor, *rest: Any
) -> list[Allowed]:
    return [Allowed('index', index, 0, values.shape[dim] - 1)]


def _subscripts(
    values: Tensor, indices: Sequence[Tensor | None], *rest: Any
) -> list[Allowed]:
    return [
        Allowed('index', one, -size, size - 1)
        for one, size in zip(indices, values.shape)
        if one is not None and one.dtype is not torch.bool
    ]


def _probabilities(*given: Any) -> list[Allowed]:
    tensors = [one for one in given[:2] if isinstance(one, Tensor)]
    return [Allowed('probability', one, 0, 1) for one in tensors]


_ACCEPTED: dict[str, Callable[..., list[Allowed]]] = {
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
    for one in [] if find is None else find(*args):
        bad = one.bad()
        if not bool(bad.any()):
            continue
        value = one.values[bad].flatten()[0].item()
        rows: tuple[int, ...] = ()
        if bad.dim():
            found = bad.reshape(len(bad), -1).any(1).nonzero()
            rows = tuple(found.flatten().tolist())
        length = len(bad) if bad.dim() else 0
        return OutOfRange(one.what, value, one.low, one.high, rows, length)
    return None


class _CallTracer(OriginTracer):
    """Remember the operation that raises an error."""

    failed: tuple[BaseException, str, Sequence[Any]] | None = None
    phase, node, place = FORWARD, '', Place()

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
            self.failed = error, str(func), args
            self.phase, self.place, self.node = self.phase_at(here)
            raise


@dataclass
class Crash:
    """A training step that raises an error.

    Args:
        error (str): The type of the error.
        message (str): Its message.
        phase (str): 'forward' or 'backward'.
        place (Place): Where it was raised; in the backward pass, where the
            operation was called whose derivative raises it.
        op (str): The operation; '' if the error comes from Python. Defaults
            to ''.
        node (str): The autograd node. Defaults to ''.
        inputs (tuple[Range]): Inputs of the operation. Defaults to ().
        values (OutOfRange, optional): Those that it refuses. Defaults to
            None.
        samples (Samples): The samples to blame. Defaults to none.
    """

    error: str
    message: str
    phase: str
    place: Place
    op: str = ''
    node: str = ''
    inputs: tuple[Range, ...] = ()
    values: OutOfRange | None = None
    samples: Samples = field(default_factory=Samples)

    @property
    def verdict(self) -> Verdict:
        """The kind of cause."""
        return Verdict.RAISED if self.values is None else Verdict.OUT_OF_RANGE

    def is_same(self, other: Crash | None) -> bool:
        """Whether another step fails in the same way."""
        return other is not None and (
            (self.error, self.op, self.place)
            == (other.error, other.op, other.place)
        )


class CrashFinder:
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
        self._inputs, self._dtype = inputs, dtype
        self.clock = Clock(seconds)

    def run(self) -> Crash | None:
        """Run the step again; None if it raises nothing.

        Raises:
            NotExamined: If it cannot be run here.
        """
        try:
            crash = self._replay(self._inputs)
        except OutOfTime as error:
            raise NotExamined(
                _(
                    'a replay takes more than {seconds:g} s',
                    seconds=self.clock.limit,
                )
            ) from error
        if crash is not None and not any(
            words in crash.message for words in _NEEDS_DEVICE
        ):
            self._blame(crash)
            return crash
        if crash is not None:
            raise NotExamined(f'{crash.error}: {crash.message}')
        return None

    def _blame(self, crash: Crash) -> None:
        size, values = batch_size(self._inputs.batch), crash.values
        rows: list[int] = []
        if values is not None and values.length == size:
            rows = list(values.rows)

        def fails(samples: list[int]) -> bool:
            other = self._replay(self._inputs.only(samples))
            # BatchNorm refuses a single sample, with another error.
            if (
                other is not None
                and len(samples) == 1
                and (not crash.is_same(other))
            ):
                other = self._replay(self._inputs.only(samples * 2))
            return crash.is_same(other)

        try:
            crash.samples = blame_samples(self._inputs, rows, fails)
        except OutOfTime:
            return
        if rows:
            # The value is there, whatever the others make of it.
            crash.samples = replace(crash.samples, only_together=False)

    def _replay(self, inputs: StepInputs) -> Crash | None:
        tracer: _CallTracer | None = None

        def make_mode(model: Module, batch: Any) -> OriginTracer:
            nonlocal tracer
            tracer = _CallTracer(model, clock=self.clock)
            return tracer

        self.clock.check()
        try:
            replay_step(inputs, self._dtype, make_mode)
        except OutOfTime:
            raise
        except CollectiveRefused as error:
            raise NotExamined(
                _(
                    'the model waits for other ranks in {op}, which do not '
                    'replay',
                    op=error.op,
                )
            ) from error
        except Exception as error:
            return _describe(error, tracer, inputs.model)
        return None


class NotExamined(Exception):
    """A step that cannot be run again here, for the reason given."""


def _describe(
    error: BaseException, tracer: _CallTracer | None, model: Module
) -> Crash:
    crash = Crash(
        type(error).__name__,
        ' '.join(str(error).split())[:_LONGEST],
        FORWARD,
        place_of(
            list(traceback.walk_tb(error.__traceback__))[::-1],
            module_names(model),
        ),
    )
    failed = None if tracer is None else tracer.failed
    # The model may have caught an earlier error.
    if tracer is None or failed is None or str(failed[0]) != str(error):
        return crash
    __, crash.op, args = failed
    crash.phase, crash.node = tracer.phase, tracer.node
    crash.place = tracer.place
    tensors = [one for one in tree_flatten(args)[0] if isinstance(one, Tensor)]
    crash.inputs = tuple(map(measure, tensors))
    crash.values = out_of_range(crash.op.split('.')[1], args)
    return crash


def crash_facts(crash: Crash | None) -> dict[str, Any]:
    """Return the fields of the event."""
    if crash is None:
        return dict(verdict=Verdict.NOT_REPRODUCED)
    return dict(
        verdict=crash.verdict,
        kind=crash.error,
        phase=crash.phase,
        op=crash.op,
        node=crash.node,
        module=crash.place.module or '',
        lines=tuple(map(str, crash.place.lines)),
        inputs=tuple(map(str, crash.inputs)),
        samples=crash.samples.indices,
        sample_names=crash.samples.names,
        only_together=crash.samples.only_together,
    )
