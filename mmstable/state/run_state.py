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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from mmengine.runner import Runner, load_state_dict
from torch import Tensor, UntypedStorage
from torch.nn import Module, Parameter

from mmstable import runner_view
from mmstable.events import Culprit
from mmstable.io.schema import integer, optional, record, tuple_of
from mmstable.optim.buffers import can_write
from mmstable.optim.grad_health import unwrap
from mmstable.state.progress import capture_progress
from mmstable.state.rng import own_rng


class HostCopy(NamedTuple):
    """The values of a tensor, and the device it was on."""

    values: Tensor
    device: torch.device

    def restore(self, present: Tensor | None) -> Tensor:
        """A tensor with these values: the present one, if it can hold them."""
        if present is None or not can_write(present, self.values):
            return self.values.clone().to(self.device)
        with torch.no_grad():
            return present.copy_(self.values)


# A dtype, and whether tensors are on an accelerator.
_Kind = tuple[torch.dtype, bool]


class HostMemory:
    """Host memory for copies, in one block for each dtype.

    A block that an accelerator copies to is pinned: only then copies run
    beside the training.

    Args:
        tensors (Iterable[Tensor]): What is going to be copied.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        from mmstable.state.device import host_block

        self._sizes = _sizes(tensors)
        self._blocks = {
            kind: host_block(count, kind[0], pinned=kind[1])
            for kind, count in self._sizes.items()
        }
        self._used: Counter[_Kind] = Counter()
        # Copies of whole storages, by the address of the original.
        self._copies: dict[int, Tensor] = {}
        # Copies that are made beside the training: memory and tensor.
        self.late: list[tuple[Tensor, Tensor]] | None = None
        # Whether a checkpoint is being written from it.
        self.is_lent = False

    @property
    def blocks(self) -> list[Tensor]:
        """The memory that it has taken."""
        return list(self._blocks.values())

    def reuse(self, tensors: Iterable[Tensor]) -> HostMemory:
        """Return memory for other copies: this one, if it is as large."""
        if self.is_lent or _sizes(tensors) != self._sizes:
            return HostMemory(tensors)
        self._used.clear()
        self._copies.clear()
        return self

    def copy(self, tensor: Tensor, late: bool = False) -> HostCopy:
        """Copy a tensor, without waiting for an accelerator.

        Args:
            tensor (Tensor): The tensor.
            late (bool): Whether nothing but a step changes it, so that it
                can be copied beside the next forward pass. Defaults to
                False.
        """
        values = self._take(tensor)
        if late and self.late is not None and not is_opaque(tensor):
            self.late.append((values, tensor.detach()))
        else:
            # What is queued after this cannot overtake it.
            values.copy_(tensor.detach(), non_blocking=True)
        if not is_opaque(tensor) and values.stride() == tensor.stride():
            storage = tensor.untyped_storage()
            if 0 < storage.nbytes() == tensor.numel() * tensor.element_size():
                self._copies[storage._cdata] = values
        return HostCopy(values, tensor.device)

    def storages(self) -> dict[int, UntypedStorage]:
        """Return the copies of whole storages, by ``_cdata`` of the original.

        They share the memory of the copies. The addresses are valid only as
        long as the tensors that were copied.
        """
        return {key: _storage(one) for key, one in self._copies.items()}

    def _take(self, tensor: Tensor) -> Tensor:
        kind = _kind(tensor)
        begin = self._used[kind]
        end = begin + tensor.numel()
        if is_opaque(tensor) or end > self._sizes[kind]:
            return torch.empty_like(tensor, device='cpu')
        self._used[kind] = end
        # With strides like those of the tensor, or it is copied twice.
        strides = torch.empty_like(tensor, device='meta').stride()
        block = self._blocks[kind]
        return block.as_strided(tensor.shape, strides, begin)


def _storage(values: Tensor) -> UntypedStorage:
    """Return a storage that holds the values of a dense tensor, only."""
    flat = values.as_strided((values.numel(),), (1,)).view(torch.uint8)
    return torch.from_numpy(flat.numpy()).untyped_storage()


def is_opaque(tensor: Tensor) -> bool:
    """Whether a tensor is more than values in one piece of memory."""
    # A DTensor is copied to another DTensor only.
    return tensor.layout is not torch.strided or hasattr(tensor, 'to_local')


def _kind(tensor: Tensor) -> _Kind:
    return tensor.dtype, tensor.device.type != 'cpu'


def _sizes(tensors: Iterable[Tensor]) -> Counter[_Kind]:
    sizes: Counter[_Kind] = Counter()
    for one in tensors:
        if not is_opaque(one):
            sizes[_kind(one)] += one.numel()
    return sizes


# Names of tensors by section, both as in a checkpoint.
Sections = dict[str, dict[str, Tensor]]


class Part(ABC):
    """A part of what a run has learned."""

    @abstractmethod
    def move_to_host(self, runner: Runner, state: Any) -> None:
        """Take what :meth:`capture` gave in the place of lost tensors.

        Nothing is read from the device, or written to it.
        """

    def tensors(self, runner: Runner) -> Sections:
        """The live tensors, to look through them."""
        return {}

    @abstractmethod
    def capture(self, runner: Runner, memory: HostMemory) -> Any:
        """Everything, as data that nothing changes later."""

    @abstractmethod
    def restore(self, runner: Runner, state: Any) -> None:
        """Bring back what :meth:`capture` gave."""

    @abstractmethod
    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Bring back what a checkpoint has, as strict as mmengine's resume."""


