"""Read a config, change it as the command line says, and write one.

A config of mmcv 1.x is translated on the way. Mistakes in a file are one
line with its name.
"""

from __future__ import annotations

import argparse
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import yaml
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.config import config as mmengine_config
from mmengine.fileio import YamlHandler
from mmengine.fileio.handlers import file_handlers
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import init_default_scope

import mmstable.cli.command as cli
from mmstable.check.config_tree import kind_of, walk, wrapper_paths
from mmstable.check.registry import SCOPES
from mmstable.check.rules.names import top_level_keys
from mmstable.errors import UsageError
from mmstable.finding import Severity
from mmstable.io.files import replace_text
from mmstable.legacy.draft import OLD_KEYS, old_keys_of
from mmstable.legacy.translate import translate
from mmstable.messages import N_, _
from mmstable.messages.secrets import mask_words
from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.protection import Group, Protection, apply_changes, scoped
from mmstable.registry import take_bare_names
from mmstable.settings import config_root, did_you_mean, nearest, suggest

# Packages that pip knows by another name than Python.
_DISTRIBUTIONS = {'mmseg': 'mmsegmentation', 'mmaction': 'mmaction2'}
_YAML = 'tag:yaml.org,2002:'


class TagRefused(yaml.YAMLError):
    """A YAML file asks for more than plain values."""


class _PlainLoader(yaml.SafeLoader):
    """Builds what JSON has, dates, sets and tuples."""

    def build_tuple(self, node: yaml.SequenceNode) -> tuple[Any, ...]:
        """Build a tuple: mmengine writes them so."""
        return tuple(self.construct_sequence(node, deep=True))

    def refuse(self, node: yaml.Node) -> None:
        """Refuse any other tag."""
        line, tag = node.start_mark.line + 1, node.tag.replace(_YAML, '!!')
        raise TagRefused(
            f"line {line}: the tag '{tag}' is refused, because such tags can "
            'run code. A YAML config may hold plain values only; what needs '
            'Python goes into a .py config.'
        )


_PlainLoader.add_constructor(f'{_YAML}python/tuple', _PlainLoader.build_tuple)
_PlainLoader.add_constructor(None, _PlainLoader.refuse)


class _PlainYamlHandler(YamlHandler):
    """mmengine's, with another loader."""

    def load_from_fileobj(self, file: TextIO, **kwargs: Any) -> Any:
        return yaml.load(file, Loader=_PlainLoader)


