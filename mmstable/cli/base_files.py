"""Which files does a config inherit from, and which may it keep?"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from typing import Any

import mmengine
import yaml
from mmengine.config import Config

from mmstable.cli.config_file import load_config
from mmstable.cli.plain_yaml import plain_yaml
from mmstable.legacy.config import translate


def plain_settings(cfg: Config) -> dict[str, Any]:
    """A config in plain types."""
    return cfg._cfg_dict.to_dict()


def direct_bases(path: str) -> list[str]:
    """What ``_base_`` of a config file says, if that can be read off."""
    if not path.endswith('.py'):
        return _read_base_key(path)
    with open(path, encoding='utf-8') as file:
        tree = ast.parse(file.read())
    for line in tree.body:
        if isinstance(line, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == '_base_'
            for target in line.targets
        ):
            return _read_names(line.value)
    return []


def _read_base_key(path: str) -> list[str]:
    try:
        with plain_yaml():
            bases = mmengine.load(path).get('_base_', [])
    except yaml.YAMLError:
        # Before mmengine has replaced `{{ ... }}` it may be no YAML.
        return []
    return [bases] if isinstance(bases, str) else list(bases)


def _read_names(node: ast.expr) -> list[str]:
    try:
        bases = ast.literal_eval(node)
    except ValueError:
        # Computed: to be merged into the written file.
        return []
    return [bases] if isinstance(bases, str) else list(bases)


def new_bases(
    path: str, wanted: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The base files without old keys, and what is in them.

    Of a base with old keys its own bases are looked at.

    Args:
        path (str): The config that inherits from them.
        wanted (Mapping): What the new config shall be. A base with more keys
            than that cannot be kept.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in direct_bases(path):
        if '::' in name:
            # They get a scope on the way, which is in the merged config.
            continue
        base = os.path.join(os.path.dirname(path), name)
        settings = plain_settings(load_config(base, import_modules=False))
        if translate(settings).changed or not set(settings) <= set(wanted):
            others = new_bases(base, wanted)
        else:
            others = {base: settings}
        for other, values in others.items():
            # mmengine wants every key in one base only.
            if not any(set(values) & set(known) for known in found.values()):
                found[other] = values
    return found
