"""Ask a training step again, and leave nothing of the answer behind.

Two questions: what loss and norm the newest step has when it is repeated
before its update, and what loss some batches have under other weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from mmengine.optim import OptimWrapper
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mmstable import runner_view
from mmstable.messages import _
from mmstable.optim.grad_health import (
    first_parameter,
    gradient_norms,
    total_norm,
    unwrap,
    wide_total_norm,
)
from mmstable.optim.pending_step import live_gradients
from mmstable.state.preserve import (
    fingerprint,
    own_attributes,
    preserve_state,
    uncompiled,
)
from mmstable.state.rng import restore_rng

if TYPE_CHECKING:
    from mmstable.loops.train_step import StepRecord

# A table of attributes or buffers, a name in it, and a value.
Kept = tuple[dict[str, Any], str, Any]


class CannotAsk(Exception):
    """A step that cannot be repeated, with the reason as its text."""


class Answer(NamedTuple):
    """What a repeated step gave.

    Args:
        loss (float): The sum of its losses, as they were back-propagated.
        norm (float): The norm of the unscaled gradients; NaN if they were
            not computed.
        changed (tuple[str]): What the step changes in the model or in its
            batch and could not be rewound: the repeated step may have been
            another one.
    """

    loss: float
    norm: float
    changed: tuple[str, ...] = ()


class _Answered(BaseException):
    """Leaves ``train_step`` where it would update."""


class _Twin:
    """A copy of an optimizer wrapper that measures instead of updating.

    Args:
        wrapper (OptimWrapper): The wrapper.
        count (int): Backward passes that it had counted before the step.
        order (float): The order of the norm.
        with_gradients (bool): Whether to back-propagate.
    """

    def __init__(
        self, wrapper: Any, count: int, order: float, with_gradients: bool
    ) -> None:
        self.losses: list[Tensor] = []
        self.norm = math.nan
        self._order = order
        self._with_gradients = with_gradients
        self._dtype = autocast_dtype(wrapper)
        # Of the same class: models may ask for it.
        self.wrapper: Any = copy.copy(wrapper)
        runner_view.set_inner_count(self.wrapper, count)
        for name in ('optim_context', 'backward', 'step', 'zero_grad'):
            setattr(self.wrapper, name, getattr(self, name))

    @contextmanager
    def optim_context(self, model: Module) -> Iterator[None]:
        """Autocast, and synchronise ranks, as the wrapper does."""
        kind = first_parameter(self.wrapper.optimizer).device.type
        dtype = self._dtype
        with (
            OptimWrapper.optim_context(self.wrapper, model),
            nullcontext()
            if dtype is None
            else torch.autocast(kind, dtype=getattr(torch, dtype)),
        ):
            yield

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Note a loss, and back-propagate it if gradients are asked for."""
        done = runner_view.inner_count(self.wrapper)
        runner_view.set_inner_count(self.wrapper, done + 1)
        self.losses.append(loss.detach())
        if self._with_gradients:
            scaler = runner_view.loss_scaler(self.wrapper)
            scaled = loss if scaler is None else scaler.scale(loss)
            scaled.backward(**kwargs)

    def step(self, **kwargs: Any) -> None:
        """Measure the gradients, and end the question."""
        if kwargs.get('closure') is not None:
            raise CannotAsk(_('its optimizer needs a closure'))
        if self._with_gradients:
            scaler = runner_view.loss_scaler(self.wrapper)
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            grads = live_gradients(self.wrapper.optimizer)[1]
            norms = gradient_norms(grads, self._order)
            norm = total_norm(norms, self._order)
            if not torch.isfinite(norm):
                # Finite gradients may have a norm beyond float32.
                norm = wide_total_norm(grads, self._order)
            self.norm = float(norm) / scale
        raise _Answered

    def zero_grad(self, **kwargs: Any) -> None:
        """Clear the gradients of the question."""
        self.wrapper.optimizer.zero_grad()