# Other sparse layouts are for tables, and torch cannot write to them.
_READABLE = (torch.strided, torch.sparse_coo)


class _Modules(Part):
    """Weights and all buffers of some modules, by section."""

    @abstractmethod
    def modules(self, runner: Runner) -> dict[str, Module]:
        """The modules, by the section of a checkpoint that they are in."""

    def _is_late(self, tensor: Tensor) -> bool:
        """Whether nothing but an optimizer step changes a tensor."""
        return False

    def tensors(self, runner: Runner) -> Sections:
        modules = self.modules(runner).items()
        return {section: _tensors(module) for section, module in modules}

    def capture(self, runner: Runner, memory: HostMemory) -> Any:
        return {
            section: {
                name: memory.copy(tensor, self._is_late(tensor))
                for name, tensor in tensors.items()
            }
            for section, tensors in self.tensors(runner).items()
        }

    def restore(self, runner: Runner, state: Any) -> None:
        for section, module in self.modules(runner).items():
            restore_tensors(module, state.get(section, {}))

    def move_to_host(self, runner: Runner, state: Any) -> None:
        for section, module in self.modules(runner).items():
            live = _tensors(module)
            for name, kept in state.get(section, {}).items():
                owner, _, leaf = name.rpartition('.')
                buffers = module.get_submodule(owner)._buffers
                if leaf in buffers:
                    buffers[leaf] = kept.values
                else:
                    live[name].data = kept.values


class Weights(_Modules):
    """Those of the model inside DDP and the like.

    A checkpoint has what ``model.state_dict()`` gives, which may be less: the
    rest is left as it is.
    """

    def _is_late(self, tensor: Tensor) -> bool:
        # Running statistics change in the forward pass.
        return isinstance(tensor, Parameter)

    def modules(self, runner: Runner) -> dict[str, Module]:
        """The model."""
        return {'state_dict': unwrap(runner.model)}

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Load what is there, and warn of what is missing."""
        load_state_dict(
            runner_view.saved_model(runner),
            checkpoint['state_dict'],
            strict=False,
            logger=runner.logger,
        )


class Averages(_Modules):
    """The averages of the weights that ``EMAHook`` keeps."""

    def modules(self, runner: Runner) -> dict[str, Module]:
        """All averages."""
        hooks = runner_view.average_hooks(runner)
        return {
            f'ema{number or ""}_state_dict': hook.ema_model
            for number, hook in enumerate(hooks)
        }

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Let the hooks load them, and swap them with the weights."""
        with runner_view.as_resuming(runner):
            for hook in runner_view.average_hooks(runner):
                hook.after_load_checkpoint(runner, checkpoint)