class _Reading:
    """Lets mmengine read YAML as data, and find bases by import.

    Its YAML loader runs ``!!python/object/apply``. It asks pkg_resources for
    packages, which setuptools dropped in version 81.

    Args:
        path (str): The config file.
    """

    def __init__(self, path: str) -> None:
        # mmengine parses temporary copies: its errors do not name the file.
        self.file = os.path.abspath(path)
        self._users: dict[str, str] = {}

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Change mmengine for a while."""
        before = dict(file_handlers)
        find_base = vars(Config)['_get_cfg_path']
        find_package = mmengine_config.get_installed_path
        plain = dict.fromkeys(('yaml', 'yml'), _PlainYamlHandler())
        file_handlers.update(plain)
        Config._get_cfg_path = staticmethod(self._find_base)
        mmengine_config.get_installed_path = _folder_of
        try:
            yield
        finally:
            file_handlers.update(before)
            Config._get_cfg_path = find_base
            mmengine_config.get_installed_path = find_package

    def _find_base(self, name: str, user: str) -> tuple[str, str | None]:
        """Return the path of a base config, and the scope of its package.

        mmengine looks into the metafiles of the package first, a hundred
        YAML files in mmdet. They never answer: it looks for a name without
        '.py'.

        Args:
            name (str): As in ``_base_``.
            user (str): The config that inherits from it.
        """
        package, is_foreign, path = name.partition('::')
        scope = package if is_foreign else None
        if scope is None:
            path = os.path.join(os.path.dirname(user), name)
        elif scope == 'mmstable':
            path = str(config_root() / path)
        else:
            path = os.path.join(_folder_of(scope), '.mim', 'configs', path)
        path = os.path.abspath(path)
        if not os.path.exists(path):
            raise cli.usage_error(
                "'{path}' needs '{base}', which does not exist.{hint}",
                path=os.path.relpath(user),
                base=path,
                hint=cli.near_files(path),
            )
        # From the config that inherits, up to its own user.
        chain: list[str | None] = [user, path]
        while chain[0] is not None and not os.path.samefile(chain[0], path):
            chain.insert(0, self._users.get(chain[0]))
        if chain[0] is not None:
            raise cli.usage_error(
                "'{path}' inherits from itself: {files: -> }.",
                path=os.path.relpath(path),
                files=[os.path.relpath(one) for one in chain if one],
            )
        self.file, self._users[path] = path, user
        return path, scope


def _folder_of(package: str) -> str:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        text = f'{package} is not installed'
        raise ModuleNotFoundError(text, name=package)
    return os.path.dirname(spec.origin)


def load_config(path: str, import_modules: bool = True) -> Config:
    """Read a config with all its bases.

    A ``.py`` file is Python, and is run. JSON and YAML files are only read.
    Bare names of mmstable's classes are registered afterwards, so that the
    classes of the user come first.

    Args:
        path (str): The config file.
        import_modules (bool): Whether to follow ``custom_imports``.
            Defaults to True.
    """
    cli.check_config_path(path)
    reading = _Reading(path)
    # Everything below runs the user's file: any exception may come from it.
    try:
        with reading.patched():
            cfg = Config.fromfile(path, import_custom_modules=import_modules)
        # What a lazy config imports is imported by this walk. mmengine marks
        # bases of `mmstable::` with that scope, and would look there first
        # for what is built inside, such as the user's dataset. They name
        # mmstable's classes in full, so nothing needs the mark.
        for __, node in walk(cfg._cfg_dict):
            if isinstance(node, dict) and node.get('_scope_') == 'mmstable':
                node.pop('_scope_')
    except UsageError:
        raise
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        # While a file is parsed, it is the last one that was found.
        raise UsageError(_explain(reading.file, error)) from error
    except Exception as error:
        missing = _missing_package(error)
        if missing:
            raise refuse_missing(path, missing) from error
        raise UsageError(_explain(path, error)) from error
    take_bare_names()
    return cfg


def load_config_anyway(path: str) -> Config:
    """Read a config, also if its ``custom_imports`` are missing here."""
    try:
        return load_config(path)
    except UsageError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
    return load_config(path, import_modules=False)


def open_config(path: str, words: Sequence[str] | None = None) -> Config:
    """Read a config as ``mmstable train`` would, to build parts of it.

    Args:
        path (str): The config file.
        words (Sequence[str], optional): The ``--cfg-options``.
            Defaults to None.
    """
    options = read_options(words)
    cfg = modernize(load_config(path), options)
    # As the runner does: names in the config are looked up there.
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    return cfg


def direct_bases(path: str) -> list[str]:
    """The files in ``_base_``; none if the config cannot be parsed."""
    try:
        with _Reading(path).patched():
            names = Config._get_base_files(path)
    except (SyntaxError, ValueError, yaml.YAMLError):
        return []
    return [
        os.path.normpath(os.path.join(os.path.dirname(path), name))
        for name in names
        # Those of packages get a scope on the way. Others are computed.
        if '::' not in name and '{{' not in name
    ]


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
    for base in direct_bases(path):
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


def _missing_package(error: BaseException | None) -> str:
    """The package that an import has not found; '' for another error."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name.partition('.')[0]
        error = error.__cause__ or error.__context__
    return ''


def refuse_missing(path: str, package: str) -> UsageError:
    """A config needs a package that is not installed.

    Args:
        path (str): The config file, or a setting in it.
        package (str): The package, by its import name.
    """
    text = N_("{path} needs the module '{package}', which cannot be found.")
    if package in SCOPES or package == 'mmcv':
        text = N_(
            "{path} needs the package '{package}', which is not installed: "
            'pip install {name}'
        )
    name = _DISTRIBUTIONS.get(package, package)
    return cli.usage_error(text, path=path, package=package, name=name)


