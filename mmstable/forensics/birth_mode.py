"""Watches all operations, and notes where bad values are born."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from mmstable.forensics.birth import (
    BACKWARD,
    FORWARD,
    OUTSIDE,
    Birth,
    External,
    Origin,
)
from mmstable.forensics.clock import Clock
from mmstable.forensics.frames import Place, current_place, module_names
from mmstable.forensics.ranges import (
    FINITE,
    INF,
    KINDS,
    Range,
    can_be_bad,
    measure,
    severity,
)
from mmstable.forensics.storage_map import (
    Known,
    covers_storage,
    map_known,
    pointer,
)

Watch = Callable[[str, str, Place, Tensor], None]

# Their output is whatever was in the memory.
_UNINITIALISED = ('empty', 'new_empty', '_empty_affine_quantized', 'resize_')
# A tensor that somebody wrote down as numbers.
_CONSTANT = 'lift_fresh'
# Sources of a tensor to remember; the rest adds nothing.
_MOST_PARENTS = 8


class _Call:
    """An operation and its inputs.

    Args:
        func (OpOverload): The operation.
        place (Place): Where it was called.
        flat (list): All of its arguments.
    """

    def __init__(self, func: Any, place: Place, flat: list[Any]) -> None:
        self.func = func
        self.place = place
        self.inputs = [one for one in flat if isinstance(one, Tensor)]
        self.addresses = {pointer(one) for one in self.inputs}
        self.scalars = _scalars(flat)
        # Filled in when they are looked at.
        self.levels: list[int] | None = None
        self.parents: tuple[Origin, ...] = ()
        self.ranges: list[Range] = []

    @property
    def is_constant(self) -> bool:
        """Whether it brings in numbers that somebody wrote down."""
        return self.func.overloadpacket.__name__ == _CONSTANT

    @property
    def is_uninitialised(self) -> bool:
        """Whether its output is whatever was in the memory."""
        name: str = self.func.overloadpacket.__name__
        return name.startswith(_UNINITIALISED)


class BirthMode(TorchDispatchMode):
    """Finds the operations that make NaN or Inf of better inputs.

    All that is needed is to run a forward and a backward pass inside it. It
    remembers for every bad tensor, by the address of its memory, where its
    bad values come from.

    Args:
        model (Module): The model, for the names of its modules, parameters
            and buffers.
        batch (Any): The batch, for the paths of its tensors. Defaults to
            None.
        batch_size (int): Samples of the batch; 0 if that is not known.
            Defaults to 0.
        watch (Callable, optional): Called with phase, operation, place and
            output of every operation. Defaults to None.
        on_birth (Callable, optional): Called with every birth, while the
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
        on_birth: Callable[[Birth], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.births: list[Birth] = []
        self._batch_size = batch_size
        self._watch = watch
        self._on_birth = on_birth
        self._clock = clock
        self._names = module_names(model)
        self._known: dict[int, Known] = map_known(model, batch)
        self._externals: dict[int, External] = {}
        # Where bad values in a storage come from.
        self._taints: dict[int, tuple[Origin, ...]] = {}
        # Where the operation of an autograd node was called.
        self._nodes: dict[int, Place] = {}
        self._count = 0

    def origins_of(self, tensor: Tensor) -> tuple[Origin, ...]:
        """Where the bad values of a tensor come from; () if it is fine."""
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
        if not isinstance(func, OpOverload):
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
        if call.is_uninitialised:
            for one in outputs:
                self._taints.pop(pointer(one), None)
            return result
        self._judge(call, [(one, severity(one)) for one in outputs])
        if self._watch is not None:
            phase, place, _ = self._phase_of(call)
            for one in outputs:
                self._watch(phase, str(func), place, one)
        return result

    def _judge(self, call: _Call, outputs: list[tuple[Tensor, int]]) -> None:
        """Say where the bad outputs of an operation come from."""
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
        """The birth that an operation is, or what its inputs come from."""
        tensor, level = max(bad, key=lambda pair: pair[1])
        # Somebody may want an infinity, but nobody a NaN.
        is_wanted = call.is_constant and level == INF
        if level <= max(call.levels or [FINITE]) and not is_wanted:
            return call.parents
        phase, place, node = self._phase_of(call)
        is_written = any(map(math.isinf, call.scalars))
        self._count += 1
        birth = Birth(
            order=self._count,
            kind=KINDS[level],
            phase=phase,
            op=str(call.func),
            place=place,
            inputs=tuple(call.ranges),
            output=measure(tensor),
            rows=bad_rows(tensor, self._batch_size),
            node=node,
            is_intended=is_wanted or (level == INF and is_written),
            scalars=call.scalars,
            parents=() if is_wanted else call.parents,
        )
        self.births.append(birth)
        if self._on_birth is not None:
            self._on_birth(birth)
        return (birth,)

    def _look_at_inputs(self, call: _Call) -> None:
        looks = [self._look(one, call.place) for one in call.inputs]
        found = [one for _, sources in looks for one in sources]
        call.levels = [level for level, _ in looks]
        call.parents = tuple(dict.fromkeys(found))[:_MOST_PARENTS]
        call.ranges = [measure(one) for one in call.inputs]

    def _phase_of(self, call: _Call) -> tuple[str, Place, str]:
        """Phase, place and autograd node of an operation."""
        node = _current_node()
        if node is None:
            return FORWARD, call.place, ''
        return BACKWARD, self._place_of(node, call.place), node.name()

    def _look(
        self, tensor: Tensor, place: Place
    ) -> tuple[int, tuple[Origin, ...]]:
        """How bad an input is, and since where."""
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
            external = self._meet(tensor, place)
            if address in self._known:
                # Other memory may be used again for something else.
                self._externals[address] = external
        return (external,)

    def _meet(self, tensor: Tensor, place: Place) -> External:
        unknown = Known(OUTSIDE, '', FINITE)
        known = self._known.get(pointer(tensor), unknown)
        self._count += 1
        return External(
            self._count,
            known.source,
            known.name,
            measure(tensor),
            place,
            bad_rows(tensor, self._batch_size),
        )

    def _note_place(self) -> Place:
        place = current_place(self._names)
        if place.lines or place.module is not None:
            # The autograd node of this operation was made just before it.
            number = _newest_number()
            if number is not None:
                self._nodes.setdefault(number, place)
        return place

    def _place_of(self, node: Any, here: Place) -> Place:
        """Where the operation was called that a node is the derivative of."""
        number = getattr(node, '_sequence_nr', lambda: -1)()
        there = self._nodes.get(number, Place())
        if not here.lines:
            return there
        # A function of the user's own, or an operation done again.
        module = here.module if here.module is not None else there.module
        outer = [one for one in there.lines[-1:] if one not in here.lines]
        return Place(module, (*here.lines, *outer)[:2])


def bad_rows(tensor: Tensor, batch_size: int) -> tuple[int, ...]:
    """Indices of the samples that have bad values in a tensor.

    Args:
        tensor (Tensor): Any tensor.
        batch_size (int): The size that its first dimension must have.
    """
    if batch_size < 1 or not tensor.dim() or len(tensor) != batch_size:
        return ()
    if tensor.layout is not torch.strided:
        return ()
    bad = ~torch.isfinite(tensor.detach().reshape(batch_size, -1))
    return tuple(bad.any(1).nonzero().flatten().tolist())


def _scalars(flat: list[Any]) -> tuple[float, ...]:
    return tuple(
        float(one)
        for one in flat
        if isinstance(one, (int, float)) and not isinstance(one, bool)
    )


# Older releases of torch do not have all of these: then the lines of backward
# operations are not known.
_current_node: Callable[[], Any] = getattr(
    torch._C, '_current_autograd_node', lambda: None
)
_read_number: Callable[[], int] | None = getattr(
    torch.autograd, '_get_sequence_nr', None
)


def _newest_number() -> int | None:
    return None if _read_number is None else _read_number() - 1
