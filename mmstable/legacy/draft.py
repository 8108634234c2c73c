"""A config while it is translated, and the keys that only mmcv reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any, NoReturn

from mmstable.errors import UsageError
from mmstable.finding import Finding, Severity
from mmstable.messages import N_, _
from mmstable.settings import known_settings, nearest


@dataclass
class Translation:
    """The translated settings so far, and the findings.

    Args:
        settings (dict): The config in plain types, changed step by step.
        origins (dict): From new keys to the old ones they came from.
        findings (list): Settings that were not translated one to one.
        by_epoch (bool): Whether the run is counted in epochs.
        all_old (bool): Whether no part of it was written for mmengine.
    """

    settings: dict[str, Any]
    origins: dict[str, list[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    by_epoch: bool = True
    all_old: bool = True

    @property
    def changed(self) -> bool:
        """Whether the config had old keys."""
        return bool(self.origins or self.findings)

    def of_severity(self, *severities: Severity) -> list[Finding]:
        """Return the findings of some severities."""
        return [one for one in self.findings if one.severity in severities]

    def summary(self) -> list[str]:
        """Return lines like 'old keys -> new keys'."""
        lines: dict[str, list[str]] = {}
        for new, old in self.origins.items():
            lines.setdefault(', '.join(old), []).append(new)
        return [f'{old} -> {", ".join(new)}' for old, new in lines.items()]

    def put(self, key: str, value: Any, *origins: str) -> None:
        """Set a new key."""
        self.settings[key] = value
        known = self.origins.setdefault(key, [])
        known.extend(name for name in origins if name not in known)

    def fill(self, key: str, values: Mapping[str, Any], old: str) -> None:
        """Add to a new key that is a dict; its own settings are kept.

        Args:
            key (str): The new key.
            values (Mapping): The settings to add.
            old (str): The old key.
        """
        known = dict(self.settings.get(key) or {})
        for name, value in values.items():
            self.settle(known, f'{key}.{name}', value, old)
        self.put(key, known, old)

    def settle(
        self, known: dict[str, Any], new: str, value: Any, old: str
    ) -> None:
        """Set a value of a dict, or report a conflict with the one it has."""
        name = new.rpartition('.')[2]
        if known.get(name) is None:
            known[name] = value
        elif known[name] != value:
            self.conflict(old, new, value, known[name])

    def append(self, key: str, value: Any, *origins: str) -> None:
        """Add to a new key that is a list."""
        self.put(key, [*(self.settings.get(key) or []), value], *origins)

    def report(
        self, severity: Severity, path: str, why: str, **fields: Any
    ) -> None:
        """Report a setting that was not translated one to one."""
        what = _(why, **fields)
        self.findings.append(Finding('translated', severity, what, path))

    # mmengine does not need it; has no equivalent; another training results.
    note = partialmethod(report, Severity.HINT)
    leave = partialmethod(report, Severity.WARNING)
    warn = partialmethod(report, Severity.ERROR)

    def drop(self, key: str, settings: dict[str, Any]) -> None:
        """Remove and report settings of an old key without an equivalent.

        Args:
            key (str): The old key; '' for the top of the config.
            settings (dict): Its settings.
        """
        for path, why in DROPPED.items():
            top, _dot, name = path.rpartition('.')
            if top != key or name not in settings:
                continue
            value = settings.pop(name)
            if path not in _MISSED:
                self.note(path, why)
            elif value:
                self.leave(path, why)

    def refuse(self, why: str, **fields: Any) -> NoReturn:
        """Raise an error for a setting that mmcv refused as well."""
        raise UsageError(_(why, **fields))

    def contradict(
        self, path: str, value: Any, other: str, found: Any
    ) -> NoReturn:
        """Refuse two old settings that contradict each other."""
        why = N_('{path}: {value!r} contradicts {other}, which is {found!r}.')
        self.refuse(why, path=path, value=value, other=other, found=found)

    def conflict(self, old: str, new: str, said: Any, found: Any) -> None:
        """Report an old and a new setting that contradict each other."""
        why = N_('{said!r} contradicts `{new}`, {found!r}, which is kept')
        report = self.leave if old in _HARMLESS else self.warn
        report(old, why, said=said, new=new, found=found)

    def take(self, key: str) -> dict[str, Any] | None:
        """Remove an old key, which must be a dict or None, and return it."""
        value = self.settings.pop(key, None)
        if value is not None and not isinstance(value, Mapping):
            why = N_('{key}: must be a dict, got {got!r}.')
            self.refuse(why, key=key, got=value)
        return None if value is None else dict(value)

    def unknown(
        self, path: str, settings: Iterable[str], known: Iterable[str]
    ) -> None:
        """Refuse arguments that mmcv refused as well."""
        with usage_errors():
            known_settings(path, settings, list(known))


def class_name(built: Any) -> str:
    """Return the class of a dict, ``type`` or object without its package."""
    kind = built.get('type') if isinstance(built, Mapping) else built
    name = getattr(kind, '__name__', type(kind).__name__)
    return str(kind if isinstance(kind, str) else name).rpartition('.')[2]


@contextmanager
def usage_errors(path: str = '') -> Iterator[None]:
    """Raise the error of a check as an error of the config.

    Args:
        path (str): The setting, unless the error names it. Defaults to ''.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        text = f'{path}: {error}' if path else str(error)
        raise UsageError(text) from error