def _explain(path: str, error: Exception) -> str:
    culprit = os.path.abspath(path)
    if isinstance(error, SyntaxError):
        # mmengine raises another one, without the line.
        first = error.__context__
        error = first if isinstance(first, SyntaxError) else error
        return f'{culprit}:{error.lineno}: {error.msg}'
    for frame in traceback.extract_tb(error.__traceback__):
        # The first one is that of a config, which may be a base.
        if frame.name == '<module>' and frame.filename.endswith('.py'):
            culprit = f'{frame.filename}:{frame.lineno}'
            break
    text = ' '.join(str(error).split())
    return f'{culprit}: {type(error).__name__}: {text}'.rstrip(': ')


_LOOP = ('max_iters', 'max_epochs', 'val_interval', 'val_begin', 'by_epoch')


def read_options(words: Sequence[str] | None) -> dict[str, Any]:
    """Read ``--cfg-options`` as mmengine does.

    Args:
        words (Sequence[str], optional): Each ``KEY=VALUE``.

    Returns:
        dict: From dotted names to values.
    """
    read = argparse.Namespace(options={})
    for word in words or ():
        (shown,) = mask_words([word])
        if not word.partition('=')[0].strip() or '=' not in word:
            raise cli.usage_error(
                "--cfg-options takes KEY=VALUE, got '{word}'.", word=shown
            )
        try:
            DictAction([], 'options')(argparse.ArgumentParser(), read, [word])
        except (AssertionError, RecursionError) as error:
            # mmengine quotes the value; or looks for lists inside of what is
            # none, for ever.
            if isinstance(error, AssertionError) and shown == word:
                raise _unreadable(f'{error}.') from error
            raise _unreadable(
                _(
                    "'{word}' cannot be read: a value is a number, a text, "
                    'or a list or tuple of those. Set the values of a dict '
                    'one by one, as default_hooks.logger.interval=10.',
                    word=shown,
                )
            ) from None
    return read.options


def merge_options(
    cfg: Config, options: Mapping[str, Any], allow_new: bool = False
) -> None:
    """Apply ``--cfg-options``.

    A setting that is None counts as one that is not there: below
    ``clip_grad=None`` there can be a ``clip_grad.max_norm``.

    Args:
        cfg (Config): The config to change.
        options (Mapping): From dotted names to values.
        allow_new (bool): Whether top-level names may be new.
            Defaults to False.
    """
    for key in options:
        if not allow_new:
            _refuse_new(cfg, key)
        # Put an empty dict wherever None is in the way to a setting.
        node: Any = cfg
        for name in key.split('.')[:-1]:
            place: Any = int(name) if name.isdigit() else name
            if isinstance(node, (list, tuple)):
                if not isinstance(place, int) or place >= len(node):
                    break
            elif not isinstance(node, (dict, Config)) or name not in node:
                break
            elif node[name] is None:
                node[name] = ConfigDict()
            node = node[place if isinstance(node, (list, tuple)) else name]
    try:
        cfg.merge_from_dict(dict(options))
    except (KeyError, TypeError, IndexError, AssertionError) as error:
        raise _unreadable(error) from error


def _refuse_new(cfg: Config, key: str) -> None:
    """Refuse a new top-level name: most likely a slip of the keyboard."""
    top, __, rest = key.partition('.')
    read = top_level_keys()
    # Keys of mmcv are translated afterwards.
    if top in cfg or top in read or key in OLD_KEYS:
        return
    if rest:
        raise cli.usage_error(
            "--cfg-options: the config has no '{top}', needed by "
            "'{key}'.{hint}",
            top=top,
            key=key,
            hint=did_you_mean(top, cfg.keys()),
        )
    # Where a setting of this name would have an effect.
    nodes = walk(plain_settings(cfg))
    places = [f'{path}.{key}' for path, one in nodes if path and key in one]
    places.sort(key=lambda path: path.count('.'))
    if not places and key in _LOOP:
        places = [f'train_cfg.{key}']
    raise cli.usage_error(
        "--cfg-options: nothing reads '{key}' at the top of a config, so it "
        'would have no effect.{hint}',
        key=key,
        hint=suggest(places[:3] or nearest(key, {*read, *cfg})),
    )


