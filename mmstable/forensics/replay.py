"""Run a training step again on the same batch, and restore all state.

Recording wrappers take the place of optimizer wrappers and never step. The
model runs on one rank, although it may belong to several.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Optional

import torch
from mmengine.dist import get_world_size
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor
from torch.futures import Future
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from mmstable import runner_view
from mmstable.batch import (
    batch_size,
    name_sample,
    named_tensors,
    take_samples,
)
from mmstable.events.samples import read_scale
from mmstable.forensics.frames import FINITE, severity
from mmstable.forensics.trace import OriginTracer
from mmstable.loops.question import autocast_dtype
from mmstable.optim.grad_health import clean_name
from mmstable.state.preserve import preserve_state, uncompiled
from mmstable.state.rng import restore_rng
from mmstable.torch_internals import work_maker


@dataclass(frozen=True)
class StepSetup:
    """How the loss of a wrapper is computed and scaled.

    Args:
        dtype (str, optional): What autocast casts to; None without autocast.
            Defaults to None.
        loss_scale (float): What the loss is multiplied by. Defaults to 1.0.
        loss_factor (int): What it is divided by: iterations that make one
            step. Defaults to 1.
        parameters (tuple[str]): Names of the parameters that are trained.
            Defaults to ().
    """

    # `X | None` cannot be read back on Python 3.9.
    dtype: Optional[str] = None  # noqa: UP045
    loss_scale: float = 1.0
    loss_factor: int = 1
    parameters: tuple[str, ...] = ()


def setup_of(
    wrapper: Any, model: Module, loss_scale: float | None = None
) -> StepSetup:
    """The setup of an optimizer wrapper.

    Args:
        wrapper (Any): A wrapper of mmengine or of mmstable.
        model (Module): The model, without DDP and the like around it.
        loss_scale (float, optional): The scale of the step; that of now if
            not given. Defaults to None.
    """
    names = {id(one): name for name, one in model.named_parameters()}
    trained = [
        names.get(id(one))
        for group in wrapper.optimizer.param_groups
        for one in group['params']
    ]
    scale = read_scale(wrapper) if loss_scale is None else loss_scale
    return StepSetup(
        autocast_dtype(wrapper),
        1.0 if scale is None else scale,
        runner_view.accumulative_counts(wrapper),
        tuple(clean_name(name) for name in trained if name is not None),
    )


# A checkpoint of this kind refuses `torch.autograd.grad`.
_REENTRANT = 'CheckpointFunctionBackward'


@dataclass
class Backprop:
    """A loss that a model gave to an optimizer wrapper.

    Args:
        wrapper (str): The name of the wrapper.
        loss (Tensor): The loss.
        gradients (dict): Of the wrapper's parameters, by name, scaled; empty
            if the loss is bad, or nobody asked for them. Defaults to {}.
        terms (dict): What the loss is the sum of, by name, if the model used
            ``parse_losses``. Defaults to {}.
        terms_of_gradient (tuple[str]): Names of the terms whose own gradients
            are bad, if asked for. Defaults to ().
    """

    wrapper: str
    loss: Tensor
    gradients: dict[str, Tensor] = field(default_factory=dict)
    terms: dict[str, Tensor] = field(default_factory=dict)
    terms_of_gradient: tuple[str, ...] = ()

    @property
    def bad_gradients(self) -> dict[str, Tensor]:
        """Those that are not finite."""
        return {
            name: one
            for name, one in self.gradients.items()
            if severity(one) != FINITE
        }

    @property
    def bad_terms(self) -> tuple[str, ...]:
        """Names of the terms that are not finite."""
        return tuple(
            name for name, one in self.terms.items() if severity(one) != FINITE
        )

    @property
    def is_bad(self) -> bool:
        """Whether the loss or a gradient is not finite."""
        return severity(self.loss) != FINITE or bool(self.bad_gradients)


class RecordingWrapper(OptimWrapper):
    """Answers like an optimizer wrapper, and records what it is given.

    Args:
        name (str): The name of the wrapper that it stands for.
        setup (StepSetup): How that one computes and scales losses.
        model (Module): The model.
        record (list[Backprop]): Takes the losses.
        dtype (str, optional): What to autocast to instead. Defaults to None.
        with_gradients (bool): Whether to compute gradients. Defaults to True.
        by_term (bool): Whether to keep the graph, so that gradients of single
            terms can be computed. Defaults to False.
    """

    def __init__(
        self,
        name: str,
        setup: StepSetup,
        model: Module,
        record: list[Backprop],
        dtype: str | None = None,
        with_gradients: bool = True,
        by_term: bool = False,
    ) -> None:
        known = dict(model.named_parameters())
        self._params = {
            one: known[one] for one in setup.parameters if one in known
        }
        # Models may look at it. Without gradients it does nothing.
        optimizer = torch.optim.SGD(
            list(self._params.values()) or [torch.zeros(1)], lr=0.0
        )
        super().__init__(optimizer, setup.loss_factor)
        self._name = name
        self._setup = setup
        self._record = record
        self._dtype = dtype
        self._with_gradients = with_gradients
        self._by_term = by_term
        self._given: Tensor | None = None

    @contextmanager
    def optim_context(self, model: Module) -> Iterator[None]:
        """Autocast, as in the step that is replayed."""
        parameter = next(model.parameters(), None)
        kind = 'cpu' if parameter is None else parameter.device.type
        dtype = self._dtype or self._setup.dtype
        if dtype is None or dtype == 'float32':
            yield
            return
        with torch.autocast(kind, dtype=getattr(torch, dtype)):
            yield

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Divide a loss by the iterations that make a step."""
        self._given = loss
        return super().scale_loss(loss)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Record a loss and its gradients."""
        self._inner_count += 1
        given = loss if self._given is None else self._given
        self._given = None
        record = Backprop(self._name, given)
        self._record.append(record)
        if not self._with_gradients or not loss.requires_grad:
            return
        if severity(loss) == FINITE:
            keep = bool(kwargs.get('retain_graph')) or self._by_term
            record.gradients = self.gradients_of(loss, keep)

    def gradients_of(self, loss: Tensor, keep: bool) -> dict[str, Tensor]:
        """The gradients of a loss, without any that accumulate them."""
        params = {n: p for n, p in self._params.items() if p.requires_grad}
        scaled = loss * self._setup.loss_scale
        if not params:
            return {}
        found: tuple[Tensor | None, ...]
        if _has_node(scaled, _REENTRANT):
            scaled.backward(retain_graph=keep)
            found = tuple(one.grad for one in params.values())
            for one in params.values():
                one.grad = None
        else:
            found = torch.autograd.grad(
                scaled,
                [*params.values()],
                retain_graph=keep,
                allow_unused=True,
            )
        return {n: g for n, g in zip(params, found) if g is not None}

    def step(self, **kwargs: Any) -> None:
        """Do nothing."""

    def zero_grad(self, **kwargs: Any) -> None:
        """Do nothing."""


def _has_node(loss: Tensor, name: str) -> bool:
    """Whether a node of this name is in the graph of a loss."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == name:
            return True
        seen.add(node)
        waiting.extend(one for one, _ in node.next_functions)
    return False


