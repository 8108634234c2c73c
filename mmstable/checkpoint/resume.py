"""Compare a checkpoint with the run that is resumed from it, or with another.

mmengine loads what fits and warns of the rest, so a run with a wrong model
would train on from weights that are mostly random. Checkpoints of mmcv 1.x are
completed, and the schedule of the config can replace the one that was saved.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any, Callable

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from mmstable import runner_view
from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.loading import load_file, no_dict
from mmstable.checkpoint.manifest import Manifest
from mmstable.checkpoint.sections import check_sections, scalar
from mmstable.errors import CheckpointError
from mmstable.messages import N_, _, printable, short_repr

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
class StateDictDiff:
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
        only_here = sum(there == _NOT_THERE for *__, there in self.differences)
        only_there = sum(
            here == _NOT_THERE for __, here, __ in self.differences
        )
        first = '; '.join(
            _(
                '{name} is {here} in the model, {there} in the checkpoint',
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


def compare_weights(model: Module, saved: Mapping[str, Any]) -> StateDictDiff:
    """Compare what a model would save with what a checkpoint has.

    What the model does not save, as the frozen part of an adapter model, may
    be missing. Names and shapes that the model's own loading translates are
    no difference: then, and only then, the weights are loaded to find out.

    Args:
        model (Module): The model, not trained yet.
        saved (Mapping): The ``state_dict`` of the checkpoint.
    """
    here = _shapes(model.state_dict())
    saved = {_stripped(name): value for name, value in saved.items()}
    there = _shapes(saved)
    names = {n for n in here | there if here.get(n) != there.get(n)}
    if names:
        try:
            missing, unexpected = model.load_state_dict(saved, strict=False)
        except RuntimeError:
            # It does not say which, but a shape is among the differences.
            pass
        else:
            names = {*here.keys() & missing, *unexpected}
    rows = [
        (name, here.get(name, _NOT_THERE), there.get(name, _NOT_THERE))
        for name in sorted(names)
        # mmengine does not miss them either.
        if name in there or 'num_batches_tracked' not in name
    ]
    # Other shapes first, then what is only in the model.
    rows.sort(key=lambda row: (row[1] == _NOT_THERE, row[2] == _NOT_THERE))
    differing = sum(row[1] != _NOT_THERE for row in rows)
    return StateDictDiff(len(here) - differing, tuple(rows))


def compare_optimizers(runner: Runner, saved: Mapping[str, Any]) -> str | None:
    """What keeps mmengine from loading the state of the optimizers.

    Args:
        runner (Runner): The runner, with its optimizers.
        saved (Mapping): The section ``optimizer`` of the checkpoint.

    Returns:
        str or None: The first difference, or None if there is none.
    """
    wrappers, saved = runner_view.wrappers(runner), _by_wrapper(runner, saved)
    if wrappers.keys() != saved.keys():
        return _(
            'the optimizers are {here} here, {there} there',
            here=', '.join(wrappers),
            there=', '.join(map(printable, saved)),
        )
    for name, wrapper in wrappers.items():
        here = _group_sizes({'param_groups': wrapper.optimizer.param_groups})
        there = _group_sizes(saved[name])
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
    for name, wrapper in runner_view.wrappers(runner).items():
        one = _by_wrapper(runner, saved)[name]
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


def fits_exactly(runner: Runner, checkpoint: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has all weights of a run, and its optimizers.

    Nothing is loaded to find out. Buffers may differ: those of a cache can
    have grown.
    """
    model = runner_view.saved_model(runner)
    buffers = {name for name, __ in model.named_buffers()}
    saved = checkpoint.get('state_dict', {})
    there = _shapes({_stripped(name): one for name, one in saved.items()})
    if any(
        there.get(name) != shape
        for name, shape in _shapes(model.state_dict()).items()
        if name not in buffers
    ):
        return False
    return (
        'optimizer' not in checkpoint
        or compare_optimizers(runner, checkpoint['optimizer']) is None
    )


def _stripped(name: Any) -> str:
    return _PREFIX.sub('', str(name))


def _shapes(state: Mapping[str, Any]) -> dict[str, str]:
    return {name: _shape(value) for name, value in state.items()}


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor) or is_lazy(value):
        return type(value).__name__
    return str(list(value.shape))