def unsaved_buffers(module: Module) -> dict[str, Tensor]:
    """The buffers that are not persistent, so that no checkpoint has them."""
    names = {
        f'{path}.{leaf}' if path else leaf
        for path, owner in module.named_modules()
        for leaf in owner._non_persistent_buffers_set
    }
    return {n: b for n, b in module.named_buffers() if n in names}


def _tensors(module: Module) -> dict[str, Tensor]:
    # Not `state_dict`: that leaves out buffers which are not persistent.
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: tensor
        for name, tensor in found.items()
        if tensor.layout in _READABLE
    }


def restore_tensors(module: Module, copies: Mapping[str, HostCopy]) -> None:
    """Give weights and buffers these values, and their shapes if need be."""
    live = _tensors(module)
    for name, kept in copies.items():
        present = live.get(name)
        restored = kept.restore(present)
        if restored is not present:
            # A buffer that has got another shape.
            owner, _, leaf = name.rpartition('.')
            buffers = module.get_submodule(owner)._buffers
            buffers.update({leaf: restored} if leaf in buffers else {})


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
    known: dict[str, str] = {}
    for wrapper, paths in parameter_paths(runner).items():
        saved = (
            f'{wrapper}.state'
            if runner_view.has_many_wrappers(runner)
            else 'state'
        )
        for number, path in enumerate(paths.values()):
            known[f'optimizer.{saved}.{number}'] = f'optimizer.{path}'
    return [_rename(culprit, known) for culprit in culprits]


def _rename(culprit: Culprit, known: dict[str, str]) -> Culprit:
    owner, _, entry = culprit.name.rpartition('.')
    if owner not in known:
        return culprit
    return Culprit(f'{known[owner]}.{entry}', culprit.kind)


