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
        place = self._note_place()
        flat = tree_flatten((args, kwargs))[0]
        inputs = [one for one in flat if isinstance(one, Tensor)]
        # What is written to cannot be looked at afterwards.
        before = None
        if func._schema.is_mutable:
            before = [self._look(one, place) for one in inputs]
            ranges = [measure(one) for one in inputs]
        result = func(*args, **kwargs)
        outputs = [
            one
            for one in tree_flatten(result)[0]
            if isinstance(one, Tensor) and can_be_bad(one)
        ]
        if _is_uninitialised(func):
            self._forget(outputs)
            return result
        worst = [severity(one) for one in outputs]
        if max(worst, default=FINITE) > FINITE:
            if before is None:
                before = [self._look(one, place) for one in inputs]
                ranges = [measure(one) for one in inputs]
            scalars = _scalars(flat)
            self._judge(
                func, place, outputs, worst, before, ranges, scalars, inputs
            )
        owned = {pointer(one) for one in inputs}
        for one, bad in zip(outputs, worst):
            if not bad and (pointer(one) not in owned or covers_storage(one)):
                self._taints.pop(pointer(one), None)
        if self._watch is not None:
            self._show(func, place, outputs)
        return result

    def _show(self, func: Any, place: Place, outputs: list[Tensor]) -> None:
        node = _current_node()
        phase = FORWARD if node is None else BACKWARD
        if node is not None:
            place = self._place_of(node, place)
        if self._watch is not None:
            for one in outputs:
                self._watch(phase, str(func), place, one)

    def _judge(
        self,
        func: Any,
        place: Place,
        outputs: list[Tensor],
        worst: list[int],
        before: list[tuple[int, tuple[Origin, ...]]],
        ranges: list[Range],
        scalars: tuple[float, ...],
        inputs: list[Tensor],
    ) -> None:
        """Say where the bad outputs of an operation come from."""
        level = max((bad for bad, _ in before), default=FINITE)
        found = [one for _, sources in before for one in sources]
        parents = tuple(dict.fromkeys(found))[:_MOST_PARENTS]
        if func.overloadpacket.__name__ == _CONSTANT and not parents:
            # Its input is the constant itself.
            level = FINITE
        sources, birth = parents, None
        for one, bad in zip(outputs, worst):
            if bad > level:
                if birth is None or bad > KINDS.index(birth.kind):
                    birth = self._bear(
                        func, place, one, bad, ranges, scalars, parents
                    )
                sources = (birth,)
        owned = {pointer(one) for one in inputs}
        for one, bad in zip(outputs, worst):
            if bad:
                address = pointer(one)
                older = self._taints.get(address, ())
                # The rest of a storage stays as bad as it was.
                kept = older if address in owned else ()
                merged = dict.fromkeys((*sources, *kept))
                self._taints[address] = tuple(merged)[:_MOST_PARENTS]

    def _bear(
        self,
        func: Any,
        place: Place,
        output: Tensor,
        bad: int,
        ranges: list[Range],
        scalars: tuple[float, ...],
        parents: tuple[Origin, ...],
    ) -> Birth:
        node = _current_node()
        is_constant = func.overloadpacket.__name__ == _CONSTANT
        self._count += 1
        birth = Birth(
            order=self._count,
            kind=KINDS[bad],
            phase=FORWARD if node is None else BACKWARD,
            op=str(func),
            place=place if node is None else self._place_of(node, place),
            inputs=tuple(ranges),
            output=measure(output),
            rows=bad_rows(output, self._batch_size),
            node='' if node is None else node.name(),
            is_intended=bad == INF
            and (is_constant or any(map(math.isinf, scalars))),
            scalars=scalars,
            parents=parents,
        )
        self.births.append(birth)
        if self._on_birth is not None:
            self._on_birth(birth)
        return birth

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

    def _forget(self, tensors: list[Tensor]) -> None:
        for one in tensors:
            self._taints.pop(pointer(one), None)

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
    bad = ~torch.isfinite(tensor.detach().reshape(batch_size, -1))
    return tuple(bad.any(1).nonzero().flatten().tolist())


def _scalars(flat: list[Any]) -> tuple[float, ...]:
    return tuple(
        float(one)
        for one in flat
        if isinstance(one, (int, float)) and not isinstance(one, bool)
    )


def _is_uninitialised(func: Any) -> bool:
    return func.overloadpacket.__name__.startswith(_UNINITIALISED)


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