def _by_wrapper(runner: Runner, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    if runner_view.has_many_wrappers(runner):
        return saved
    return dict.fromkeys(runner_view.wrappers(runner), saved)


def _group_sizes(state: Any) -> list[int]:
    groups = state.get('param_groups') if isinstance(state, Mapping) else None
    return [
        len(group.get('params', ())) if isinstance(group, Mapping) else 0
        for group in (groups if isinstance(groups, (list, tuple)) else ())
    ]


_INITIAL = 'initial_'


class ConfiguredSchedule:
    """The schedule that the config asks for, and the optimizer's settings.

    Args:
        runner (Runner): A runner that has built its schedule, but has not
            loaded a checkpoint.
    """

    def __init__(self, runner: Runner) -> None:
        self._values = {
            name: [_start_values(group) for group in wrapper.param_groups]
            for name, wrapper in runner_view.wrappers(runner).items()
        }

    def differences(self, runner: Runner) -> list[str]:
        """What the config says otherwise than a checkpoint that was loaded.

        Each as 'lr 0.005 (0.01)', with the checkpoint's in brackets.
        """
        found: list[str] = []
        wrappers = runner_view.wrappers(runner)
        for name, wrapper in wrappers.items():
            prefix = f'{name}: ' if len(wrappers) > 1 else ''
            known = set()
            for group, values in zip(wrapper.param_groups, self._values[name]):
                restored = _start_values(group)
                for key, value in values.items():
                    other = restored.get(key, value)
                    if key.startswith(_INITIAL) or key in known:
                        continue
                    if _numbers(value) != _numbers(other):
                        known.add(key)
                        found.append(
                            f'{prefix}{key} {_show(value)} ({_show(other)})'
                        )
        return found

    def move_to(self, runner: Runner) -> None:
        """Replace the runner's schedule by this, at its iteration."""
        for name, wrapper in runner_view.wrappers(runner).items():
            for group, values in zip(wrapper.param_groups, self._values[name]):
                group.update(values)
        configured = runner.cfg.get('param_scheduler')
        if configured is None:
            return
        with warnings.catch_warnings():
            # Of steps that the optimizer did not take: others took them.
            warnings.simplefilter('ignore')
            runner.param_schedulers = runner.build_param_scheduler(
                copy.deepcopy(configured)
            )
            _repeat(runner)


def _start_values(group: dict[str, Any]) -> dict[str, Any]:
    """Its numbers, those that schedules change as they were at the start."""
    values = {
        key: value
        for key, value in group.items()
        # Others choose how torch computes, not what.
        if key == 'lr'
        or (items := _items(value))
        and set(map(type, items)) <= {int, float}
    }
    for key, value in group.items():
        if key.startswith(_INITIAL):
            values[key] = values[key[len(_INITIAL) :]] = value
    return values


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]


def _numbers(value: Any) -> list[float]:
    # Also a learning rate that is a tensor.
    return [float(one) for one in _items(value)]


def _show(value: Any) -> str:
    return ', '.join(f'{one:g}' for one in _numbers(value))


def _repeat(runner: Runner) -> None:
    """Take all steps of the past: each builds on the one before it."""
    schedulers = runner_view.all_schedulers(runner)
    by_epoch = [one for one in schedulers if one.by_epoch]
    by_iter = [one for one in schedulers if not one.by_epoch]
    length = 0
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        length = len(runner.train_dataloader)
    for done in range(1, runner.iter + 1):
        for one in by_iter:
            one.step()
        # The last epoch may have all its iterations and not be over.
        if length and done % length == 0 and done // length <= runner.epoch:
            for one in by_epoch:
                one.step()


_FACTS = {
    'iteration': N_('iteration'),
    'epoch': N_('epoch'),
    'time': N_('saved at'),
    'versions': N_('versions'),
    'seed': N_('seed'),
    'loss_scale': N_('loss scale'),
    'lr': N_('learning rate'),
    'finite': N_('finite'),
    'sections': N_('sections'),
    'weights': N_('weights'),
}


@dataclass(frozen=True)
class Description:
    """A checkpoint, described for a person.

    Args:
        facts (Mapping[str, str]): What it is, by name.
        weights (Mapping[str, Tensor]): What the model has in it.
    """

    facts: Mapping[str, str]
    weights: Mapping[str, Tensor]


