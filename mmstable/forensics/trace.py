"""Trace every operation for the first NaN or Inf.

Where bad values come from: an operation, or a tensor that was bad before.
The chain from there to the loss, or to the gradients, is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from mmstable.batch import named_tensors
from mmstable.forensics.frames import (
    FINITE,
    INF,
    KINDS,
    Place,
    Range,
    can_be_bad,
    current_place,
    measure,
    module_names,
    plain_values,
    severity,
)
from mmstable.torch_internals import (
    current_autograd_node,
    is_operator,
    newest_sequence_nr,
)


class OutOfTime(Exception):
    """The time limit is reached."""


class Clock:
    """Limit the seconds of a search.

    Args:
        limit (float): The seconds.
    """

    def __init__(self, limit: float) -> None:
        self._start = time.monotonic()
        self.limit = limit

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def check(self) -> None:
        """Check the limit.

        Raises:
            OutOfTime: If it is reached.
        """
        if self.seconds > self.limit:
            raise OutOfTime


FORWARD, BACKWARD = 'forward', 'backward'
# Sources of a tensor that was bad before.
PARAMETER, BUFFER, BATCH, OUTSIDE = 'parameter', 'buffer', 'batch', 'outside'


@dataclass(frozen=True, eq=False)
class Origin:
    """Where bad values begin.

    That is an operation whose output is worse than all of its inputs, where
    NaN is worse than Inf and Inf worse than anything finite, or a tensor
    that was bad before any operation: then it has a source and no ``op``.

    Args:
        order (int): Later ones have larger numbers.
        kind (str): 'NaN' or 'Inf'.
        place (Place): Where it was called; in the backward pass, where the
            operation was called that it is the derivative of. Of a tensor,
            where it was first used.
        output (Range): The output, or the tensor.
        phase (str): 'forward' or 'backward'. Defaults to ''.
        op (str): The operation, as 'aten.div.Tensor'. Defaults to ''.
        inputs (tuple[Range]): Its inputs, as they were before it. Defaults
            to ().
        rows (tuple[int]): Indices in the first dimension of the output that
            are not finite, if that has the size of the batch. Defaults to ().
        node (str): The autograd node, as 'SqrtBackward0'. Defaults to ''.
        is_intended (bool): Whether the infinity is written in the code, as in
            ``masked_fill(mask, -inf)``, or is a mask. Defaults to False.
        scalars (tuple[float]): Numbers among its arguments. Defaults to ().
        parents (tuple[Origin]): Where its bad inputs come from. Defaults to
            ().
        source (str): 'parameter', 'buffer', 'batch' or 'outside'; '' for an
            operation. Defaults to ''.
        name (str): Its name in the model, or its path in the batch. Defaults
            to ''.
    """

    order: int
    kind: str
    place: Place
    output: Range
    phase: str = ''
    op: str = ''
    inputs: tuple[Range, ...] = ()
    rows: tuple[int, ...] = ()
    node: str = ''
    is_intended: bool = False
    scalars: tuple[float, ...] = ()
    parents: tuple[Origin, ...] = ()
    source: str = ''
    name: str = ''

    @property
    def function(self) -> str:
        """The operation alone, as 'div'."""
        return self.op.split('.')[1].rstrip('_') if self.op else ''

    @property
    def identity(self) -> tuple[Any, ...]:
        """What is the same if it happens again with other samples."""
        if self.source:
            return self.source, self.name
        return self.phase, self.op, self.place

    def __str__(self) -> str:
        if self.source:
            return f'{self.kind} in {self.source} {self.name!r}: {self.output}'
        where = f' ({self.node})' if self.node else ''
        lines = ' <- '.join(map(str, self.place.lines)) or '?'
        return (
            f'first {self.kind} in {self.phase}{where}: {self.op} in '
            f"'{self.place.module or ''}' at {lines} | "
            f'{"; ".join(map(str, self.inputs))} -> {self.output}'
        )


class Known(NamedTuple):
    """A tensor that was there before the step.

    Args:
        source (str): 'parameter', 'buffer' or 'batch'.
        name (str): Its name in the model, or its path in the batch.
        severity (int): How bad it was then.
    """

    source: str
    name: str
    severity: int


def pointer(tensor: Tensor) -> int:
    """Address of a tensor's memory; 0 if it has none of its own.

    The tensor itself is no key: a tensor saved in the forward pass comes back
    as another object in the backward pass.
    """
    try:
        return plain_values(tensor).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        # Tensors that are made of several.
        return 0


def covers_storage(tensor: Tensor) -> bool:
    """Whether a tensor covers all of its storage."""
    values = plain_values(tensor)
    size = values.numel() * values.element_size()
    return size >= values.untyped_storage().nbytes()


def map_known(model: Module, batch: Any) -> dict[int, Known]:
    """Map addresses to the tensors of a model and of a batch."""
    named = [
        *((BATCH, name, one) for name, one in named_tensors(batch)),
        *((BUFFER, name, one) for name, one in model.named_buffers()),
        *((PARAMETER, name, one) for name, one in model.named_parameters()),
    ]
    return {
        pointer(one): Known(source, name, severity(one))
        for source, name, one in named
        if pointer(one)
    }


Watch = Callable[[str, str, Place, Tensor], None]

# Their output is uninitialized memory.
_UNINITIALISED = ('empty', 'new_empty', '_empty_affine_quantized', 'resize_')
# A tensor of numbers in the code.
_CONSTANT = 'lift_fresh'
# Origins of a tensor to remember.
_MOST_PARENTS = 8


class _Call:
    """An operation and its inputs.

    Args:
        func (OpOverload): The operation.
        place (Place): Where it was called.
        flat (list): All of its arguments.
    """

    def __init__(self, func: Any, place: Place, flat: list[Any]) -> None:
        self.func, self.place = func, place
        self.name: str = func.overloadpacket.__name__
        self.inputs = [one for one in flat if isinstance(one, Tensor)]
        self.addresses = {pointer(one) for one in self.inputs}
        self.scalars = tuple(
            float(one)
            for one in flat
            if isinstance(one, (int, float)) and not isinstance(one, bool)
        )
        # Filled in when they are looked at.
        self.levels: list[int] | None = None
        self.parents: tuple[Origin, ...] = ()
        self.ranges: list[Range] = []


class OriginTracer(TorchDispatchMode):
    """Find the operations that make NaN or Inf of better inputs.

    Run a forward and a backward pass inside of this mode. It remembers for
    each bad tensor, by its address, where the bad values come from.

    Args:
        model (Module): The model, for the names of its modules, parameters
            and buffers.
        batch (Any): The batch, for the paths of its tensors. Defaults to
            None.
        batch_size (int): Samples of the batch; 0 if that is not known.
            Defaults to 0.
        watch (Callable, optional): Called with phase, operation, place and
            output of every operation. Defaults to None.
        on_origin (Callable, optional): Called with every origin, while the
            frames of its operation are still on the stack. Defaults to None.
        clock (Clock, optional): Checked before every operation. Defaults to
            None.
    """

    def __init__(
        self,
        model: Module,
        batch: Any = None,
        batch_size: int = 0,
        watch: Watch | None = None,
        on_origin: Callable[[Origin], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.origins: list[Origin] = []
        self._batch_size = batch_size
        self._watch = watch
        self._on_origin = on_origin
        self._clock = clock
        self._names = module_names(model)
        self._known: dict[int, Known] = map_known(model, batch)
        self._externals: dict[int, Origin] = {}
        # Where bad values in a storage come from.
        self._taints: dict[int, tuple[Origin, ...]] = {}
        # Where the operation of an autograd node was called.
        self._nodes: dict[int, Place] = {}
        self._count = 0

    def origins_of(self, tensor: Tensor) -> tuple[Origin, ...]:
        """Find where the bad values of a tensor come from; () if finite."""
        if severity(tensor) == FINITE:
            return ()
        return self._sources_of(tensor, Place())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._clock is not None:
            self._clock.check()
        if not is_operator(func):
            # An operation on functions.
            return func(*args, **kwargs)
        flat = tree_flatten((args, kwargs))[0]
        call = _Call(func, self._note_place(), flat)
        if func._schema.is_mutable:
            # What is written to cannot be looked at afterwards.
            self._look_at_inputs(call)
        result = func(*args, **kwargs)
        outputs = [
            one
            for one in tree_flatten(result)[0]
            if isinstance(one, Tensor) and can_be_bad(one)
        ]
        if call.name.startswith(_UNINITIALISED):
            for one in outputs:
                self._taints.pop(pointer(one), None)
            return result
        self._judge(call, [(one, severity(one)) for one in outputs])
        if self._watch is not None:
            phase, place, _ = self.phase_at(call.place)
            for one in outputs:
                self._watch(phase, str(func), place, one)
        return result

    def _judge(self, call: _Call, outputs: list[tuple[Tensor, int]]) -> None:
        """Note where the bad outputs of an operation come from."""
        bad = [(one, level) for one, level in outputs if level]
        if bad:
            if call.levels is None:
                self._look_at_inputs(call)
            sources = self._explain(call, bad)
            for one, _ in bad:
                # The rest of a storage stays as bad as it was.
                address = pointer(one)
                kept = self._taints.get(address, ())
                kept = kept if address in call.addresses else ()
                merged = dict.fromkeys((*sources, *kept))
                self._taints[address] = tuple(merged)[:_MOST_PARENTS]
        for one, level in outputs:
            is_new = pointer(one) not in call.addresses
            if not level and (is_new or covers_storage(one)):
                self._taints.pop(pointer(one), None)

    def _explain(
        self, call: _Call, bad: list[tuple[Tensor, int]]
    ) -> tuple[Origin, ...]:
        """Return an operation as the origin, or the origins of its inputs."""
        tensor, level = max(bad, key=lambda pair: pair[1])
        # An infinity may be on purpose, a NaN is not.
        is_wanted = call.name == _CONSTANT and level == INF
        if level <= max(call.levels or [FINITE]) and not is_wanted:
            return call.parents
        phase, place, node = self.phase_at(call.place)
        is_written = any(map(math.isinf, call.scalars))
        self._count += 1
        origin = Origin(
            self._count,
            KINDS[level],
            place,
            measure(tensor),
            phase,
            str(call.func),
            tuple(call.ranges),
            bad_rows(tensor, self._batch_size),
            node=node,
            is_intended=is_wanted or (level == INF and is_written),
            scalars=call.scalars,
            parents=() if is_wanted else call.parents,
        )
        self.origins.append(origin)
        if self._on_origin is not None:
            self._on_origin(origin)
        return (origin,)

    def _look_at_inputs(self, call: _Call) -> None:
        looks = [self._look(one, call.place) for one in call.inputs]
        found = [one for _, sources in looks for one in sources]
        call.levels = [level for level, _ in looks]
        call.parents = tuple(dict.fromkeys(found))[:_MOST_PARENTS]
        call.ranges = [measure(one) for one in call.inputs]

    def phase_at(self, here: Place) -> tuple[str, Place, str]:
        """Return phase, place and autograd node of the running operation.

        Args:
            here (Place): Where it was called.
        """
        node = current_autograd_node()
        if node is None:
            return FORWARD, here, ''
        return BACKWARD, self._place_of(node, here), node.name()

    def _look(
        self, tensor: Tensor, place: Place
    ) -> tuple[int, tuple[Origin, ...]]:
        """Return how bad an input is, and its origins."""
        if pointer(tensor) not in self._taints:
            known = self._known.get(pointer(tensor))
            # Some operations write to running statistics and do not say so.
            if known is not None and known.severity == FINITE:
                return FINITE, ()
        bad = severity(tensor)
        return bad, self._sources_of(tensor, place) if bad else ()

    def _sources_of(self, tensor: Tensor, place: Place) -> tuple[Origin, ...]:
        address = pointer(tensor)
        taints = self._taints.get(address)
        if taints is not None:
            return taints
        external = self._externals.get(address)
        if external is None:
            known = self._known.get(address, Known(OUTSIDE, '', FINITE))
            values = measure(tensor)
            self._count += 1
            external = Origin(
                self._count,
                values.kind,
                place,
                values,
                rows=bad_rows(tensor, self._batch_size),
                is_intended=values.looks_like_mask,
                source=known.source,
                name=known.name,
            )
            if address in self._known:
                # Other memory may be used again for something else.
                self._externals[address] = external
        return (external,)

    def _note_place(self) -> Place:
        place = current_place(self._names)
        if place.lines or place.module is not None:
            # The autograd node of this operation was made just before it.
            number = newest_sequence_nr()
            if number is not None:
                self._nodes.setdefault(number, place)
        return place

    def _place_of(self, node: Any, here: Place) -> Place:
        """Find the call of the operation that a node is the derivative of."""
        number = getattr(node, '_sequence_nr', lambda: -1)()
        there = self._nodes.get(number, Place())
        if not here.lines:
            return there
        # A function of the user's own, or an operation done again.
        module = here.module if here.module is not None else there.module
        outer = [one for one in there.lines[-1:] if one not in here.lines]
        return Place(module, (*here.lines, *outer)[:2])


def bad_rows(tensor: Tensor, batch_size: int) -> tuple[int, ...]:
    """List the samples that have bad values in a tensor.

    Args:
        tensor (Tensor): Any tensor.
        batch_size (int): The size that its first dimension must have.
    """
    if (
        batch_size < 1
        or not tensor.dim()
        or len(tensor) != batch_size
        or tensor.layout is not torch.strided
    ):
        return ()
    bad = ~torch.isfinite(tensor.detach().reshape(batch_size, -1))
    return tuple(bad.any(1).nonzero().flatten().tolist())


def follow(ends: Iterable[Origin]) -> list[Origin]:
    """List all origins of bad values, the earliest first.

    Args:
        ends (Iterable): Where those of the loss, or of the gradients, come
            from.
    """
    found: dict[int, Origin] = {}
    waiting = list(ends)
    while waiting:
        one = waiting.pop()
        if one.order not in found:
            found[one.order] = one
            waiting.extend(one.parents)
    return [found[order] for order in sorted(found)]


def find_culprit(chain: list[Origin]) -> Origin | None:
    """Find the earliest origin that is not on purpose.

    A softmax over a row that is masked with -Inf everywhere is to blame, the
    mask is not.

    Args:
        chain (list): What :func:`follow` gave.
    """
    return next(
        (one for one in chain if not one.is_intended),
        chain[0] if chain else None,
    )
