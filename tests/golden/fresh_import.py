"""A script: what does `import mmstable` do to an interpreter?

Nothing of mmstable may be imported before, so that it is run as a process.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import json
import sys
from typing import Any

# What it may use, but must not need, and packages that are large.
OPTIONAL = (
    'apprise',
    'bitsandbytes',
    'clearml',
    'mlflow',
    'mmcls',
    'mmcv',
    'mmdet',
    'mmpretrain',
    'mmseg',
    'playwright',
    'probing',
    'py_spy',
    'pynvml',
    'requests',
    'rich',
    'shtab',
    'sklearn',
    'tensorboard',
    'wandb',
)


def top(name: str) -> str:
    return name.partition('.')[0]


def watch_imports() -> set[str]:
    """Optional packages that modules of mmstable import from now on.

    Also one that is loaded already, as `rich` is by mmengine.
    """
    found: set[str] = set()
    statement, function = builtins.__import__, importlib.import_module

    def note(name: str, by: Any) -> None:
        importer = (by or {}).get('__name__', '')
        if top(name) in OPTIONAL and top(importer) == 'mmstable':
            found.add(top(name))

    def run_statement(name: str, by: Any = None, *args: Any) -> Any:
        note(name, by)
        return statement(name, by, *args)

    def call_function(name: str, package: Any = None) -> Any:
        note(name, sys._getframe(1).f_globals)
        return function(name, package)

    setattr(builtins, '__import__', run_statement)  # noqa: B010
    setattr(importlib, 'import_module', call_function)  # noqa: B010
    return found


def describe(cls: Any) -> list[str] | str:
    """The parameters of a registered class, or whose they are."""
    if inspect.isclass(cls):
        # A mixin of mmengine passes all arguments on to a class of ours.
        owners = [one for one in cls.__mro__ if '__init__' in vars(one)]
        ours = [one for one in owners if top(one.__module__) == 'mmstable']
        if not ours:
            # They change with its version.
            return f'those of {top(owners[0].__module__)}.{owners[0].__name__}'
        cls = ours[0]
    parameters = inspect.signature(cls).parameters.values()
    return [str(one.replace(annotation=one.empty)) for one in parameters]


def documented(cls: Any) -> list[str]:
    """The arguments that the docstring of a class names."""
    lines = (inspect.getdoc(cls) or '').partition('Args:\n')[2].splitlines()
    # Their own lines are indented once, the rest of them twice.
    words = [x.split()[0] for x in lines if x[:4].isspace() and x[4:5].strip()]
    return [word.rstrip(':').lstrip('*') for word in words]


def registered() -> dict[str, Any]:
    """What config strings stand for, by registry and name."""
    from mmengine import registry as root

    parents = [x for x in vars(root).values() if isinstance(x, root.Registry)]
    # Before the modules are imported that a prefix imports.
    bare = {
        (parent.name, name)
        for parent in parents
        for name, cls in parent.module_dict.items()
        if top(cls.__module__) == 'mmstable'
    }
    found: dict[str, Any] = {}
    for parent in parents:
        if 'mmstable' not in parent.children:
            continue
        parent.children['mmstable'].import_from_location()
        for name in sorted(parent.children['mmstable'].module_dict):
            cls = parent.get(f'mmstable.{name}')
            entry: dict[str, Any] = {
                'bare': (parent.name, name) in bare,
                'parameters': describe(cls),
            }
            if any(x.startswith('**') for x in entry['parameters']):
                entry['documented'] = documented(cls)
            found.setdefault(parent.name, {})[name] = entry
            bare.discard((parent.name, name))
    # Bare names without a prefixed one.
    for registry, name in sorted(bare):
        found.setdefault(registry, {})[name] = {'bare': 'only'}
    return found


def main() -> None:
    # What these load is loaded anyway.
    import mmengine.runner  # noqa: F401

    before = set(sys.modules)
    found = watch_imports()
    import mmstable  # noqa: F401

    loaded = set(sys.modules)
    print(
        json.dumps(
            {
                'modules': sum(top(name) == 'mmstable' for name in loaded),
                'optional': sorted(found),
                'optional_loaded': sorted(
                    {top(name) for name in loaded - before} & {*OPTIONAL}
                ),
                'registered': registered(),
            }
        )
    )


if __name__ == '__main__':
    main()