class CollectiveRefused(RuntimeError):
    """A replay that wanted to talk to other ranks, which do not listen.

    Args:
        op (str): The operation.
    """

    def __init__(self, op: str) -> None:
        self.op = op
        super().__init__(f'{op} would wait for ranks that do not replay')


class _AloneMode(TorchDispatchMode):
    """Answers for the other ranks, as if they had the same batch."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if getattr(func, 'namespace', '') not in _NAMESPACES:
            return func(*args, **(kwargs or {}))
        answer = _ANSWERS.get(str(func))
        if answer is None or _make_work is None:
            raise CollectiveRefused(str(func))
        done: Future[None] = Future()
        done.set_result(None)
        return answer(*args), _make_work(done).boxed()


_NAMESPACES = ('c10d', '_c10d_functional', 'c10d_functional')
_make_work = work_maker()


def _all_reduce(tensors: list[Tensor], *args: Any) -> list[Tensor]:
    # Which reduction it is cannot be read; most are sums.
    for one in tensors:
        one.mul_(get_world_size())
    return tensors


def _all_gather(
    outputs: list[list[Tensor]], inputs: list[Tensor], *args: Any
) -> list[list[Tensor]]:
    for gathered, own in zip(outputs, inputs):
        for one in gathered:
            one.copy_(own)
    return outputs


_ANSWERS: dict[str, Callable[..., Any]] = {
    'c10d.allreduce_.default': _all_reduce,
    'c10d.broadcast_.default': lambda tensors, *args: tensors,
    'c10d.allgather_.default': _all_gather,
}


@contextmanager
def local_ranks(model: Module) -> Iterator[None]:
    """Let a model run without the other ranks, as if all had its batch.

    To be used inside of :func:`~mmstable.state.preserve.preserve_state`,
    which undoes what is changed here.

    Args:
        model (Module): The model.
    """
    if get_world_size() == 1:
        yield
        return
    for module in model.modules():
        if isinstance(module, _BatchNorm) and 'Sync' in type(module).__name__:
            vars(module)['forward'] = partial(_BatchNorm.forward, module)
        if isinstance(module, DistributedDataParallel):
            # Parts of a model that are wrapped one by one.
            module.require_forward_param_sync = False
            module.require_backward_grad_sync = False
    with _AloneMode():
        yield


# Gives the mode to run in, for the model and the copy of the batch.
MakeMode = Callable[[Module, Any], OriginTracer]


@dataclass(frozen=True)
class StepInputs:
    """All that is needed to do a training step again.

    Args:
        model (Module): The model, without DDP and the like around it.
        batch (Any): What the data loader gave.
        setups (Mapping): What each optimizer wrapper adds, by its name.
        has_many (bool): Whether the model gets a dict of wrappers. Defaults
            to False.
        rng (Mapping, optional): The random state before the step, as of
            :func:`~mmstable.state.rng.capture_rng`. Defaults to None.
        indices (tuple[int]): Of the samples in the data set; () if nobody
            knows. Defaults to ().
    """

    model: Module
    batch: Any
    setups: Mapping[str, StepSetup]
    has_many: bool = False
    rng: Mapping[str, Any] | None = None
    indices: tuple[int, ...] = ()

    def name_sample(self, index: int) -> str:
        """What a sample is called, as 'img_path=a/b.png', or ''."""
        size = batch_size(self.batch)
        fallback = ''
        if len(self.indices) == size:
            fallback = f'dataset_index={self.indices[index]}'
        return name_sample(self.batch, index) or fallback

    def only(self, samples: list[int]) -> StepInputs:
        """The same with some samples of the batch."""
        indices = tuple(self.indices[one] for one in samples if self.indices)
        return replace(
            self, batch=take_samples(self.batch, samples), indices=indices
        )


@dataclass
class ReplayedStep:
    """What a replay has shown.

    Args:
        passes (list[Backprop]): The losses and gradients, in order. Defaults
            to [].
        outputs (Any): What ``train_step`` gave. Defaults to None.
        mode (OriginTracer, optional): The mode that it ran in. Defaults to
            None.
    """

    passes: list[Backprop] = field(default_factory=list)
    outputs: Any = None
    mode: OriginTracer | None = None

    def first_bad(self, wrapper: str | None = None) -> Backprop | None:
        """The first bad pass, of this wrapper if there is one.

        Args:
            wrapper (str, optional): The name of a wrapper. Defaults to None.
        """
        bad = [one for one in self.passes if one.is_bad]
        of_wrapper = [one for one in bad if one.wrapper == wrapper]
        return next(iter(of_wrapper or bad), None)


def replay_step(
    inputs: StepInputs,
    dtype: str | None = None,
    make_mode: MakeMode | None = None,
    with_gradients: bool = True,
    by_term: bool = False,
) -> ReplayedStep:
    """Do a training step again, and leave everything as it was.

    The model is run without DDP around it, uncompiled, and without the other
    ranks: its SyncBatchNorm uses the statistics of this rank.

    Args:
        inputs (StepInputs): The step.
        dtype (str, optional): What to autocast to instead: 'float16' or
            'bfloat16', or 'float32' for no autocast. Defaults to None.
        make_mode (Callable, optional): Gives the mode to run it in. Defaults
            to None.
        with_gradients (bool): Whether to do the backward pass. Defaults to
            True.
        by_term (bool): Whether to find the terms of a finite loss whose own
            gradients are bad. Defaults to False.
    """
    model, step = inputs.model, ReplayedStep()
    batch = copy.deepcopy(inputs.batch)
    wrappers = {
        name: RecordingWrapper(
            name, setup, model, step.passes, dtype, with_gradients, by_term
        )
        for name, setup in inputs.setups.items()
    }
    with ExitStack() as stack:
        stack.enter_context(preserve_state(model))
        stack.enter_context(local_ranks(model))
        stack.enter_context(uncompiled())
        parsed = stack.enter_context(_parsed_losses(model))
        if inputs.rng is not None:
            restore_rng(dict(inputs.rng))
        if make_mode is not None:
            step.mode = make_mode(model, batch)
            stack.enter_context(step.mode)
        given: Any = next(iter(wrappers.values()))
        if inputs.has_many:
            given = OptimWrapperDict(**wrappers)
        # Not the attribute: mmengine puts a compiled one there.
        cls: Any = type(model)
        with torch.enable_grad():
            step.outputs = cls.train_step(model, batch, optim_wrapper=given)
        for one in step.passes:
            one.terms = _terms_of(one.loss, parsed, step.outputs)
            if by_term:
                one.terms_of_gradient = tuple(
                    name
                    for name, term in one.terms.items()
                    if term.requires_grad
                    and _is_term_bad(term.mean(), wrappers[one.wrapper])
                )
    return step


def _is_term_bad(term: Tensor, wrapper: RecordingWrapper) -> bool:
    gradients = wrapper.gradients_of(term, True)
    return Backprop('', term.detach(), gradients).is_bad


Parsed = list[tuple[Tensor, dict[str, Tensor]]]


@contextmanager
def _parsed_losses(model: Any) -> Iterator[Parsed]:
    """Note what losses are the sum of, as the model adds them up."""
    parsed: Parsed = []
    parse: Any = getattr(model, 'parse_losses', None)

    def note(losses: Any, *args: Any, **kwargs: Any) -> Any:
        result = parse(losses, *args, **kwargs)
        if isinstance(losses, Mapping) and isinstance(result, tuple):
            parsed.append((result[0], _losses_in(losses)))
        return result

    if parse is not None:
        # `preserve_state` takes it away again.
        vars(model)['parse_losses'] = note
    yield parsed


def _terms_of(loss: Tensor, parsed: Parsed, outputs: Any) -> dict[str, Tensor]:
    for total, named in parsed:
        if total is loss:
            return named
    # Without `parse_losses`, what is logged may be the loss itself, or what
    # it is the sum of.
    logged = _losses_in(outputs if isinstance(outputs, Mapping) else {})
    return {name: v for name, v in logged.items() if v is loss} or logged


def _losses_in(tree: Any) -> dict[str, Tensor]:
    return {name: v for name, v in named_tensors(tree) if 'loss' in name}
