"""Gradients of a failed step: on this rank, and those other ranks await."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.dist import get_world_size
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from mmstable.dist.collectives import Sharing, find_sharing
from mmstable.messages import N_, _
from mmstable.oom.recompute import replaced_forward
from mmstable.oom.report import BACKWARD, was_inside

_COLLECTIVE = N_(
    'other ranks wait for this one in the middle of the model ({name}), '
    'where one rank alone cannot begin again.'
)


class DdpRetry:
    """Retries the step of one rank, while the others wait in theirs.

    With DDP the others wait for the gradients of each parameter, once. What
    this rank has given them cannot be taken back; what it has not is given
    by another backward pass. No rank is asked, and none waits for longer
    than the step takes.

    Args:
        model (Module): The model, in its wrapper.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        is_ddp = isinstance(model, DistributedDataParallel)
        self._ddp: Any = model if is_ddp and get_world_size() > 1 else None
        # The parameters whose gradients the others have already.
        self._given: set[Tensor] = set()
        self._has_entered = False

    @property
    def have_gradients(self) -> bool:
        """Whether the others have some gradients of the failed step."""
        return bool(self._given)

    def why_not(self) -> str | None:
        """Why one rank alone cannot begin a step again; None if it can."""
        if get_world_size() == 1:
            return None
        if self._ddp is None:
            return _(_COLLECTIVE, name=type(self._model).__name__)
        if find_sharing(self._model) is not Sharing.REDUCED:
            return _(_COLLECTIVE, name='FSDP')
        for module in self._model.modules():
            name = type(module).__name__
            if isinstance(module, _BatchNorm) and 'Sync' in name:
                return _(_COLLECTIVE, name=name)
        return None

    def begin(self) -> None:
        """A new step begins."""
        self._given, self._has_entered = set(), False

    def note_failure(
        self,
        error: BaseException,
        phase: str,
        changed: set[Tensor],
        synchronises: bool,
    ) -> None:
        """Note how far a step has come.

        Args:
            error (BaseException): Its error, with all frames.
            phase (str): The phase that it was raised in.
            changed (set[Tensor]): Parameters that got a gradient.
            synchronises (bool): Whether others wait for gradients.
        """
        if self._ddp is None:
            return
        is_backward = phase == BACKWARD
        self._has_entered |= is_backward or was_inside(error, self._ddp)
        if is_backward and synchronises and not self._given:
            self._given = {param for param in changed if param.requires_grad}

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Run the model again, without what the others do only once."""
        if self._ddp is None or not self._has_entered:
            yield
        elif self._given:
            # DDP starts no second reduction while one is under way.
            with replaced_forward(self._ddp, self._ddp.module):
                yield
        else:
            # Buffers were broadcast by the first attempt.
            self._ddp.require_forward_param_sync = False
            yield

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Back-propagate, and give the others what they lack.

        Args:
            loss (Tensor): The loss of the same batch.
            **kwargs: For ``Tensor.backward``.
        """
        if not self._given:
            loss.backward(**kwargs)
            return
        rest = self._rest()
        # Not by `backward`: that would give gradients a second time.
        grads = torch.autograd.grad(loss, rest, allow_unused=True)
        found = [(p, g) for p, g in zip(rest, grads) if g is not None]
        self._give(found)

    def why_not_leave_out(self, wrapper: Any, many: bool) -> str | None:
        """Why a step cannot be left out with all ranks; None if it can.

        Args:
            wrapper (Any): The optimizer wrapper.
            many (bool): Whether it is one of several.
        """
        if get_world_size() == 1:
            return None
        if self._ddp is None:
            return _(_COLLECTIVE, name=type(self._model).__name__)
        if many:
            return _('a train_step with several optimizer wrappers')
        if not hasattr(wrapper, 'skip_iteration'):
            return _(
                'the optimizer wrapper ({name}) cannot leave out a step '
                'together with the other ranks; those of mmstable can.',
                name=type(wrapper).__name__,
            )
        if self._given and self._ddp.find_unused_parameters:
            return _(
                'find_unused_parameters=True, and nobody knows what the '
                'others still wait for.'
            )
        return None

    def leave_out(self, wrapper: Any, spoils: bool) -> None:
        """Leave a batch out of its step, together with the others.

        Args:
            wrapper (Any): A safe optimizer wrapper.
            spoils (bool): Whether the rest of the step is of no use either.
        """
        reduce = None
        if self._ddp is not None and wrapper.should_sync():
            reduce = self._give_all
        wrapper.skip_iteration(reduce, spoils)

    def _give_all(self, value: float) -> None:
        """Give the others gradients of one value, wherever they wait."""
        if self._given:
            # Some have real gradients: no other value fits to those.
            rest = self._rest()
            self._give([(p, torch.full_like(p, math.nan)) for p in rest])
            return
        with replaced_forward(self._ddp.module, self._touch_all):
            if self._has_entered:
                self._ddp.require_forward_param_sync = False
            (self._ddp() * value).backward()

    def _touch_all(self) -> Tensor:
        params = [p for p in self._ddp.module.parameters() if p.requires_grad]
        return torch.stack([param.sum() for param in params]).sum()

    def _rest(self) -> list[Tensor]:
        return [
            param
            for param in self._ddp.module.parameters()
            if param.requires_grad and param not in self._given
        ]

    def _give(self, found: list[tuple[Tensor, Tensor]]) -> None:
        torch.autograd.backward(
            [param.view_as(param) for param, __ in found],
            [grad for __, grad in found],
        )


class PartialGradients:
    """Tells apart what came before a backward pass and what it has added.

    A backward pass adds to each gradient once, so a parameter has all of it
    or nothing. What was added to an older gradient cannot be taken away; that
    parameter is complete then, and gets nothing when the pass is done again.

    Args:
        params (Iterable[Tensor]): All that may get a gradient.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._params = list(params)
        self._before: dict[Tensor, int] = {}
        self._complete: dict[Tensor, Tensor] = {}

    def note(self) -> None:
        """Note what there is before a backward pass that accumulates."""
        self._complete = {}
        self._before = {
            param: grad._version
            for param in self._params
            if (grad := param.grad) is not None
        }

    def changed(self) -> set[Tensor]:
        """The parameters that the failed pass has given a gradient."""
        return {
            param
            for param in self._params
            if param.grad is not None
            and param.grad._version != self._before.get(param)
        }

    def put_back(self) -> None:
        """Make ready for the same backward pass again."""
        for param in self._params:
            grad = param.grad
            if grad is None:
                continue
            known = self._before.get(param)
            if known is None or param in self._complete:
                param.grad = None
            elif grad._version != known:
                self._complete[param] = grad
                param.grad = None

    @property
    def are_mixed(self) -> bool:
        """Whether some hold a part of a batch together with older ones."""
        return bool(self._complete)

    def spoil(self) -> None:
        """Let nobody take mixed gradients for those of a step."""
        for grad in self._complete.values():
            grad.fill_(math.nan)
        self.complete()

    def complete(self) -> None:
        """After that pass: complete gradients count, others were added."""
        for param, grad in self._complete.items():
            param.grad = grad
        self._complete = {}