class Schedules(Part):
    """The parameter schedulers of all wrappers."""

    def capture(
        self, runner: Runner, memory: HostMemory
    ) -> list[dict[str, Any]]:
        """The state of each."""
        schedulers = runner_view.all_schedulers(runner)
        return [copy.deepcopy(one.state_dict()) for one in schedulers]

    def restore(self, runner: Runner, state: list[dict[str, Any]]) -> None:
        """Set them back, apart from those that follow the validation."""
        states = iter(state)
        for group in runner_view.schedulers(runner).values():
            is_kept = follows_validation(group)
            for one, saved in zip(group, states):
                if not is_kept:
                    one.load_state_dict(copy.deepcopy(saved))

    # They are on the host.
    move_to_host = restore

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Set them back, if the optimizers were."""
        if not has_schedules(checkpoint):
            return
        saved = checkpoint['param_schedulers']
        if isinstance(saved, Mapping):
            saved = [state for group in saved.values() for state in group]
        self.restore(runner, saved)


def has_schedules(checkpoint: Mapping[str, Any]) -> bool:
    """Whether schedules can be restored from a checkpoint."""
    # A schedule computes a rate from the one before: both or none.
    return {'optimizer', 'param_schedulers'} <= checkpoint.keys()


def follows_validation(schedulers: Iterable[Any]) -> bool:
    """Whether results of validations decide about the rates of a wrapper.

    What they have decided is not taken back: a rollback leaves these rates
    and all schedules of that wrapper, which change the same numbers, as they
    are.
    """
    return any(getattr(one, 'need_val_args', False) for one in schedulers)


def schedule_positions(runner: Runner) -> list[int]:
    """How many steps each schedule has made."""
    schedulers = runner_view.all_schedulers(runner)
    return [runner_view.schedule_position(one) for one in schedulers]


def catch_up(runner: Runner, before: list[int]) -> None:
    """See that schedules which were set back end with the run.

    Those by epoch move to the present epoch at once. Those by iteration catch
    up slowly, by :class:`SafeParamSchedulerHook`; with mmengine's own hook
    they end that much later.

    Args:
        runner (Runner): The runner.
        before (list[int]): Where they were.
    """
    backlog: dict[str, int] = {}
    positions = iter(before)
    for name, group in runner_view.schedulers(runner).items():
        for one in group:
            behind = next(positions) - runner_view.schedule_position(one)
            if not one.by_epoch:
                backlog[name] = max(behind, 0)
                continue
            for _ in range(behind):
                one.step()
    for hook in runner.hooks:
        if hasattr(hook, 'add_backlog'):
            for name, behind in backlog.items():
                hook.add_backlog(behind, name)


# What a wrapper of mmstable knows of its own past, which stays.
_COUNTS = 'safe_step'
# What mmengine calls the state of a loss scaler.
_SCALE = 'loss_scaler'
# What schedules change in a group; betas have the momentum in them.
_RATES = ('lr', 'momentum', 'betas')


class Optimizers(Part):
    """State and settings of all optimizers, and the scale of the losses."""

    def tensors(self, runner: Runner) -> Sections:
        """The state of each parameter, by the parameter's name."""
        paths = parameter_paths(runner)
        found = {
            f'{paths[name].get(id(param), number)}.{key}': value
            for name, optimizer in runner_view.optimizers(runner).items()
            for number, (param, state) in enumerate(optimizer.state.items())
            for key, value in state.items()
            if isinstance(value, Tensor)
        }
        return {'optimizer': found}

    def capture(self, runner: Runner, memory: HostMemory) -> dict[str, Any]:
        """State of each parameter, settings of groups, loss scales."""
        return {
            'states': {
                name: [
                    (param, _copy(state, memory))
                    for param, state in held.state.items()
                ]
                for name, held in runner_view.optimizers(runner).items()
            },
            'settings': _settings(runner),
            'scales': {
                name: copy.deepcopy(scaler.state_dict())
                for name, scaler in _scalers(runner)
            },
        }

    def restore(self, runner: Runner, state: dict[str, Any]) -> None:
        """Bring them back; parameters without a state lose theirs."""
        for name, optimizer in runner_view.optimizers(runner).items():
            present = dict(optimizer.state)
            optimizer.state.clear()
            for param, saved in state['states'][name]:
                optimizer.state[param] = _restored(
                    saved, present.get(param, {})
                )
        kept = _kept_rates(runner)
        _apply(runner, copy.deepcopy(state['settings']))
        _apply(runner, kept)
        for name, scaler in _scalers(runner):
            scaler.load_state_dict(_lower_scale(scaler, state['scales'][name]))

    def move_to_host(self, runner: Runner, state: dict[str, Any]) -> None:
        """Replace the states of parameters, settings and scales."""
        for name, optimizer in runner_view.optimizers(runner).items():
            optimizer.state.clear()
            for param, saved in state['states'][name]:
                optimizer.state[param] = {
                    key: value.values if isinstance(value, HostCopy) else value
                    for key, value in saved.items()
                }
        _apply(runner, state['settings'])
        for name, scaler in _scalers(runner):
            if hasattr(scaler, '_scale'):
                # torch's own would write to a tensor of the device.
                scaler._scale = scaler._growth_tracker = None
            scaler.load_state_dict(state['scales'][name])

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Load as mmengine does; without a state, optimizers start anew."""
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


def _copy(state: Mapping[str, Any], memory: HostMemory) -> dict[str, Any]:
    return {
        key: memory.copy(value, late=True)
        if isinstance(value, Tensor)
        else copy.deepcopy(value)
        for key, value in state.items()
    }


def _restored(
    saved: Mapping[str, Any], present: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        key: value.restore(present.get(key))
        if isinstance(value, HostCopy)
        else copy.deepcopy(value)
        for key, value in saved.items()
    }


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


@dataclass
class Snapshot:
    """The state of a run in host memory.

    Args:
        parts (list): What every part of the state captured.
        memory (HostMemory): The memory it took.
        meta (dict[str, int]): Epoch and iteration, as in a checkpoint.
        progress (dict): Random generators of this rank, and its position in
            the data.
        copied (Any, optional): The event after the last copy; None once
            everything is in host memory. Defaults to None.
    """

    parts: list[Any]
    memory: HostMemory
    meta: dict[str, int]
    progress: dict[str, Any]
    copied: Any | None = None

    def settle(self) -> bool:
        """Whether everything has arrived in host memory, without waiting.

        It has to be asked while the device works: a lost one does not tell.
        """
        if self.copied is not None and self.copied.query():
            self.copied = None
        return self.copied is None

    def copy_seconds(self) -> float:
        """Seconds that a device took to copy it; it must be the newest."""
        from mmstable.state.device import copy_stream

        blocks = self.parts[0]['state_dict'].values()
        device = next((one.device for one in blocks), torch.device('cpu'))
        return copy_stream(device).seconds()

    def wait(self) -> None:
        """Wait until everything has arrived in host memory."""
        copied = self.copied
        if copied is not None:
            copied.synchronize()


class Snapshots:
    """The newest, and an older one.

    A rollback goes to the newest one. If that did not help, that is, if the
    next rollback comes before a new one was taken, it goes to the older one.

    Args:
        span (int): How many iterations the older one may be behind.
        count (int): How many are kept, 1 or 2. Defaults to 2.
    """

    COUNT = 2

    def __init__(self, span: int, count: int = COUNT) -> None:
        self.span = span
        self.count = count
        self._kept: list[tuple[int, Snapshot]] = []
        self._used: Snapshot | None = None

    def outdated(self, iteration: int) -> Snapshot | None:
        """The one that the next takes the place of, if there are two.

        Args:
            iteration (int): Of the next.
        """
        if len(self._kept) < self.count:
            return None
        return self._kept[self._outdated(iteration)][1]

    def _outdated(self, iteration: int) -> int:
        # What goes wrong slowly is not mended by what is nearly as new.
        is_recent = iteration - self._kept[0][0] <= self.span
        return int(is_recent and self.count > 1)

    def add(self, iteration: int, snapshot: Snapshot) -> None:
        """Keep one, in the place of an outdated one if there are two."""
        if len(self._kept) == self.count:
            del self._kept[self._outdated(iteration)]
        self._kept.append((iteration, snapshot))
        self._used = None

    def newest(self) -> Snapshot | None:
        """The newest one that is known to be in host memory."""
        settled = [one for __, one in self._kept if one.copied is None]
        return settled[-1] if settled else None

    def candidates(self) -> list[Snapshot]:
        """What may be restored, the newest first."""
        kept = [snapshot for _, snapshot in reversed(self._kept)]
        return kept[1:] if kept[1:] and kept[0] is self._used else kept

    def discard_newest(self) -> None:
        """Let :meth:`choose` give the older one."""
        self._kept.pop()

    def choose(self) -> tuple[int, Snapshot] | None:
        """Which to restore, and its iteration; None if there is none."""
        if len(self._kept) > 1 and self._kept[-1][1] is self._used:
            # What did not help is nothing to keep.
            self._kept.pop()
        if not self._kept:
            return None
        self._used = self._kept[-1][1]
        return self._kept[-1]


PARTS: tuple[Part, ...] = (Weights(), Averages(), Optimizers(), Schedules())


class RunState:
    """What a run has learned so far.

    Args:
        runner (Runner): The runner.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def tensors(self) -> Sections:
        """The live tensors: name by section, called as in a checkpoint."""
        return {
            section: tensors
            for part in PARTS
            for section, tensors in part.tensors(self._runner).items()
        }

    def capture(self, old: Snapshot | None = None) -> Snapshot:
        """Copy everything to host memory.

        Args:
            old (Snapshot, optional): One whose memory can be used again.
                Defaults to None.
        """
        from mmstable.state.device import copy_stream

        runner = self._runner
        tensors = [
            one
            for section in self.tensors().values()
            for one in section.values()
        ]
        memory = (
            HostMemory(tensors) if old is None else old.memory.reuse(tensors)
        )
        stream = copy_stream(runner_view.device_of(runner.model))
        memory.late = [] if stream.is_beside else None
        parts = [part.capture(runner, memory) for part in PARTS]
        optimizers = runner_view.optimizers(runner).values()
        stream.copy(memory.late or (), optimizers)
        memory.late = None
        meta = runner_view.resume_meta(runner)
        progress = capture_progress(runner, all_ranks=False)
        # The next batch is drawn already.
        progress['rng'].update(own_rng(runner, meta['iter']))
        return Snapshot(parts, memory, meta, progress, stream.end)

    def restore(self, saved: Snapshot | Mapping[str, Any]) -> None:
        """Bring back a snapshot, or a checkpoint of this run.

        Args:
            saved (Snapshot or Mapping): What was captured, or the content of
                a checkpoint, which is changed.
        """
        from mmstable.state.device import copy_stream

        copy_stream(runner_view.device_of(self._runner.model)).wait()
        # Backwards: a checkpoint has weights and averages in each other's
        # place, until the hooks of the averages have loaded it.
        for number, part in reversed(list(enumerate(PARTS))):
            if isinstance(saved, Snapshot):
                part.restore(self._runner, saved.parts[number])
            else:
                part.load(self._runner, saved)
        self._forget_open_step()

    def move_to_host(self, snapshot: Snapshot) -> None:
        """Continue in host memory with a snapshot, after a device is lost.

        The run can be saved then, as always, and not be trained: nothing
        reads the device.
        """
        for part, state in zip(PARTS, snapshot.parts):
            part.move_to_host(self._runner, state)
        self._forget_open_step()

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
            if hasattr(wrapper, 'forget'):
                wrapper.reset()
        for hook in self._runner.hooks:
            if hasattr(hook, 'forget_window'):
                hook.forget_window()