def _unreadable(error: object) -> UsageError:
    return cli.usage_error('--cfg-options: {error}', error=error)


def plain_settings(cfg: Config) -> dict[str, Any]:
    """A config in plain types."""
    return cfg._cfg_dict.to_dict()


# What `--amp` replaces. Other types carry logic of their own.
_PLAIN_WRAPPERS = (
    OptimWrapper,
    AmpOptimWrapper,
    SafeOptimWrapper,
    SafeAmpOptimWrapper,
)

_DTYPES = {'fp16': 'float16', 'bf16': 'bfloat16'}


def set_work_dir(cfg: Config, work_dir: str | None, config: str) -> None:
    """Say where logs and checkpoints go; the config's own choice is kept."""
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        name = os.path.splitext(os.path.basename(config))[0]
        cfg.work_dir = os.path.join('work_dirs', name)


def enable_amp(cfg: Config, precision: str = 'auto') -> None:
    """Turn the config's optimizer wrapper into the safe mixed one.

    Args:
        cfg (Config): The config to change.
        precision (str): 'fp16', 'bf16', or 'auto' for what the config says,
            or else the wrapper's default. Defaults to 'auto'.
    """
    draft = Protection(plain_settings(cfg))
    if draft.get('optim_wrapper') is None:
        raise cli.usage_error('--amp: the config has no `optim_wrapper`.')
    for path in wrapper_paths(draft.settings) or [('optim_wrapper',)]:
        if draft.wrapper_class(path) not in _PLAIN_WRAPPERS:
            raise cli.usage_error(
                '--amp: `optim_wrapper.type` must be one of {known}, got '
                "'{name}'.",
                known=[one.__name__ for one in _PLAIN_WRAPPERS],
                name=kind_of(draft.get(*path)),
            )
        draft.keep_fixed_scale(path)
        draft.put((*path, 'type'), scoped(SafeAmpOptimWrapper), Group.CLASS)
        if precision in _DTYPES:
            draft.put((*path, 'dtype'), _DTYPES[precision], Group.SETTING)
    apply_changes(cfg._cfg_dict, draft.changes)


def scale_learning_rate(cfg: Config) -> None:
    """Let mmengine fit the learning rate to the batch size of all ranks."""
    settings = cfg.get('auto_scale_lr') or {}
    if 'base_batch_size' not in settings:
        raise cli.usage_error(
            '--auto-scale-lr: the config does not say which batch size '
            'its learning rate is for: `auto_scale_lr = '
            'dict(base_batch_size=...)`.'
        )
    cfg.auto_scale_lr.enable = True


def set_seed(cfg: Config, seed: int | None, deterministic: bool) -> None:
    """Set the seed and the determinism of the run."""
    wanted = {} if seed is None else {'seed': seed}
    if deterministic:
        wanted['deterministic'] = True
    if wanted:
        cfg.randomness = {**(cfg.get('randomness') or {}), **wanted}


def add_probe(cfg: Config, kind: str) -> None:
    """Add the hook for live inspection, or change that of the config.

    Args:
        cfg (Config): The config to change.
        kind (str): 'socket' for our own, 'probing' to start that package too.
    """
    hooks = list(cfg.get('custom_hooks') or [])
    if not any(kind_of(one) == 'LiveProbeHook' for one in hooks):
        hooks.append(dict(type='mmstable.LiveProbeHook'))
    if kind == 'probing':
        for hook in hooks:
            if kind_of(hook) == 'LiveProbeHook':
                hook['use_probing'] = True
    cfg.custom_hooks = hooks


