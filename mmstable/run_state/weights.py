"""Weights and buffers of the model, and the averages of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.runner import Runner, load_state_dict
from torch import Tensor
from torch.nn import Module

from mmstable import run_view
from mmstable.optim.parameter_names import unwrap
from mmstable.run_state.host_copy import HostCopy, HostMemory
from mmstable.run_state.part import Part, Sections

# Other sparse layouts are for tables, and torch cannot write to them.
_READABLE = (torch.strided, torch.sparse_coo)


class _Modules(Part):
    """Weights and all buffers of some modules, by section."""

    @abstractmethod
    def modules(self, runner: Runner) -> dict[str, Module]:
        """The modules, by the section of a checkpoint that they are in."""

    def tensors(self, runner: Runner) -> Sections:
        modules = self.modules(runner).items()
        return {section: _tensors(module) for section, module in modules}

    def capture(self, runner: Runner, memory: HostMemory) -> Any:
        return {
            section: {
                name: memory.copy(f'{section}.{name}', tensor)
                for name, tensor in tensors.items()
            }
            for section, tensors in self.tensors(runner).items()
        }

    def restore(self, runner: Runner, state: Any) -> None:
        for section, module in self.modules(runner).items():
            restore_tensors(module, state.get(section, {}))


class Weights(_Modules):
    """Those of the model inside DDP and the like.

    A checkpoint has what ``model.state_dict()`` gives, which may be less: the
    rest is left as it is.
    """

    def modules(self, runner: Runner) -> dict[str, Module]:
        """The model."""
        return {'state_dict': unwrap(runner.model)}

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Load what is there, and warn of what is missing."""
        load_state_dict(
            run_view.saved_model(runner),
            checkpoint['state_dict'],
            strict=False,
            logger=runner.logger,
        )


class Averages(_Modules):
    """The averages of the weights that ``EMAHook`` keeps."""

    def modules(self, runner: Runner) -> dict[str, Module]:
        """All averages."""
        hooks = run_view.average_hooks(runner)
        return {
            f'ema{number or ""}_state_dict': hook.ema_model
            for number, hook in enumerate(hooks)
        }

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Let the hooks load them, and swap them with the weights."""
        with run_view.as_resuming(runner):
            for hook in run_view.average_hooks(runner):
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
    for name, copy in copies.items():
        present = live.get(name)
        restored = copy.restore(present)
        if restored is not present:
            # A buffer that has got another shape.
            owner, _, leaf = name.rpartition('.')
            buffers = module.get_submodule(owner)._buffers
            buffers.update({leaf: restored} if leaf in buffers else {})