# Each is made up for by a call: more than a run could ever lose.
_STEPS = integer(0, 10**6)


class ScheduleBacklog:
    """The steps that a schedule is behind the run, made up for until its end.

    A schedule has as many steps as the run has iterations. It waits while an
    optimizer step is lost, so that the next one gets the same value. Its
    backlog is spread evenly over the iterations that are left. If the last
    iteration is good, nothing is left of it.
    """

    saved = staticmethod(
        record(
            owed=_STEPS,
            hold=_STEPS,
            plan=optional(tuple_of(_STEPS, integer(1, 2**53))),
            left=integer(0, 2**53),
        )
    )

    def __init__(self) -> None:
        self.steps = 0
        # Iterations that it still waits.
        self.hold = 0
        # The backlog, and the iterations left, when catching up began.
        self._plan: tuple[int, int] | None = None
        self._left = 0

    def add(self, steps: int) -> None:
        """Note that the schedule is behind by so many steps more."""
        self.steps += steps
        self._plan = None

    def advance(self, left: int, lost: int = 0) -> int:
        """How many steps of the schedule to take after an iteration.

        Args:
            left (int): Iterations that come after this one.
            lost (int): If an optimizer step was skipped in this iteration,
                how many iterations it stands for. Defaults to 0.
        """
        # A loop of somebody else may continue after its end.
        left = max(left, 0)
        if left != self._left - 1:
            # The run has got another length.
            self._plan = None
        self._left = left
        self.hold = max(self.hold, lost)
        # Without a loss it waits only if there is time to catch up.
        if lost or (self.hold and self.steps < left):
            self.hold -= 1
            self.add(1)
            return 0
        self.hold = 0
        return 1 + self._catch_up(left)

    def _catch_up(self, left: int) -> int:
        if self.steps == 0:
            return 0
        if self._plan is None:
            self._plan = (self.steps, left + 1)
        owed, length = self._plan
        # A straight line down to 0, rounded: one step is paid half-way.
        still_owed = (2 * owed * left + length) // (2 * length)
        paid, self.steps = self.steps - still_owed, still_owed
        return paid

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know; nothing if nothing is owed."""
        if self.steps == self.hold == 0:
            return {}
        return dict(
            owed=self.steps,
            hold=self.hold,
            plan=None if self._plan is None else list(self._plan),
            left=self._left,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.steps, self.hold = state['owed'], state['hold']
        self._plan, self._left = state['plan'], state['left']