def disable_validation(cfg: Config) -> None:
    """Remove what validation needs, and what depends on its results."""
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    checkpoint = (cfg.get('default_hooks') or {}).get('checkpoint')
    if checkpoint:
        # It would wait for a metric that never comes.
        checkpoint.pop('save_best', None)


def check_target(path: str) -> None:
    """Refuse a path at which no config can be written."""
    if not path.endswith('.py'):
        raise cli.usage_error(
            "the new config is a .py file, got '{path}'.", path=path
        )
    cli.check_folder_of(path)


def relative(base: str, folder: str) -> str:
    """How a config in a folder names its base."""
    path = Path(os.path.relpath(base, folder or '.')).as_posix()
    return path if path.startswith('.') else f'./{path}'


def write_config(path: str | None, text: str, force: bool = True) -> None:
    """Write a config file, and say so.

    Args:
        path (str, optional): The file; None for stdout.
        text (str): What to write.
        force (bool): Whether to overwrite a file. Defaults to True.
    """
    if path is None:
        print(text, end='')
        return
    file = Path(path)
    try:
        if not force and file.exists():
            if file.read_text(encoding='utf-8', errors='replace') != text:
                raise cli.usage_error(
                    "'{path}' exists already; --force overwrites it.",
                    path=path,
                )
            cli.tell(
                "'{path}' says that already: nothing is written.", path=path
            )
            return
        replace_text(file, text, encoding='utf-8')
    except OSError as error:
        text = _("cannot write '{path}': {error}", path=path, error=error)
        raise UsageError(text) from error
    cli.tell('written to {path}', path=path)


def refuse_old(path: str, settings: Mapping[str, Any]) -> None:
    """Refuse a config of mmcv 1.x, from which none can inherit."""
    if old_keys_of(settings):
        raise cli.usage_error(
            '{path} has keys of mmcv 1.x: translate it first, by '
            '`mmstable upgrade`.',
            path=path,
        )


def modernize(cfg: Config, options: Mapping[str, Any]) -> Config:
    """Translate a config if it is old, and apply ``--cfg-options`` to it.

    Options for old keys come first, as they would in mmcv; all others change
    the translated config.

    Args:
        cfg (Config): The config.
        options (Mapping): The ``--cfg-options``.

    Returns:
        Config: The same if there is nothing old in it.
    """
    old = set(old_keys_of(cfg))
    if not old:
        merge_options(cfg, options)
        return _translate(cfg)
    # mmcv lets options add what the config does not have.
    old |= set(OLD_KEYS) - set(cfg)
    before = {k: v for k, v in options.items() if k.split('.')[0] in old}
    after = {k: v for k, v in options.items() if k not in before}
    merge_options(cfg, before, allow_new=True)
    cfg = _translate(cfg)
    merge_options(cfg, after)
    loop = cfg.get('train_cfg') or {}
    if not any(key in loop for key in ('type', 'max_epochs', 'max_iters')):
        raise cli.usage_error(
            'nothing in the config says how long to train: mmcv has '
            '`runner` or `total_epochs` for it.'
        )
    return cfg


def _translate(cfg: Config) -> Config:
    if not old_keys_of(cfg):
        return cfg
    translation = translate(plain_settings(cfg))
    serious = translation.of_severity(Severity.ERROR)
    if serious:
        raise cli.usage_error(
            'this config has keys of mmcv 1.x that cannot be translated, '
            "so it would train differently: {findings:; }. 'mmstable "
            "upgrade OLD.py -o NEW.py' translates the rest.",
            findings=serious,
        )
    cli.tell('this config has keys of mmcv 1.x, translated for this run:')
    for line in translation.summary():
        cli.say(f'  {line}')
    left = translation.of_severity(Severity.WARNING)
    if left:
        cli.tell('no mmengine equivalent, ignored:')
    for finding in left:
        cli.say(f'  {finding}')
    return Config(
        translation.settings,
        cfg_text=cfg.text,
        filename=cfg.filename,
        env_variables=cfg.env_variables,
    )
