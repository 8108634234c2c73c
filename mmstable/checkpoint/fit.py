"""Does a checkpoint fit the run that is to be resumed from it?

mmengine loads what fits and warns of the rest, so a run with a wrong model
would train on from weights that are mostly random.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.runner import Runner
from torch.nn import Module
from torch.nn.parameter import is_lazy

from mmstable import run_view
from mmstable.messages import say
from mmstable.messages.printable import printable

# As mmengine strips it from the names in a checkpoint.
_PREFIX = re.compile(r'^module.')
_SHOWN = 3
_NOT_THERE = '-'


@dataclass(frozen=True)
class Fit:
    """How the weights in a checkpoint and those of a model differ.

    Args:
        matching (int): Tensors that are the same in both.
        differences (tuple): Name, shape in the model and shape in the
            checkpoint of all others, as text; '-' where there is none.
    """

    matching: int
    differences: tuple[tuple[str, str, str], ...]

    @property
    def share(self) -> float:
        """The part of all tensors that differ, from 0 to 1."""
        total = self.matching + len(self.differences)
        return len(self.differences) / total if total else 0.0

    def __str__(self) -> str:
        count = len(self.differences)
        only_here = sum(there == _NOT_THERE for *_, there in self.differences)
        only_there = sum(here == _NOT_THERE for _, here, _ in self.differences)
        first = '; '.join(
            say('fit.one', name=printable(name, 200), here=here, there=there)
            for name, here, there in self.differences[:_SHOWN]
        )
        return say(
            'fit.counts',
            count=count,
            total=self.matching + count,
            shapes=count - only_here - only_there,
            only_here=only_here,
            only_there=only_there,
            first=first,
        )


def compare_weights(model: Module, saved: Mapping[str, Any]) -> Fit:
    """Compare what a model would save with what a checkpoint has.

    What the model does not save, as the frozen part of an adapter model, may
    be missing. Names and shapes that the model's own loading translates are
    no difference: then, and only then, the weights are loaded to find out.

    Args:
        model (Module): The model, not trained yet.
        saved (Mapping): The ``state_dict`` of the checkpoint.
    """
    here = {name: _shape(value) for name, value in model.state_dict().items()}
    saved = {_PREFIX.sub('', name): value for name, value in saved.items()}
    there = {name: _shape(value) for name, value in saved.items()}
    if here == there:
        return Fit(len(here), ())
    only_here, only_there = here.keys() - there.keys(), there.keys() - here
    others = {
        name
        for name in here.keys() & there.keys()
        if here[name] != there[name]
    }
    try:
        missing, unexpected = model.load_state_dict(saved, strict=False)
    except RuntimeError:
        # It does not say which, but a shape is among the differences.
        pass
    else:
        only_here = here.keys() & set(missing)
        only_there, others = set(unexpected), set()
    # mmengine does not miss them either.
    only_here = {n for n in only_here if 'num_batches_tracked' not in n}
    names = sorted(others) + sorted(only_here) + sorted(only_there)
    return Fit(
        len(here) - len(others) - len(only_here),
        tuple(
            (
                name,
                _NOT_THERE if name in only_there else here[name],
                _NOT_THERE if name in only_here else there[name],
            )
            for name in names
        ),
    )


def compare_optimizers(runner: Runner, saved: Mapping[str, Any]) -> str | None:
    """What keeps mmengine from loading the state of the optimizers.

    Args:
        runner (Runner): The runner, with its optimizers.
        saved (Mapping): The section ``optimizer`` of the checkpoint.

    Returns:
        str or None: The first difference, or None if there is none.
    """
    wrappers = run_view.wrappers(runner)
    if not run_view.has_many_wrappers(runner):
        saved = dict.fromkeys(wrappers, saved)
    if wrappers.keys() != saved.keys():
        return say(
            'fit.wrappers',
            here=', '.join(wrappers),
            there=', '.join(map(printable, saved)),
        )
    for name, wrapper in wrappers.items():
        here = _group_sizes(wrapper.optimizer.param_groups)
        there = _group_sizes(_groups_in(saved[name]))
        if here != there:
            return say(
                'fit.groups',
                here=len(here),
                here_params=sum(here),
                there=len(there),
                there_params=sum(there),
            )
    return None


def fits_exactly(runner: Runner, checkpoint: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has all weights of a run, and its optimizers.

    Nothing is loaded to find out. Buffers may differ: those of a cache can
    have grown.
    """
    model = run_view.saved_model(runner)
    buffers = {name for name, _ in model.named_buffers()}
    saved = checkpoint.get('state_dict', {})
    there = {_PREFIX.sub('', name): _shape(one) for name, one in saved.items()}
    if any(
        there.get(name) != _shape(one)
        for name, one in model.state_dict().items()
        if name not in buffers
    ):
        return False
    return (
        'optimizer' not in checkpoint
        or compare_optimizers(runner, checkpoint['optimizer']) is None
    )


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor) or is_lazy(value):
        return type(value).__name__
    return str(list(value.shape))


def _groups_in(state: Any) -> Sequence[Any]:
    groups = state.get('param_groups') if isinstance(state, Mapping) else None
    return groups if isinstance(groups, (list, tuple)) else ()


def _group_sizes(groups: Sequence[Any]) -> list[int]:
    return [
        len(group.get('params', ())) if isinstance(group, Mapping) else 0
        for group in groups
    ]
