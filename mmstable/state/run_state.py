"""The state of a run: one list of parts for everything that asks for it.

====================  =================  ========  ==========  ========
part                  in a checkpoint    snapshot  rollback    resume by
====================  =================  ========  ==========  ========
weights, buffers      state_dict         yes       yes         mmengine
other buffers         (not saved)        yes       if not      (built
                                                   finite      anew)
averages of weights   ema_state_dict     yes       yes         EMAHook
optimizers, scales    optimizer          yes       yes         mmengine
schedules             param_schedulers   yes       yes, then   mmengine
                                                   catch up
random generators     mmstable           no        no          mmstable
position in the data  mmstable           no        no          mmstable
states of hooks       mmstable           no        no          the hooks
====================  =================  ========  ==========  ========

A rollback takes back what was learned. Where the run is, and what it knows of
its own past, stays: training continues with the next data.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from mmengine.runner import Runner, load_state_dict
from torch import Tensor
from torch.nn import Module, Parameter

from mmstable import runner_view
from mmstable.events import Culprit
from mmstable.optim.grad_health import unwrap
from mmstable.state.device import copy_stream
from mmstable.state.progress import capture_progress
from mmstable.state.rng import own_rng
from mmstable.state.schedules import follows_validation, has_schedules
from mmstable.state.snapshot import HostCopy, HostMemory, Snapshot

# Names of tensors by section, both as in a checkpoint.
Sections = dict[str, dict[str, Tensor]]
# Other sparse layouts are for tables, and torch cannot write to them.
_READABLE = (torch.strided, torch.sparse_coo)
# What a wrapper of mmstable knows of its own past, which stays.
_COUNTS = 'safe_step'
# What mmengine calls the state of a loss scaler.
_SCALE = 'loss_scaler'
# What schedules change in a group; betas have the momentum in them.
_RATES = ('lr', 'momentum', 'betas')


class RunState:
    """What a run has learned so far.

    Args:
        runner (Runner): The runner.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def modules(self) -> dict[str, Module]:
        """The model inside DDP and the like, and averages, by section."""
        hooks = runner_view.average_hooks(self._runner)
        return {
            'state_dict': unwrap(self._runner.model),
            **{
                f'ema{number or ""}_state_dict': hook.ema_model
                for number, hook in enumerate(hooks)
            },
        }

    def tensors(self) -> Sections:
        """The live tensors: name by section, called as in a checkpoint."""
        found = {
            section: module_tensors(module)
            for section, module in self.modules().items()
        }
        paths = parameter_paths(self._runner)
        found['optimizer'] = {
            f'{paths[name].get(id(param), number)}.{key}': value
            for name, held in runner_view.optimizers(self._runner).items()
            for number, (param, state) in enumerate(held.state.items())
            for key, value in state.items()
            if isinstance(value, Tensor)
        }
        return found

    def capture(self, old: Snapshot | None = None) -> Snapshot:
        """Copy everything to host memory.

        Args:
            old (Snapshot, optional): One whose memory can be used again.
                Defaults to None.
        """
        runner, tensors = self._runner, self.tensors()
        every = [one for some in tensors.values() for one in some.values()]
        memory = HostMemory(every) if old is None else old.memory.reuse(every)
        stream = copy_stream(runner_view.device_of(runner.model))
        memory.late = [] if stream.is_beside else None
        optimizers = runner_view.optimizers(runner)
        modules = {
            section: {
                # Running statistics change in the forward pass.
                name: memory.copy(
                    tensor,
                    late=section == 'state_dict'
                    and isinstance(tensor, Parameter),
                )
                for name, tensor in some.items()
            }
            for section, some in tensors.items()
            if section != 'optimizer'
        }
        states = {
            name: [
                (
                    param,
                    {
                        key: memory.copy(value, late=True)
                        if isinstance(value, Tensor)
                        else copy.deepcopy(value)
                        for key, value in state.items()
                    },
                )
                for param, state in held.state.items()
            ]
            for name, held in optimizers.items()
        }
        stream.copy(memory.late or (), optimizers.values())
        memory.late = None
        meta = runner_view.resume_meta(runner)
        progress = capture_progress(runner, all_ranks=False)
        # The next batch is drawn already.
        progress['rng'].update(own_rng(runner, meta['iter']))
        return Snapshot(
            modules,
            states,
            _settings(runner),
            {
                name: copy.deepcopy(scaler.state_dict())
                for name, scaler in _scalers(runner)
            },
            [
                copy.deepcopy(one.state_dict())
                for one in runner_view.all_schedulers(runner)
            ],
            memory,
            meta,
            progress,
            stream.end,
        )

    def restore(self, saved: Snapshot, on_host: bool = False) -> None:
        """Restore a snapshot.

        Args:
            saved (Snapshot): What was captured.
            on_host (bool): Whether to continue in host memory with the
                snapshot, after a device is lost. The run can be saved then,
                and not be trained. Defaults to False.
        """
        if not on_host:
            copy_stream(runner_view.device_of(self._runner.model)).wait()
        self._restore_schedules(saved.schedules)
        self._restore_optimizers(saved, on_host)
        for section, module in self.modules().items():
            restore_tensors(module, saved.modules.get(section, {}), on_host)
        self._forget_open_step()

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Restore a checkpoint of this run, as mmengine resumes one.

        Args:
            checkpoint (dict): Its content, which is changed.
        """
        runner = self._runner
        copy_stream(runner_view.device_of(runner.model)).wait()
        if has_schedules(checkpoint):
            saved = checkpoint['param_schedulers']
            if isinstance(saved, Mapping):
                saved = [state for group in saved.values() for state in group]
            self._restore_schedules(saved)
        self._load_optimizers(checkpoint)
        # A checkpoint has weights and averages in each other's place, until
        # the hooks of the averages have loaded it.
        with runner_view.as_resuming(runner):
            for hook in runner_view.average_hooks(runner):
                hook.after_load_checkpoint(runner, checkpoint)
        self.load_weights(checkpoint)
        self._forget_open_step()

    def load_weights(self, saved: Snapshot | Mapping[str, Any]) -> None:
        """Restore the weights only, of a snapshot or a checkpoint."""
        if isinstance(saved, Snapshot):
            model = unwrap(self._runner.model)
            restore_tensors(model, saved.modules['state_dict'])
        else:
            load_state_dict(
                runner_view.saved_model(self._runner),
                saved['state_dict'],
                strict=False,
                logger=self._runner.logger,
            )

    def _restore_schedules(self, saved: Iterable[dict[str, Any]]) -> None:
        """Set them back, apart from those that follow the validation."""
        states = iter(saved)
        for group in runner_view.schedulers(self._runner).values():
            is_kept = follows_validation(group)
            for one, state in zip(group, states):
                if not is_kept:
                    one.load_state_dict(copy.deepcopy(state))

    def _restore_optimizers(self, saved: Snapshot, on_host: bool) -> None:
        """Bring them back; parameters without a state lose theirs."""
        runner = self._runner
        for name, optimizer in runner_view.optimizers(runner).items():
            present = dict(optimizer.state)
            optimizer.state.clear()
            for param, state in saved.states[name]:
                known = present.get(param, {})
                optimizer.state[param] = {
                    key: value.restore(known.get(key), on_host)
                    if isinstance(value, HostCopy)
                    else copy.deepcopy(value)
                    for key, value in state.items()
                }
        kept = _kept_rates(runner)
        _apply(runner, copy.deepcopy(saved.settings))
        if not on_host:
            _apply(runner, kept)
        for name, scaler in _scalers(runner):
            scale = saved.scales[name]
            if not on_host:
                scale = _lower_scale(scaler, scale)
            elif hasattr(scaler, '_scale'):
                # torch's own would write to a tensor of the device.
                scaler._scale = scaler._growth_tracker = None
            scaler.load_state_dict(scale)

    def _load_optimizers(self, checkpoint: Mapping[str, Any]) -> None:
        """Load as mmengine does; without a state, optimizers start anew."""
        runner = self._runner
        settings, kept = _settings(runner), _kept_rates(runner)
        if 'optimizer' in checkpoint:
            runner.optim_wrapper.load_state_dict(
                _with_counts(runner, checkpoint['optimizer'])
            )
        else:
            # Moments of weights that were replaced mislead.
            for optimizer in runner_view.optimizers(runner).values():
                optimizer.state.clear()
        if not has_schedules(checkpoint):
            _apply(runner, settings)
        _apply(runner, kept)

    def size(self) -> int:
        """Bytes that a snapshot takes once there is optimizer state."""
        tensors = self.tensors()
        size = sum(
            one.numel() * one.element_size()
            for section in tensors.values()
            for one in section.values()
        )
        if not tensors['optimizer']:
            # Before its first step an optimizer has none: assume Adam's.
            size += 2 * sum(
                param.numel() * param.element_size()
                for optimizer in runner_view.optimizers(self._runner).values()
                for group in optimizer.param_groups
                for param in group['params']
            )
        return size

    def _forget_open_step(self) -> None:
        """Drop gradients and copies that belong to the replaced state."""
        for wrapper in runner_view.wrappers(self._runner).values():
            wrapper.zero_grad()
            if hasattr(wrapper, 'reset'):
                wrapper.reset()
        for hook in self._runner.hooks:
            if hasattr(hook, 'forget_window'):
                hook.forget_window()


def unsaved_buffers(module: Module) -> dict[str, Tensor]:
    """The buffers that are not persistent, so that no checkpoint has them."""
    names = {
        f'{path}.{leaf}' if path else leaf
        for path, owner in module.named_modules()
        for leaf in owner._non_persistent_buffers_set
    }
    return {n: b for n, b in module.named_buffers() if n in names}


def module_tensors(module: Module) -> dict[str, Tensor]:
    """Weights and all buffers of a module, by name."""
    # Not `state_dict`: that leaves out buffers which are not persistent.
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: tensor
        for name, tensor in found.items()
        if tensor.layout in _READABLE
    }


def restore_tensors(
    module: Module, copies: Mapping[str, HostCopy], on_host: bool = False
) -> None:
    """Give weights and buffers these values, and their shapes if need be."""
    live = module_tensors(module)
    for name, kept in copies.items():
        present = live.get(name)
        restored = kept.restore(present, on_host)
        if restored is present:
            continue
        owner, _, leaf = name.rpartition('.')
        buffers = module.get_submodule(owner)._buffers
        if leaf in buffers:
            # It may have got another shape.
            buffers[leaf] = restored
        elif on_host:
            live[name].data = restored


def parameter_paths(runner: Runner) -> dict[str, dict[int, str]]:
    """By wrapper and the id of a parameter: its path in the section.

    A parameter that the model does not know is called by its number.
    """
    names = {id(p): n for n, p in unwrap(runner.model).named_parameters()}
    paths = {}
    for wrapper, optimizer in runner_view.optimizers(runner).items():
        prefix = f'{wrapper}.' if runner_view.has_many_wrappers(runner) else ''
        groups = optimizer.param_groups
        params = [param for group in groups for param in group['params']]
        paths[wrapper] = {
            id(param): prefix + names.get(id(param), str(number))
            for number, param in enumerate(params)
        }
    return paths


def name_saved_states(
    culprits: Iterable[Culprit], runner: Runner
) -> list[Culprit]:
    """Culprits in a checkpoint with names in the place of numbers.

    A saved optimizer counts its parameters: ``optimizer.state.8.exp_avg``
    becomes ``optimizer.head.weight.exp_avg``.

    Args:
        culprits (Iterable[Culprit]): Entries of a checkpoint.
        runner (Runner): The runner that saved it.
    """
    has_many = runner_view.has_many_wrappers(runner)
    known = {
        f'optimizer.{f"{name}.state" if has_many else "state"}.{number}': path
        for name, paths in parameter_paths(runner).items()
        for number, path in enumerate(paths.values())
    }
    parts = [(one, *one.name.rpartition('.')) for one in culprits]
    return [
        Culprit(f'optimizer.{known[owner]}.{entry}', one.kind)
        if owner in known
        else one
        for one, owner, __, entry in parts
    ]


def _scalers(runner: Runner) -> Iterable[tuple[str, Any]]:
    for name, wrapper in runner_view.wrappers(runner).items():
        scaler = runner_view.loss_scaler(wrapper)
        if scaler is not None:
            yield name, scaler


def _lower_scale(scaler: Any, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of a scaler with the smaller scale, the present or the saved.

    A scale that has overflowed since would overflow again.
    """
    present = scaler.state_dict()
    return present if present['scale'] < saved['scale'] else saved