def autocast_dtype(wrapper: Any) -> str | None:
    """What a wrapper casts to in a forward pass; None without autocast."""
    if not hasattr(wrapper, 'cast_dtype'):
        return None
    dtype = wrapper.cast_dtype
    if dtype is None:
        # mmengine leaves the choice to torch.
        kind = first_parameter(wrapper.optimizer).device.type
        dtype = torch.bfloat16 if kind == 'cpu' else torch.float16
    name = str(dtype).replace('torch.', '')
    return None if name in ('float32', 'float64') else name


def ask(
    model: Module,
    wrapper: Any,
    records: Sequence[StepRecord],
    prepare: Callable[[], set[tuple[int, str]]],
    order: float = 2.0,
    with_gradients: bool = True,
    gradients: Sequence[Tensor] = (),
) -> Answer:
    """Repeat a training step up to its update.

    Args:
        model (Module): What to call ``train_step`` of.
        wrapper (OptimWrapper): The only optimizer wrapper.
        records (Sequence[StepRecord]): The iterations of the step.
        prepare (Callable): Called when all state is kept: brings back the
            state to ask under. Returns the tables, by id, and the names in
            them that are as before the step.
        order (float): The order of the norm. Defaults to 2.0.
        with_gradients (bool): Whether to back-propagate. Defaults to True.
        gradients (Sequence[Tensor]): Those of the held step, which may share
            memory with DDP's buckets. Defaults to ().

    Raises:
        CannotAsk: If the step cannot be repeated.
    """
    count = records[0].counts[0] if records[0].counts else 0
    twin = _Twin(wrapper, count, order, with_gradients)
    inner = unwrap(model)
    batches = [copy.deepcopy(one.batch) for one in records]
    with ExitStack() as stack:
        stack.enter_context(_keep_buckets(model, gradients))
        streams = stack.enter_context(preserve_state(inner))
        if streams:
            raise CannotAsk(
                _('the model holds {streams}', streams=sorted(streams))
            )
        stack.enter_context(uncompiled())
        stack.enter_context(torch.enable_grad())
        rewound = prepare()
        before = _state(inner, batches)
        try:
            for one, batch in zip(records, batches):
                if one.rng is not None:
                    restore_rng(one.rng)
                caller: Any = model
                caller.train_step(batch, optim_wrapper=twin.wrapper)
        except _Answered:
            pass
        changed = tuple(
            key[1]
            for key, value in _state(inner, batches).items()
            if before.get(key) != value and key not in rewound
        )
    if not twin.losses and with_gradients and math.isnan(twin.norm):
        raise CannotAsk(_('it makes no step'))
    loss = float(sum(one.sum().double().cpu() for one in twin.losses))
    return Answer(loss if twin.losses else math.nan, twin.norm, changed)


def _state(
    model: Module, batches: Sequence[Any]
) -> dict[tuple[int, str], Any]:
    """What a forward pass may count in, by table and name."""
    state = {
        (id(table), name): fingerprint(value)
        for table, name, value in own_attributes(model)
    }
    for module in model.modules():
        table: Any = module._buffers
        for name, buffer in table.items():
            state[id(table), name] = (id(buffer), fingerprint(buffer))
    state[0, 'batch'] = fingerprint(list(batches))
    return state


def counters(model: Module) -> dict[tuple[int, str], Kept]:
    """Plain numbers that modules keep, by table and name."""
    return {
        (id(table), name): (table, name, value)
        for table, name, value in own_attributes(model)
        if type(value) in (int, float)
    }


@contextmanager
def _keep_buckets(
    model: Module, gradients: Sequence[Tensor]
) -> Iterator[None]:
    """Leave DDP, its buffers and gradients inside its buckets as they are."""
    found = [
        one
        for one in model.modules()
        if isinstance(one, DistributedDataParallel)
    ]
    shares = any(one.gradient_as_bucket_view for one in found)
    copies = [one.clone() for one in gradients] if shares else []
    syncs = [one.require_forward_param_sync for one in found]
    for one in found:
        # It would write to the buffers themselves, not to their copies.
        one.require_forward_param_sync = False
    try:
        yield
    finally:
        for one, sync in zip(found, syncs):
            one.require_forward_param_sync = sync
        for gradient, values in zip(gradients, copies):
            gradient.copy_(values)
