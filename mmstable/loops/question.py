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
from mmengine.dist import all_reduce
from mmengine.optim import OptimWrapper
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from mmstable import runner_view
from mmstable.dist import collectives as dist
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
    """A copy of an optimizer wrapper that stops instead of updating.

    Args:
        wrapper (OptimWrapper): The wrapper.
        count (int): Backward passes that it had counted before the step.
        with_gradients (bool): Whether to back-propagate.
        replicas (Sequence[DistributedDataParallel]): What averages the
            gradients of ranks.
    """

    def __init__(
        self,
        wrapper: Any,
        count: int,
        with_gradients: bool,
        replicas: Sequence[DistributedDataParallel],
    ) -> None:
        self.losses: list[Tensor] = []
        self.has_stepped = False
        self._with_gradients = with_gradients
        self._is_shared = bool(replicas)
        # Its hooks note which parameters were used, until the next step.
        self._avoids_hooks = any(
            one.find_unused_parameters for one in replicas
        )
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
            if self._avoids_hooks:
                self._add_gradients(scaled, **kwargs)
            else:
                scaled.backward(**kwargs)

    def _add_gradients(self, loss: Tensor, **kwargs: Any) -> None:
        """Back-propagate past the hooks of DDP."""
        params = _trained(self.wrapper.optimizer)
        grads = torch.autograd.grad(loss, params, allow_unused=True, **kwargs)
        for param, grad in zip(params, grads):
            if grad is not None:
                both = grad if param.grad is None else param.grad + grad
                param.grad = both

    def step(self, **kwargs: Any) -> None:
        """End the question."""
        if kwargs.get('closure') is not None:
            raise CannotAsk(_('its optimizer needs a closure'))
        self.has_stepped = True
        raise _Answered

    def measure(self, order: float) -> float:
        """The norm of the unscaled gradients. With DDP a collective call."""
        optimizer = self.wrapper.optimizer
        if self._is_shared:
            for param in _trained(optimizer):
                if param.grad is None:
                    param.grad = torch.zeros_like(param)
                all_reduce(param.grad, op='mean')
        grads = live_gradients(optimizer)[1]
        norm = total_norm(gradient_norms(grads, order), order)
        if not torch.isfinite(norm):
            # Finite gradients may have a norm beyond float32.
            norm = wide_total_norm(grads, order)
        scaler = runner_view.loss_scaler(self.wrapper)
        return float(norm) / (1.0 if scaler is None else scaler.get_scale())

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


def _trained(optimizer: Optimizer) -> list[Tensor]:
    return [
        param
        for group in optimizer.param_groups
        for param in group['params']
        if param.requires_grad
    ]


def ask(
    model: Module,
    wrapper: Any,
    records: Sequence[StepRecord],
    prepare: Callable[[], set[tuple[int, str]]],
    order: float = 2.0,
    with_gradients: bool = True,
    problem: str = '',
) -> Answer:
    """Repeat a training step up to its update. A collective call.

    Ranks run their batches without each other, so that one which fails, for
    lack of memory, leaves no other waiting; then they average gradients.

    Args:
        model (Module): What to call ``train_step`` of.
        wrapper (OptimWrapper): The only optimizer wrapper.
        records (Sequence[StepRecord]): The iterations of the step.
        prepare (Callable): Called when all state is kept: brings back the
            state to ask under. Returns the tables, by id, and the names in
            them that are as before the step.
        order (float): The order of the norm. Defaults to 2.0.
        with_gradients (bool): Whether to back-propagate. Defaults to True.
        problem (str): Why this rank cannot repeat it. Defaults to ''.

    Raises:
        CannotAsk: If the step cannot be repeated, on all ranks.
    """
    count = records[0].counts[0] if records and records[0].counts else 0
    replicas = [
        one
        for one in model.modules()
        if isinstance(one, DistributedDataParallel)
    ]
    twin = _Twin(wrapper, count, with_gradients, replicas)
    inner = unwrap(model)
    loss, norm = math.nan, math.nan
    changed: tuple[str, ...] = ()
    with ExitStack() as stack:
        for one in replicas:
            stack.enter_context(_apart(one))
        streams = stack.enter_context(preserve_state(inner))
        stack.enter_context(uncompiled())
        stack.enter_context(torch.enable_grad())
        if streams:
            problem = _('the model holds {streams}', streams=sorted(streams))
        if not problem:
            try:
                changed = _run(model, inner, twin, records, prepare)
            except CannotAsk as error:
                problem = str(error)
            except Exception as error:
                problem = f'{type(error).__name__}: {error}'
        if not (problem or twin.losses or twin.has_stepped):
            problem = _('it makes no step')
        if dist.any_rank(bool(problem)):
            raise CannotAsk(problem or _('another rank cannot repeat it'))
        if with_gradients:
            norm = twin.measure(order)
    if twin.losses:
        loss = float(sum(one.sum().double().cpu() for one in twin.losses))
    return Answer(loss, norm, changed)


def _run(
    model: Any,
    inner: Module,
    twin: _Twin,
    records: Sequence[StepRecord],
    prepare: Callable[[], set[tuple[int, str]]],
) -> tuple[str, ...]:
    """Run the iterations of a step; what they change and was not rewound."""
    batches = [copy.deepcopy(one.batch) for one in records]
    rewound = prepare()
    before = _state(inner, batches)
    try:
        for one, batch in zip(records, batches):
            if one.rng is not None:
                restore_rng(one.rng)
            model.train_step(batch, optim_wrapper=twin.wrapper)
    except _Answered:
        pass
    return tuple(
        key[1]
        for key, value in _state(inner, batches).items()
        if before.get(key) != value and key not in rewound
    )


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
def _apart(model: DistributedDataParallel) -> Iterator[None]:
    """Keep DDP from communicating, and leave it as it was."""
    sync = model.require_forward_param_sync
    try:
        with model.no_sync():
            # It would write to the buffers themselves, not to their copies.
            model.require_forward_param_sync = False
            yield
    finally:
        model.require_forward_param_sync = sync