# From old keys to settings of a new one.
MOVED = {
    'seed': 'randomness.seed',
    'deterministic': 'randomness.deterministic',
    'cudnn_benchmark': 'env_cfg.cudnn_benchmark',
    'mp_start_method': 'env_cfg.mp_cfg.mp_start_method',
    'opencv_num_threads': 'env_cfg.mp_cfg.opencv_num_threads',
    'dist_params': 'env_cfg.dist_cfg',
}
# A new config may use these names for its own variables. They are old only if
# their new counterpart is missing.
_VARIABLES = {
    **MOVED,
    'total_epochs': 'train_cfg',
    'total_iters': 'train_cfg',
    'data': 'train_dataloader',
    'gpu_ids': 'optim_wrapper',
    'device': 'optim_wrapper',
}
# Top-level keys that mmcv 1.x and its projects read, and mmengine does not.
# `load_from`, `custom_hooks`, `work_dir`, `log_level`,
# `find_unused_parameters` and `auto_scale_lr` have kept their names.
OLD_KEYS = (
    'fp16',
    'optimizer',
    'optimizer_config',
    'lr_config',
    'momentum_config',
    'runner',
    'workflow',
    'checkpoint_config',
    'log_config',
    'evaluation',
    'resume_from',
    'auto_resume',
    'profiler_config',
    *_VARIABLES,
)
# A contradiction here does not change the training.
_HARMLESS = ('log_config', 'evaluation')
_BY_TORCH = N_('not needed, torch synchronizes the gradients')
_BY_LOOPS = N_('not needed, the loops do it')
_BY_VARIABLE = N_('not needed, CUDA_VISIBLE_DEVICES selects the GPUs')
# Settings without an equivalent.
DROPPED = {
    'optimizer_config.coalesce': _BY_TORCH,
    'optimizer_config.bucket_size_mb': _BY_TORCH,
    'optimizer_config.distributed': _BY_TORCH,
    'optimizer_config.detect_anomalous_params': N_(
        'in a distributed run use '
        "`model_wrapper_cfg=dict(type='MMDistributedDataParallel', "
        'detect_anomalous_params=True)`'
    ),
    'checkpoint_config.create_symlink': N_(
        'not needed, the file `last_checkpoint` names the newest one'
    ),
    'checkpoint_config.meta': N_(
        'mmengine writes its own `meta`: version, dataset, time'
    ),
    'evaluation.by_epoch': _BY_LOOPS,
    'evaluation.gpu_collect': _BY_LOOPS,
    'evaluation.tmpdir': _BY_LOOPS,
    'evaluation.broadcast_bn_buffer': _BY_LOOPS,
    'gpu_ids': _BY_VARIABLE,
    'device': _BY_VARIABLE,
}
# Those of them that a user may miss, if they are set.
_MISSED = (
    'optimizer_config.detect_anomalous_params',
    'checkpoint_config.meta',
)
# No config of mmcv has these keys.
_NEW_KEYS = (
    'optim_wrapper',
    'param_scheduler',
    'default_hooks',
    'env_cfg',
    'randomness',
    'train_dataloader',
    'val_cfg',
    'log_processor',
    'visualizer',
)
_LOOP_KEYS = ('by_epoch', 'max_epochs', 'max_iters', 'val_interval')


def old_keys_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the keys that only mmcv reads."""
    return [
        key
        for key in settings
        if key in OLD_KEYS and not _is_variable(key, settings)
    ]


def is_all_old(settings: Mapping[str, Any]) -> bool:
    """Whether no part of a config was written for mmengine."""
    has_new = any(key in settings for key in _NEW_KEYS)
    return not has_new and not is_loop(settings.get('train_cfg'))


def is_loop(train_cfg: Any) -> bool:
    """Whether ``train_cfg`` is mmengine's, not that of an old detector."""
    if not isinstance(train_cfg, Mapping):
        return False
    has_key = any(key in train_cfg for key in _LOOP_KEYS)
    return has_key or str(train_cfg.get('type')).endswith('Loop')


def _is_variable(key: str, settings: Mapping[str, Any]) -> bool:
    if key == 'optimizer':
        wrapper = settings.get('optim_wrapper')
        if not isinstance(wrapper, Mapping):
            return wrapper is not None
        # A custom constructor may build several optimizers.
        return 'optimizer' in wrapper or 'constructor' in wrapper
    top, *names = _VARIABLES.get(key, '').split('.')
    other = settings.get(top)
    if top == 'train_cfg':
        return is_loop(other)
    for name in names[:1]:
        other = other.get(name) if isinstance(other, Mapping) else None
    return other is not None


# High enough to accept variables like `dataset` or `optimizer_cfg`.
_LIKENESS = 0.9


def find_misspelt(draft: Translation) -> None:
    """Report keys that look like old ones."""
    for key in draft.settings:
        if key in draft.origins or key in OLD_KEYS:
            continue
        near = nearest(key, OLD_KEYS, _LIKENESS)
        if near:
            why = N_('unknown key, ignored. Did you mean {near: or }?')
            draft.leave(key, why, near=near)
