"""A config as the rules see it: what it says, and what mmengine adds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from mmstable.preflight.config_tree import Node, kind_of, look_up, walk
from mmstable.preflight.machine import Machine
from mmstable.preflight.trial import Trial

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# What mmengine's runner has if the config does not say otherwise.
DEFAULT_HOOKS: Mapping[str, Node] = {
    'runtime_info': {'type': 'RuntimeInfoHook'},
    'timer': {'type': 'IterTimerHook'},
    'sampler_seed': {'type': 'DistSamplerSeedHook'},
    'logger': {'type': 'LoggerHook'},
    'param_scheduler': {'type': 'ParamSchedulerHook'},
    'checkpoint': {'type': 'CheckpointHook', 'interval': 1},
}
_TRANSFORMER = re.compile(
    'transformer|swin|vit$|vit_|^vit|detr|deit|beit|mixer|bert|attention|'
    'mae|clip|dino|segformer|segmenter|mask2former|maskformer|t2t|tnt',
    re.I,
)


class Part(NamedTuple):
    """A dict of a config.

    Args:
        path (str): Where it is.
        settings (Mapping): What it says.
    """

    path: str
    settings: Node

    @property
    def kind(self) -> str:
        """The class that it is for, without its package."""
        return kind_of(self.settings)


class ConfigView:
    """Answers what several rules ask.

    Args:
        settings (Mapping): The config with its bases, in plain types.
        machine (Machine): Where it shall run.
        ranks (int): How many processes train. Defaults to 1.
        file (str): The config's file. Defaults to ''.
        written (Mapping, optional): The config before its keys of mmcv 1.x
            were translated; None if nothing was. Defaults to None.
        trial (Trial, optional): What came out of building and trying it;
            None if that was not done. Defaults to None.
    """

    def __init__(
        self,
        settings: Node,
        machine: Machine,
        ranks: int = 1,
        file: str = '',
        written: Node | None = None,
        trial: Trial | None = None,
    ) -> None:
        self.settings = settings
        self.machine = machine
        self.ranks = ranks
        self.file = file
        self.trial = trial
        self.written = settings if written is None else written

    def with_settings(self, settings: Node) -> ConfigView:
        """The same view of another config."""
        return ConfigView(
            settings, self.machine, self.ranks, self.file, None, self.trial
        )

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path; None counts as a value."""
        return look_up(self.settings, path, default)

    def part(self, path: str) -> Part:
        """The dict at a path; an empty one if there is none."""
        found = self.get(path)
        return Part(path, found if isinstance(found, Mapping) else {})

    @cached_property
    def wrappers(self) -> list[Part]:
        """The optimizer wrappers: one, or several with names."""
        whole = self.part('optim_wrapper')
        if 'optimizer' in whole.settings or not whole.settings:
            return [whole] if whole.settings else []
        inner = [
            Part(f'optim_wrapper.{name}', value)
            for name, value in whole.settings.items()
            if isinstance(value, Mapping) and 'optimizer' in value
        ]
        return inner or [whole]

    @cached_property
    def hooks(self) -> list[Part]:
        """All hooks that are dicts, those of mmengine included."""
        named = self.part('default_hooks').settings
        merged = {**DEFAULT_HOOKS, **named}
        found = [(f'default_hooks.{k}', v) for k, v in merged.items()]
        custom = self.get('custom_hooks') or []
        found += [(f'custom_hooks.{n}', v) for n, v in enumerate(custom)]
        return [Part(p, v) for p, v in found if isinstance(v, Mapping)]

    @cached_property
    def loaders(self) -> list[Part]:
        """The data loaders that there are."""
        found = [self.part(name) for name in LOADERS]
        return [one for one in found if one.settings]

    @cached_property
    def schedulers(self) -> list[Part]:
        """Every entry of ``param_scheduler``."""
        whole = self.get('param_scheduler')
        if isinstance(whole, Mapping) and 'type' in whole:
            return [Part('param_scheduler', whole)]
        return [
            Part(path, node)
            for path, node in walk(whole, 'param_scheduler')
            if 'type' in node
        ]

    @cached_property
    def by_epoch(self) -> bool:
        """Whether the run is counted in epochs."""
        loop = self.part('train_cfg')
        if 'by_epoch' in loop.settings:
            return bool(loop.settings['by_epoch'])
        if 'IterBased' in loop.kind or 'EpochBased' in loop.kind:
            return 'EpochBased' in loop.kind
        return 'max_iters' not in loop.settings

    @cached_property
    def length(self) -> int | None:
        """Epochs or iterations of the run."""
        name = 'max_epochs' if self.by_epoch else 'max_iters'
        return whole_number(self.get(f'train_cfg.{name}'))

    @cached_property
    def batch_size(self) -> int | None:
        """Samples that one rank trains with in one iteration."""
        return whole_number(self.get('train_dataloader.batch_size'))

    @cached_property
    def accumulation(self) -> int:
        """Iterations of one step; the most of all wrappers."""
        counts = [
            whole_number(one.settings.get('accumulative_counts'))
            for one in self.wrappers
        ]
        return max([1, *(count for count in counts if count)])

    @cached_property
    def validates(self) -> bool:
        """Whether there is a validation."""
        return bool(self.get('val_cfg') and self.get('val_dataloader'))

    @property
    def val_interval(self) -> int:
        """Epochs or iterations between validations."""
        given = whole_number(self.get('train_cfg.val_interval'))
        return given or (1 if self.by_epoch else 1000)

    @cached_property
    def transformers(self) -> list[str]:
        """Classes of the model that have attention in them, by name."""
        kinds = {kind_of(node) for _, node in walk(self.get('model'))}
        return sorted(kind for kind in kinds if _TRANSFORMER.search(kind))

    @property
    def checkpoint_hook(self) -> Part | None:
        """The hook that saves checkpoints."""
        for hook in self.hooks:
            if hook.kind in ('CheckpointHook', 'SafeCheckpointHook'):
                return hook
        return None

    @property
    def local_ranks(self) -> int:
        """How many of the ranks are on this machine, as far as one knows."""
        gpus = self.machine.gpus
        return min(self.ranks, gpus) if gpus else self.ranks


def whole_number(value: Any) -> int | None:
    """An int above 0, or None."""
    return value if type(value) is int and value > 0 else None


def uses_amp(wrapper: Part) -> bool:
    """Whether a wrapper trains in mixed precision."""
    return wrapper.kind in ('AmpOptimWrapper', 'SafeAmpOptimWrapper')


def uses_fp16(wrapper: Part) -> bool:
    """Whether a wrapper trains in fp16."""
    dtype = str(wrapper.settings.get('dtype') or 'float16')
    return uses_amp(wrapper) and 'bfloat16' not in dtype


def skips_steps(view: ConfigView) -> bool:
    """Whether some wrapper may skip a step."""
    return any(uses_amp(w) or w.kind.startswith('Safe') for w in view.wrappers)
