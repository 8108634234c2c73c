"""Arguments that no class takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mmengine.registry import (
    DATASETS,
    HOOKS,
    LOG_PROCESSORS,
    LOOPS,
    MODELS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    TRANSFORMS,
    Registry,
)
from mmengine.runner import LogProcessor, Runner
from torch.utils.data import DataLoader

from mmstable.finding import Severity
from mmstable.preflight.arguments import arguments_of, refused_by
from mmstable.preflight.config_tree import Node
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.registered import class_of
from mmstable.preflight.rule import Hit, rule
from mmstable.settings import did_you_mean, nearest

# A slip of the pen is nearer than this; `norm_cfg` is no `init_cfg`.
_LIKENESS = 0.85
# What mmengine takes out of a dict before it builds something from the rest.
_TAKEN = ('type', '_scope_')
_OF_WRAPPERS = ('constructor', 'paramwise_cfg')
_OF_SCHEDULERS = ('convert_to_iter_based',)
_OF_LOADERS = ('num_batch_per_epoch', 'disable_subprocess_warning')
# Others may have their own ways to build a data loader.
_RUNNERS = (None, 'Runner', 'FlexibleRunner')


class _Place(NamedTuple):
    """A dict that mmengine builds something from.

    Args:
        path (str): Where it is.
        registry (Registry, optional): Where mmengine looks for its class.
            None if it does not.
        node (Any): The dict.
        taken (tuple[str, ...]): What mmengine takes out of it before.
            Defaults to ().
        built (Any): What a dict without ``type`` is for. None if it needs
            one. Defaults to None.
    """

    path: str
    registry: Registry | None
    node: Any
    taken: tuple[str, ...] = ()
    built: Any = None

    def find_class(self, view: ConfigView) -> Any:
        """What gets the arguments; None if that is unknown here."""
        if not isinstance(self.node, dict):
            return None
        if 'type' not in self.node:
            return self.built
        if self.registry is None:
            return None
        return class_of(view, self.registry, self.node)


@rule('unknown_argument', Severity.ERROR, at_start=False)
def unknown_argument(view: ConfigView) -> Iterator[Hit]:
    """Arguments that the class of a dict does not have."""
    for place in _places(view):
        built = place.find_class(view)
        if built is None:
            continue
        path, node = place.path, place.node
        given = [name for name in node if name not in (*_TAKEN, *place.taken)]
        for name in refused_by(built, given):
            known = {*arguments_of(built), *place.taken}
            known -= {'self', 'args', 'kwargs'}
            fields = {
                'kind': getattr(built, '__name__', built),
                'name': name,
                'hint': did_you_mean(name, known),
            }
            change = _renamed(path, node, name, known)
            yield Hit(f'{path}.{name}', fields, change)


def _renamed(
    path: str, node: Node, name: str, known: set[str]
) -> dict[str, Any]:
    """The dict with what was surely meant; nothing if that is a guess."""
    near = nearest(name, known - {*node}, _LIKENESS)
    if len(near) != 1:
        return {}
    return {path: {near[0] if k == name else k: v for k, v in node.items()}}


def _places(view: ConfigView) -> Iterator[_Place]:
    # Not what is inside of models: layers are built in ways of their own.
    yield _Place('model', MODELS, view.get('model'))
    for name in ('train_cfg', 'val_cfg', 'test_cfg'):
        yield _Place(name, LOOPS, view.get(name))
    for hook in view.hooks:
        yield _Place(hook.path, HOOKS, hook.settings, ('priority',))
    for one in view.wrappers:
        yield _Place(one.path, OPTIM_WRAPPERS, one.settings, _OF_WRAPPERS)
        optimizer = one.settings.get('optimizer')
        yield _Place(f'{one.path}.optimizer', OPTIMIZERS, optimizer)
    for one in view.schedulers:
        yield _Place(one.path, PARAM_SCHEDULERS, one.settings, _OF_SCHEDULERS)
    yield _Place(
        'log_processor',
        LOG_PROCESSORS,
        view.get('log_processor'),
        built=LogProcessor,
    )
    if view.get('runner_type') in _RUNNERS:
        yield from _of_runner(view)
    for loader in view.loaders:
        yield from _of_data(
            f'{loader.path}.dataset', loader.settings.get('dataset')
        )


def _of_runner(view: ConfigView) -> Iterator[_Place]:
    """What a runner does without any registry."""
    randomness = view.get('randomness')
    yield _Place('randomness', None, randomness, built=Runner.set_randomness)
    for one in view.loaders:
        settings = one.settings
        yield _Place(one.path, None, settings, _OF_LOADERS, DataLoader)


def _of_data(path: str, node: Any) -> Iterator[_Place]:
    yield _Place(path, DATASETS, node)
    if not isinstance(node, dict):
        return
    pipeline = node.get('pipeline')
    if isinstance(pipeline, (list, tuple)):
        for place, step in enumerate(pipeline):
            name = f'{path}.pipeline.{place}'
            yield _Place(name, TRANSFORMS, step)
    if 'dataset' in node:
        yield from _of_data(f'{path}.dataset', node['dataset'])
