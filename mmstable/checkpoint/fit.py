"""Does a checkpoint fit the run that is to be resumed from it?

mmengine loads what fits and warns of the rest, so a run with a wrong model
would train on from weights that are mostly random.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from mmstable import run_view
from mmstable.checkpoint.sections import check_sections, scalar
from mmstable.errors import CheckpointError
from mmstable.messages import _
from mmstable.messages.printable import printable, short_repr

# As mmengine strips it from the names in a checkpoint.
_PREFIX = re.compile(r'^module.')
_SHOWN = 3
_NOT_THERE = '-'
# Optimizers whose state has the shape of the parameter. Others may keep
# anything for it.
_ELEMENTWISE = tuple(
    f'torch.optim.{name}'
    for name in ('adagrad', 'adam', 'adamw', 'nadam', 'rmsprop', 'sgd')
)
# Settings without which they keep less for a parameter.
_NEEDED = {'amsgrad': 'max_exp_avg_sq', 'centered': 'grad_avg'}


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
        only_here = sum(there == _NOT_THERE for *__, there in self.differences)
        only_there = sum(
            here == _NOT_THERE for __, here, __ in self.differences
        )
        first = '; '.join(
            _(
                '{name} is {here} here, {there} there',
                name=printable(name, 200),
                here=here,
                there=there,
            )
            for name, here, there in self.differences[:_SHOWN]
        )
        return _(
            '{count} of {total} tensors differ ({shapes} in shape, '
            '{only_here} only in the model, {only_there} only in the '
            'checkpoint): {first}',
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
    saved = {_stripped(name): value for name, value in saved.items()}
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
        return _(
            'the optimizers are {here} here, {there} there',
            here=', '.join(wrappers),
            there=', '.join(map(printable, saved)),
        )
    for name, wrapper in wrappers.items():
        here = _group_sizes(wrapper.optimizer.param_groups)
        there = _group_sizes(_groups_in(saved[name]))
        if here != there:
            return _(
                'the optimizer has {here:parameter group|parameter groups} '
                'with {here_params:parameter|parameters} here, '
                '{there:group|groups} with '
                '{there_params:parameter|parameters} there',
                here=len(here),
                here_params=sum(here),
                there=len(there),
                there_params=sum(there),
            )
    return None


def check_resumable(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    """Make sure that a run can be resumed from what was loaded.

    Args:
        runner (Runner): The runner, built as far as it is to be trained.
        checkpoint (Mapping): The checkpoint.

    Raises:
        CheckpointError: If it is not of such a run.
    """
    try:
        check_sections(checkpoint)
        if isinstance(runner.optim_wrapper, (OptimWrapper, OptimWrapperDict)):
            _check_settings(runner, checkpoint.get('optimizer'))
            _try_schedules(runner, checkpoint.get('param_schedulers'))
    except ValueError as error:
        raise CheckpointError(
            _('no run saves this: {reason}', reason=error)
        ) from error


def _check_settings(runner: Runner, saved: Any) -> None:
    if saved is None or compare_optimizers(runner, saved) is not None:
        # torch names what does not fit.
        return
    for name, wrapper in run_view.wrappers(runner).items():
        one = saved[name] if run_view.has_many_wrappers(runner) else saved
        for here, there in zip(
            wrapper.optimizer.param_groups, one['param_groups']
        ):
            for key in here.keys() & there.keys() - {'params'}:
                if _differ(here[key], there[key]):
                    raise ValueError(
                        f'`optimizer`: `param_groups`: `{printable(key)}`: '
                        f'must be as {short_repr(here[key])}, got '
                        f'{short_repr(there[key])}'
                    )
        _check_shapes(wrapper.optimizer, one)


def _check_shapes(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    if type(optimizer).__module__ not in _ELEMENTWISE:
        return
    for here, there in zip(optimizer.param_groups, saved['param_groups']):
        needed = {_NEEDED[key] for key in _NEEDED if there.get(key)}
        for key, param in zip(there['params'], here['params']):
            # Shards keep it elsewhere.
            state = saved.get('state', {}).get(key, {})
            missing = needed - state.keys() if state else set()
            # SGD has none for a parameter without a gradient.
            missing |= {n for n in state if state[n] is None} - {
                'momentum_buffer'
            }
            wrong = [
                name
                for name, entry in state.items()
                # Older versions of torch count steps in a row of one.
                if name != 'step'
                and entry is not None
                and getattr(entry, 'shape', None)
                not in (torch.Size(), param.shape)
            ]
            if missing or wrong:
                raise ValueError(
                    f'`optimizer`: `state`: `{key}`: must have '
                    f'{short_repr([*missing, *wrong])} of the shape '
                    f'{_shape(param)}'
                )


def _differ(here: Any, there: Any) -> bool:
    """Whether a saved setting is of another kind than the configured one."""
    if here is None or isinstance(here, torch.Tensor):
        return False
    if isinstance(here, bool):
        # As `fused`, which is None by default.
        return not isinstance(there, (bool, type(None)))
    if isinstance(here, Number):
        return not isinstance(there, (Number, torch.Tensor))
    if isinstance(here, (list, tuple)):
        return not isinstance(there, (list, tuple)) or len(here) != len(there)
    return not isinstance(there, type(here))


def _try_schedules(runner: Runner, saved: Any) -> None:
    """Let copies of the schedules take their next step."""
    groups = saved if isinstance(saved, Mapping) else None
    for name, schedulers in run_view.schedulers(runner).items():
        states = (saved or ()) if groups is None else groups.get(name, ())
        for scheduler, state in zip(schedulers, states):
            try:
                _try_schedule(scheduler, state)
            except Exception as error:
                text = f'{type(error).__name__}: {error}'
                raise ValueError(f'`param_schedulers`: {text}') from error


def _try_schedule(scheduler: Any, state: Mapping[str, Any]) -> None:
    is_known = type(scheduler).__module__.startswith('mmengine.')
    if not is_known or getattr(scheduler, 'need_val_args', False):
        return
    replaced = [key for key in state if hasattr(type(scheduler), key)]
    if replaced:
        raise ValueError(f'{short_repr(replaced)} are no settings')
    trial = copy.copy(scheduler)
    trial.load_state_dict(copy.deepcopy(dict(state)))
    for group in trial.optimizer.param_groups:
        scalar(group[trial.param_name])
    # As in `step`, which also changes the rates.
    trial.last_step += 1
    if trial.begin <= trial._global_step + 1 < trial.end:
        for value in trial._get_value():
            scalar(value)


def fits_exactly(runner: Runner, checkpoint: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has all weights of a run, and its optimizers.

    Nothing is loaded to find out. Buffers may differ: those of a cache can
    have grown.
    """
    model = run_view.saved_model(runner)
    buffers = {name for name, __ in model.named_buffers()}
    saved = checkpoint.get('state_dict', {})
    there = {_stripped(name): _shape(one) for name, one in saved.items()}
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


def _stripped(name: Any) -> str:
    return _PREFIX.sub('', str(name))


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