def describe_checkpoint(path: str | Path) -> Description:
    """Read a checkpoint, or a file of weights only.

    Raises:
        BadCheckpoint: If it is neither.
    """
    content = load_file(path)
    if not isinstance(content, Mapping):
        raise no_dict(path, content)
    weights = content.get('state_dict', content)
    tensors = {
        str(name): value
        for name, value in _as_dict(weights).items()
        if isinstance(value, Tensor)
    }
    return Description(_facts(Path(path), content, tensors), tensors)


def _facts(
    path: Path, content: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, str]:
    meta = _as_dict(content.get('meta'))
    optimizer = _as_dict(content.get('optimizer'))
    manifest = Manifest.read(path)
    versions = dict(manifest.versions) if manifest else {}
    if not versions and 'mmengine_version' in meta:
        versions['mmengine'] = meta['mmengine_version']
    has_sections = 'state_dict' in content
    poison = find_poison(content if has_sections else {'state_dict': content})
    found = {
        'iteration': meta.get('iter'),
        'epoch': meta.get('epoch'),
        'time': meta.get('time'),
        'versions': ', '.join(f'{k} {v}' for k, v in versions.items()),
        'seed': meta.get('seed'),
        'loss_scale': _each(optimizer, _scale_in),
        'lr': _each(optimizer, _rates_in),
        'finite': _('NO: {culprits}', culprits=list_culprits(poison))
        if poison
        else _('yes'),
        'sections': ', '.join(map(str, content)) if has_sections else None,
        'weights': _(
            '{tensors:tensor|tensors}, {values} values',
            tensors=len(tensors),
            values=sum(tensor.numel() for tensor in tensors.values()),
        ),
    }
    return {
        _(_FACTS[name]): value if isinstance(value, str) else short_repr(value)
        for name, value in found.items()
        if value not in (None, '')
    }


def compare_states(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> dict[str, str]:
    """Describe how the weights of two checkpoints differ, by name."""
    found = {
        name: _difference(one.get(name), other.get(name))
        for name in {**one, **other}
    }
    return {name: text for name, text in found.items() if text is not None}


def _difference(one: Tensor | None, other: Tensor | None) -> str | None:
    if one is None or other is None:
        return _(
            'only in the first' if other is None else 'only in the second'
        )
    if one.shape != other.shape or one.dtype != other.dtype:
        return f'{kind_of(one)} -> {kind_of(other)}'
    if torch.equal(one, other):
        return None
    left, right = one.detach(), other.detach()
    if not left.is_complex():
        left, right = left.double(), right.double()
    gap = (left - right).abs()
    # Those that are NaN in both are no difference.
    gap = gap[~(torch.isnan(left) & torch.isnan(right))]
    if gap.numel() == 0 or bool((gap == 0).all()):
        return None
    return _('differs by up to {gap:.3g}', gap=float(gap.max()))


def kind_of(tensor: Tensor) -> str:
    """Its shape and type, in short."""
    shape = ' x '.join(map(str, tensor.shape)) or '1'
    return f'{shape} {str(tensor.dtype).rpartition(".")[2]}'


def _each(optimizer: Mapping[str, Any], show: Callable[[Any], str]) -> str:
    """Show something of every wrapper in a saved section."""
    wrappers = {'': optimizer}
    if 'param_groups' not in optimizer:
        wrappers = {
            f'{name}: ': one
            for name, one in optimizer.items()
            if 'param_groups' in _as_dict(one)
        }
    shown = {name: show(one) for name, one in wrappers.items()}
    return ', '.join(name + text for name, text in shown.items() if text)


def _scale_in(state: Mapping[str, Any]) -> str:
    scaler = _as_dict(state.get('loss_scaler'))
    return str(scaler.get('scale')) if scaler else ''


def _rates_in(state: Mapping[str, Any]) -> str:
    """The lowest and the highest learning rate."""
    rates = sorted(
        {
            float(group['lr'])
            for group in map(_as_dict, state.get('param_groups', ()))
            if isinstance(group.get('lr'), (int, float))
        }
    )
    return ' ... '.join(f'{rate:g}' for rate in rates[:1] + rates[1:][-1:])


def _as_dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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
    """Call :func:`prepare_to_resume`, and log what it has changed."""
    for note in prepare_to_resume(checkpoint):
        runner.logger.info(_('mmstable: checkpoint: {note}.', note=note))


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
