"""Compare a checkpoint with the run that is resumed from it.

mmengine loads what fits and warns of the rest, so a run with a wrong model
would train on from weights that are mostly random. Checkpoints of mmcv 1.x are
completed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any, NamedTuple

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from mmstable import runner_view
from mmstable.checkpoint.sections import check_sections, scalar
from mmstable.errors import CheckpointError
from mmstable.messages import _, printable, short_repr

# As mmengine strips it from the names in a checkpoint.
_PREFIX = re.compile(r'^module.')
# Optimizers whose state has the shape of the parameter. Others may keep
# anything for it.
_ELEMENTWISE = tuple(
    f'torch.optim.{name}'
    for name in ('adagrad', 'adam', 'adamw', 'nadam', 'rmsprop', 'sgd')
)
# Settings without which they keep less for a parameter.
_NEEDED = {'amsgrad': 'max_exp_avg_sq', 'centered': 'grad_avg'}


class StateDictDiff(NamedTuple):
    """The difference between a model's state dict and that of a checkpoint.

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
        __, here, there = zip(*self.differences)
        only_here, only_there = there.count('-'), here.count('-')
        first = '; '.join(
            _(
                '{name} is {here} in the model, {there} in the checkpoint',
                name=printable(name, 200),
                here=here,
                there=there,
            )
            for name, here, there in self.differences[:3]
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


def compare_weights(model: Module, saved: Mapping[str, Any]) -> StateDictDiff:
    """Compare what a model would save with what a checkpoint has.

    What the model does not save, as the frozen part of an adapter model, may
    be missing. Names and shapes that the model's own loading translates are
    no difference: then, and only then, the weights are loaded to find out.

    Args:
        model (Module): The model, not trained yet.
        saved (Mapping): The ``state_dict`` of the checkpoint.
    """
    here, there = _shapes(model.state_dict()), _shapes(saved)
    names = {n for n in here | there if here.get(n) != there.get(n)}
    if names:
        plain = {_PREFIX.sub('', str(n)): one for n, one in saved.items()}
        try:
            missing, unexpected = model.load_state_dict(plain, strict=False)
        except RuntimeError:
            # It does not say which, but a shape is among the differences.
            pass
        else:
            names = {*here.keys() & missing, *unexpected}
    rows = [
        (name, here.get(name, '-'), there.get(name, '-'))
        for name in sorted(names)
        # mmengine does not miss them either.
        if name in there or 'num_batches_tracked' not in name
    ]
    # Other shapes first, then what is only in the model.
    rows.sort(key=lambda row: (row[1] == '-', row[2] == '-'))
    differing = sum(row[1] != '-' for row in rows)
    return StateDictDiff(len(here) - differing, tuple(rows))


def compare_optimizers(runner: Runner, saved: Mapping[str, Any]) -> str | None:
    """What keeps mmengine from loading the state of the optimizers.

    Args:
        runner (Runner): The runner, with its optimizers.
        saved (Mapping): The section ``optimizer`` of the checkpoint.

    Returns:
        str or None: The first difference, or None if there is none.
    """
    wrappers = runner_view.wrappers(runner)
    if runner_view.has_many_wrappers(runner) and wrappers.keys() != {*saved}:
        return _(
            'the optimizers are {here} here, {there} there',
            here=', '.join(wrappers),
            there=', '.join(map(printable, saved)),
        )
    for optimizer, state in _pairs(runner, saved):
        here, there = (
            [len(group['params']) for group in groups]
            for groups in (optimizer.param_groups, state['param_groups'])
        )
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


def fits_exactly(runner: Runner, checkpoint: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has all weights of a run, and its optimizers.

    Nothing is loaded to find out. Buffers may differ: those of a cache can
    have grown.
    """
    model = runner_view.saved_model(runner)
    buffers = {name for name, __ in model.named_buffers()}
    there = _shapes(checkpoint.get('state_dict', {}))
    return all(
        name in buffers or there.get(name) == shape
        for name, shape in _shapes(model.state_dict()).items()
    ) and (
        'optimizer' not in checkpoint
        or compare_optimizers(runner, checkpoint['optimizer']) is None
    )


def _shapes(state: Mapping[str, Any]) -> dict[str, str]:
    return {
        _PREFIX.sub('', str(name)): str(list(value.shape))
        if isinstance(value, torch.Tensor) and not is_lazy(value)
        else type(value).__name__
        for name, value in state.items()
    }


def _pairs(
    runner: Runner, saved: Mapping[str, Any]
) -> Iterator[tuple[Optimizer, Mapping[str, Any]]]:
    """Yield all optimizers, each with what is saved of it."""
    has_many = runner_view.has_many_wrappers(runner)
    for name, wrapper in runner_view.wrappers(runner).items():
        yield wrapper.optimizer, saved[name] if has_many else saved


def check_resumable(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    """Make sure that a run can be resumed from what was loaded.

    Args:
        runner (Runner): The runner, built as far as it is to be trained.
        checkpoint (Mapping): The checkpoint.

    Raises:
        CheckpointError: If it is not of such a run.
    """
    saved = checkpoint.get('optimizer')
    is_built = isinstance(
        runner.optim_wrapper, (OptimWrapper, OptimWrapperDict)
    )
    try:
        # torch names what does not fit.
        if is_built and saved and compare_optimizers(runner, saved) is None:
            for optimizer, state in _pairs(runner, saved):
                _check_settings(optimizer, state)
                _check_shapes(optimizer, state)
        if is_built:
            _try_schedules(runner, checkpoint.get('param_schedulers'))
    except ValueError as error:
        raise _no_run(error) from error


def _check_settings(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    for here, there in zip(optimizer.param_groups, saved['param_groups']):
        for key in here.keys() & there.keys() - {'params'}:
            if _differ(here[key], there[key]):
                raise ValueError(
                    f'`optimizer`: `param_groups`: `{printable(key)}`: '
                    f'must be as {short_repr(here[key])}, got '
                    f'{short_repr(there[key])}'
                )


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
                    f'{list(param.shape)}'
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
    for name, schedulers in runner_view.schedulers(runner).items():
        states = saved.get(name) if isinstance(saved, Mapping) else saved
        for scheduler, state in zip(schedulers, states or ()):
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


def prepare_to_resume(checkpoint: dict[str, Any]) -> list[str]:
    """Add what mmcv 1.x did not save.

    Meant for the stage ``after_load_checkpoint``, which comes before
    mmengine looks at anything but the weights.

    Args:
        checkpoint (dict): The checkpoint, changed in place.

    Returns:
        list[str]: What was changed, in words.
    """
    notes = []
    meta = checkpoint.get('meta')
    if meta and 'message_hub' not in checkpoint and 'optimizer' in checkpoint:
        checkpoint['message_hub'] = dict(
            log_scalars={}, runtime_info={}, resumed_keys={}
        )
        notes.append(_('written by mmcv 1.x: it has no log history'))
        scaler = _loss_scaler_of_mmcv(meta)
        if scaler is not None:
            checkpoint['optimizer'] = _add_scaler(
                checkpoint['optimizer'], scaler
            )
            notes.append(_('its loss scale is {scale}', scale=scaler['scale']))
    return notes


def prepare_and_log(runner: Runner, checkpoint: dict[str, Any]) -> None:
    """Call :func:`prepare_to_resume`, and log what it has changed.

    Raises:
        CheckpointError: If a run is resumed, and none has saved this.
    """
    if runner_view.is_resuming(runner):
        try:
            check_sections(checkpoint)
        except ValueError as error:
            raise _no_run(error) from error
    for note in prepare_to_resume(checkpoint):
        runner.logger.info(_('mmstable: checkpoint: {note}.', note=note))


def _no_run(error: ValueError) -> CheckpointError:
    return CheckpointError(_('no run saves this: {reason}', reason=error))


def _loss_scaler_of_mmcv(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    scaler = (meta.get('fp16') or {}).get('loss_scaler')
    if not scaler:
        return None
    if 'scale' in scaler:
        return dict(scaler)
    # What mmcv did before torch had mixed precision of its own.
    return {'scale': float(scaler['cur_scale'])}


def _add_scaler(optimizer: Any, scaler: dict[str, Any]) -> dict[str, Any]:
    if 'param_groups' in optimizer:
        return {'loss_scaler': scaler, **optimizer}
    return {name: _add_scaler(one, scaler) for name, one in optimizer.items()}
