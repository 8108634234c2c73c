"""Address, read and change a config; derive the facts that rules share.

A path is a dotted string, where numbers are places in lists, or a tuple of
keys and places.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Union

from mmstable.check.machine import Machine, Trial

Node = Mapping[str, Any]
Keys = tuple[Union[str, int], ...]
Path = Union[str, Keys]
# As a value: remove the setting.
ABSENT = object()
_INNER = (Mapping, list, tuple)


def look_up(node: Any, path: Path, default: Any = None) -> Any:
    """Return the value at a path; None counts as a value."""
    # In place: rules look up hundreds of paths.
    for key in path.split('.') if isinstance(path, str) else path:
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif (
            isinstance(node, (list, tuple))
            and str(key).isdigit()
            and int(key) < len(node)
        ):
            node = node[int(key)]
        else:
            return default
    return node


def put(settings: Any, path: Path, value: Any) -> None:
    """Set or remove a value in place; create dicts and lists as needed.

    Args:
        settings (dict): The config: of plain dicts, or of mmengine's own.
        path (str or tuple): The setting. The index after the end of a list
            appends to it.
        value (Any): The new value, which is copied; ``ABSENT`` removes it.
    """
    # mmengine's dict holds dicts of its own class.
    kind = type(settings)
    node = settings
    keys = tuple(path.split('.')) if isinstance(path, str) else path
    for name, following in zip(keys, keys[1:]):
        key: Any = int(name) if isinstance(node, list) else name
        try:
            inner = node[key]
        except (KeyError, IndexError):
            inner = None
        if isinstance(inner, tuple):
            node[key] = list(inner)
        elif not isinstance(inner, (dict, list)):
            node[key] = [] if isinstance(following, int) else kind()
        # Read it back: mmengine's dict stores a copy.
        node = node[key]
    last = int(keys[-1]) if isinstance(node, list) else keys[-1]
    if value is ABSENT:
        node.pop(last)
        return
    value = kind(value=copy.deepcopy(value))['value']
    if isinstance(node, list) and last == len(node):
        node.append(value)
    else:
        node[last] = value


def changed(settings: Node, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config with other values at some paths."""
    result = copy.deepcopy(dict(settings))
    for path, value in changes.items():
        put(result, path, value)
    return result


def walk(node: Any, path: str = '') -> list[tuple[str, Node]]:
    """Return every dict at or below a node, with its path."""
    found: list[tuple[str, Node]] = []
    # A loop: rules walk through configs of thousands of nodes.
    pending = [(path, node)] if isinstance(node, _INNER) else []
    while pending:
        path, node = pending.pop()
        if isinstance(node, Mapping):
            found.append((path, node))
        start = f'{path}.' if path else ''
        # Leaves need no look of their own.
        items = node.items() if isinstance(node, Mapping) else enumerate(node)
        inner = [
            (f'{start}{name}', one)
            for name, one in items
            if isinstance(one, _INNER)
        ]
        pending += inner[::-1]
    return found


def kind_of(node: Any) -> str:
    """Return the class of a dict without its package; '' if unknown."""
    kind = node.get('type') if isinstance(node, Mapping) else node
    if not isinstance(kind, str):
        kind = getattr(kind, '__name__', '') if kind is not None else ''
    return kind.rpartition('.')[2]


def wrapper_paths(settings: Node) -> list[Keys]:
    """Return the paths of the optimizer wrappers: one, or several by name."""
    whole = settings.get('optim_wrapper')
    if not isinstance(whole, Mapping):
        return []
    if 'optimizer' in whole:
        return [('optim_wrapper',)]
    return [
        ('optim_wrapper', name)
        for name, value in whole.items()
        if isinstance(value, Mapping) and 'optimizer' in value
    ]


LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# Hooks of mmengine's runner unless the config replaces them.
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


