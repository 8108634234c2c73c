"""Do a training step again, on the same batch, without a trace."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Callable

import torch
from mmengine.optim import OptimWrapperDict
from torch import Tensor
from torch.nn import Module

from mmstable.batches import batch_size, name_sample, take_samples
from mmstable.forensics.birth_mode import BirthMode
from mmstable.forensics.local_ranks import local_ranks
from mmstable.forensics.recorder import Backprop, RecordingWrapper
from mmstable.forensics.step_setup import StepSetup
from mmstable.forensics.storage_map import walk_tensors
from mmstable.forensics.traceless import traceless
from mmstable.run_state.rng import restore_rng

# Gives the mode to run in, for the model and the copy of the batch.
MakeMode = Callable[[Module, Any], BirthMode]


@dataclass(frozen=True)
class StepScene:
    """All that is needed to do a training step again.

    Args:
        model (Module): The model, without DDP and the like around it.
        batch (Any): What the data loader gave.
        setups (Mapping): What each optimizer wrapper adds, by its name.
        has_many (bool): Whether the model gets a dict of wrappers. Defaults
            to False.
        rng (Mapping, optional): The random state before the step, as of
            :func:`~mmstable.run_state.rng.capture_rng`. Defaults to None.
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

    def only(self, samples: list[int]) -> StepScene:
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
        mode (BirthMode, optional): The mode that it ran in. Defaults to
            None.
        bad_terms (dict): Names of the terms whose own gradients are bad, by
            the index of their pass; if asked for. Defaults to {}.
    """

    passes: list[Backprop] = field(default_factory=list)
    outputs: Any = None
    mode: BirthMode | None = None
    bad_terms: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def first_bad(self, wrapper: str | None = None) -> Backprop | None:
        """The first bad pass, of this wrapper if there is one.

        Args:
            wrapper (str, optional): The name of a wrapper. Defaults to None.
        """
        bad = [one for one in self.passes if one.is_bad]
        of_wrapper = [one for one in bad if one.wrapper == wrapper]
        return next(iter(of_wrapper or bad), None)


def replay_step(
    scene: StepScene,
    dtype: str | None = None,
    make_mode: MakeMode | None = None,
    with_gradients: bool = True,
    by_term: bool = False,
) -> ReplayedStep:
    """Do a training step again, and leave everything as it was.

    The model is run without DDP around it, uncompiled, and without the other
    ranks: its SyncBatchNorm uses the statistics of this rank.

    Args:
        scene (StepScene): The step.
        dtype (str, optional): What to autocast to instead: 'float16' or
            'bfloat16', or 'float32' for no autocast. Defaults to None.
        make_mode (Callable, optional): Gives the mode to run it in. Defaults
            to None.
        with_gradients (bool): Whether to do the backward pass. Defaults to
            True.
        by_term (bool): Whether to find the terms of a finite loss whose own
            gradients are bad. Defaults to False.
    """
    model, step = scene.model, ReplayedStep()
    batch = copy.deepcopy(scene.batch)
    wrappers = {
        name: RecordingWrapper(
            name, setup, model, step.passes, dtype, with_gradients, by_term
        )
        for name, setup in scene.setups.items()
    }
    with ExitStack() as stack:
        stack.enter_context(traceless(model))
        stack.enter_context(local_ranks(model))
        stack.enter_context(_uncompiled())
        parsed = stack.enter_context(_terms_of(model))
        if scene.rng is not None:
            restore_rng(dict(scene.rng))
        if make_mode is not None:
            step.mode = make_mode(model, batch)
            stack.enter_context(step.mode)
        step.outputs = _train_step(model, batch, wrappers, scene.has_many)
        _name_terms(step, parsed)
        if by_term:
            _judge_terms(step, wrappers)
    return step


def _train_step(
    model: Module,
    batch: Any,
    wrappers: dict[str, RecordingWrapper],
    has_many: bool,
) -> Any:
    given: Any = next(iter(wrappers.values()))
    if has_many:
        given = OptimWrapperDict(**wrappers)
    # Not the attribute: mmengine puts a compiled one there.
    cls: Any = type(model)
    with torch.enable_grad():
        return cls.train_step(model, batch, optim_wrapper=given)


@contextmanager
def _terms_of(model: Any) -> Iterator[list[tuple[Tensor, dict[str, Tensor]]]]:
    """Note what losses are the sum of, as the model adds them up."""
    parsed: list[tuple[Tensor, dict[str, Tensor]]] = []
    parse = getattr(model, 'parse_losses', None)
    if parse is None:
        yield parsed
        return

    def note(losses: Any, *args: Any, **kwargs: Any) -> Any:
        result = parse(losses, *args, **kwargs)
        if isinstance(losses, Mapping) and isinstance(result, tuple):
            parsed.append((result[0], _flatten(losses)))
        return result

    # `traceless` takes it away again.
    vars(model)['parse_losses'] = note
    yield parsed


def _flatten(losses: Mapping[str, Any]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in walk_tensors(losses):
        if 'loss' in name:
            found[name] = value
    return found


def _name_terms(
    step: ReplayedStep, parsed: list[tuple[Tensor, dict[str, Tensor]]]
) -> None:
    outputs = step.outputs if isinstance(step.outputs, Mapping) else {}
    for one in step.passes:
        terms = [named for total, named in parsed if total is one.loss]
        # Without `parse_losses`, what is logged may be the loss itself, or
        # what it is the sum of.
        logged = _flatten(outputs)
        own = {name: v for name, v in logged.items() if v is one.loss}
        one.terms = terms[0] if terms else own or logged


def _judge_terms(
    step: ReplayedStep, wrappers: dict[str, RecordingWrapper]
) -> None:
    for index, one in enumerate(step.passes):
        bad = []
        for name, term in one.terms.items():
            if not term.requires_grad:
                continue
            gradients = wrappers[one.wrapper].gradients_of(term.mean(), True)
            if Backprop('', term.detach().mean(), gradients).is_bad:
                bad.append(name)
        step.bad_terms[index] = tuple(bad)


def can_run_uncompiled() -> bool:
    """Whether this torch can run compiled parts as they were written."""
    return hasattr(torch.compiler, 'set_stance')


def _uncompiled() -> Any:
    if not can_run_uncompiled():
        return nullcontext()
    return torch.compiler.set_stance('force_eager')