def _settings(runner: Runner) -> list[dict[str, Any]]:
    return [
        {k: copy.deepcopy(v) for k, v in group.items() if k != 'params'}
        for group in runner_view.param_groups(runner)
    ]


def _kept_rates(runner: Runner) -> list[dict[str, Any]]:
    """For each group, the settings that a rollback leaves as they are."""
    schedulers = runner_view.schedulers(runner)
    return [
        {key: group[key] for key in _RATES if key in group}
        if follows_validation(schedulers.get(name, ()))
        else {}
        for name, wrapper in runner_view.wrappers(runner).items()
        for group in wrapper.param_groups
    ]


def _apply(runner: Runner, settings: list[dict[str, Any]]) -> None:
    for group, saved in zip(runner_view.param_groups(runner), settings):
        group.update(saved)


def _with_counts(runner: Runner, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state with the counters of today, and no larger scale."""
    if not runner_view.has_many_wrappers(runner):
        return _with_count(runner.optim_wrapper, saved)
    wrappers = runner_view.wrappers(runner)
    return {
        name: _with_count(wrappers[name], one) if name in wrappers else one
        for name, one in saved.items()
    }


def _with_count(wrapper: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    # mmengine's own wrappers have none.
    today = wrapper.state_dict() if hasattr(wrapper, 'last_step') else {}
    merged = {**saved, **{k: v for k, v in today.items() if k == _COUNTS}}
    scaler = runner_view.loss_scaler(wrapper)
    if scaler is not None and _SCALE in saved:
        merged[_SCALE] = _lower_scale(scaler, saved[_SCALE])
    return merged