@dataclass(frozen=True)
class Part:
    """A dict of a config.

    Args:
        path (str): Its path in the config.
        settings (Mapping): The dict itself.
    """

    path: str
    settings: Node

    @cached_property
    def kind(self) -> str:
        """Its ``type`` without the package."""
        return kind_of(self.settings)

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at a path below it."""
        return look_up(self.settings, path, default)

    def at(self, path: str) -> str:
        """Return the path of a setting below it."""
        return f'{self.path}.{path}' if self.path else path


@dataclass
class ConfigView:
    """A config, with the facts that several rules need.

    Args:
        settings (Mapping): The config with its bases, in plain types.
        machine (Machine): The machine that trains.
        ranks (int): Number of training processes. Defaults to 1.
        file (str): The config's file. Defaults to ''.
        written (Mapping, optional): The config before its keys of mmcv 1.x
            were translated; None if nothing was. Defaults to None.
        trial (Trial, optional): The result of building and trying it;
            None if that was not done. Defaults to None.
    """

    settings: Node
    machine: Machine
    ranks: int = 1
    file: str = ''
    written: Any = None
    trial: Trial | None = None

    def __post_init__(self) -> None:
        if self.written is None:
            self.written = self.settings

    def with_settings(self, settings: Node) -> ConfigView:
        """Return the same view of another config."""
        return replace(self, settings=settings, written=None)

    @cached_property
    def _walked(self) -> list[tuple[str, Node]]:
        return walk(self.settings)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every value at any depth, by its path."""
        values: dict[str, Any] = dict(self._walked)
        for path, node in self._walked:
            start = f'{path}.' if path else ''
            found = [(f'{start}{name}', one) for name, one in node.items()]
            # The list grows while it is read: those inside of lists follow.
            for where, value in found:
                values[where] = value
                if isinstance(value, (list, tuple)):
                    items = enumerate(value)
                    found += [(f'{where}.{n}', one) for n, one in items]
        return values

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at a path; None counts as a value."""
        return self.values.get(path, default)

    def nodes(self, path: str) -> list[tuple[str, Node]]:
        """Return every dict at or below a path, with its path."""
        start = f'{path}.' if path else ''
        return [
            (where, node)
            for where, node in self._walked
            if where == path or where.startswith(start)
        ]

    @cached_property
    def data_nodes(self) -> list[tuple[str, Node]]:
        """Every dict at or below the dataset of a loader, with its path."""
        paths = [one.at('dataset') for one in self.loaders]
        return [found for path in paths for found in self.nodes(path)]

    def part(self, path: str) -> Part:
        """Return the dict at a path; an empty one if there is none."""
        found = self.get(path)
        return Part(path, found if isinstance(found, Mapping) else {})

    @property
    def root(self) -> Part:
        """The whole config."""
        return Part('', self.settings)

    @cached_property
    def wrappers(self) -> list[Part]:
        """The optimizer wrappers: one, or several with names."""
        found = [
            Part('.'.join(map(str, keys)), look_up(self.settings, keys))
            for keys in wrapper_paths(self.settings)
        ]
        whole = self.part('optim_wrapper')
        return found or ([whole] if whole.settings else [])

    @cached_property
    def hooks(self) -> list[Part]:
        """All hooks that are dicts, mmengine's defaults included."""
        named = {**DEFAULT_HOOKS, **self.part('default_hooks').settings}
        found = [(f'default_hooks.{k}', v) for k, v in named.items()]
        custom = self.get('custom_hooks') or []
        found += [(f'custom_hooks.{n}', v) for n, v in enumerate(custom)]
        return [Part(p, v) for p, v in found if isinstance(v, Mapping)]

    @property
    def clip_hooks(self) -> list[Part]:
        """The hooks that clip gradients."""
        return [one for one in self.hooks if one.kind == 'GradClipHook']

    @cached_property
    def loaders(self) -> list[Part]:
        """The data loaders of the config."""
        found = [self.part(name) for name in LOADERS]
        return [one for one in found if one.settings]

    @cached_property
    def evaluators(self) -> list[Part]:
        """The metrics of the validation."""
        found = self.nodes('val_evaluator')
        parts = [Part(path, node) for path, node in found if 'type' in node]
        return [one for one in parts if one.kind != 'Evaluator']

    @cached_property
    def schedulers(self) -> list[Part]:
        """Every entry of ``param_scheduler``."""
        found = self.nodes('param_scheduler')
        return [Part(path, node) for path, node in found if 'type' in node]

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
        """Training samples of one rank in one iteration."""
        return whole_number(self.get('train_dataloader.batch_size'))

    @cached_property
    def accumulation(self) -> int:
        """Iterations per optimizer step; the maximum over all wrappers."""
        counts = [one.get('accumulative_counts') for one in self.wrappers]
        return max([1, *(count for count in counts if whole_number(count))])

    @cached_property
    def validates(self) -> bool:
        """Whether the run validates."""
        # `val_cfg=dict()` validates as well.
        parts = map(self.get, ('val_cfg', 'val_dataloader'))
        return all(isinstance(one, Mapping) for one in parts)

    @property
    def val_interval(self) -> int:
        """Epochs or iterations between validations."""
        given = whole_number(self.get('train_cfg.val_interval'))
        return given or (1 if self.by_epoch else 1000)

    @cached_property
    def transformers(self) -> list[str]:
        """Names of the model's classes that use attention."""
        kinds = {kind_of(node) for _, node in self.nodes('model')}
        return sorted(kind for kind in kinds if _TRANSFORMER.search(kind))

    @property
    def checkpoint_hook(self) -> Part | None:
        """The hook that saves checkpoints."""
        kinds = ('CheckpointHook', 'SafeCheckpointHook')
        return next((one for one in self.hooks if one.kind in kinds), None)

    @property
    def local_ranks(self) -> int:
        """Ranks on this machine: at most one for each GPU."""
        gpus = self.machine.gpus
        return min(self.ranks, gpus) if gpus else self.ranks


def whole_number(value: Any) -> int | None:
    """Return an int above 0, else None."""
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
