"""Train with a config of mmcv 1.x as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmengine.config import Config

from mmstable.cli.base_files import plain_settings
from mmstable.cli.config_options import merge_options
from mmstable.errors import UsageError
from mmstable.finding import Severity
from mmstable.legacy.config import OLD_KEYS, translate
from mmstable.legacy.config.keys import old_keys_of
from mmstable.messages import _


def modernize(
    cfg: Config,
    options: Mapping[str, Any] | None,
    say: Callable[[str], None],
) -> Config:
    """Translate a config if it is old, and apply ``--cfg-options`` to it.

    Options for old keys come first, as they would in mmcv; all others change
    the translated config.

    Args:
        cfg (Config): The config.
        options (Mapping, optional): The ``--cfg-options``.
        say (Callable): Prints a line for the user.

    Returns:
        Config: The same if there is nothing old in it.
    """
    options = dict(options or {})
    old = set(old_keys_of(cfg))
    if not old:
        merge_options(cfg, options)
        return _translate(cfg, say)
    # mmcv lets options add what the config does not have.
    old |= set(OLD_KEYS) - set(cfg)
    before = {k: v for k, v in options.items() if k.split('.')[0] in old}
    after = {k: v for k, v in options.items() if k not in before}
    merge_options(cfg, before, allow_new=True)
    cfg = _translate(cfg, say)
    merge_options(cfg, after)
    loop = cfg.get('train_cfg') or {}
    if not any(key in loop for key in ('type', 'max_epochs', 'max_iters')):
        raise UsageError(
            _(
                'nothing in the config says how long to train: mmcv has '
                '`runner` or `total_epochs` for it.'
            )
        )
    return cfg


def _translate(cfg: Config, say: Callable[[str], None]) -> Config:
    if not old_keys_of(cfg):
        return cfg
    translation = translate(plain_settings(cfg))
    serious = translation.of_severity(Severity.ERROR)
    if serious:
        raise UsageError(
            _(
                'this config has keys of mmcv 1.x that cannot be translated, '
                "so it would train differently: {findings:; }. 'mmstable "
                "upgrade OLD.py -o NEW.py' translates the rest.",
                findings=serious,
            )
        )
    say(_('this config has keys of mmcv 1.x, translated for this run:'))
    for line in translation.summary():
        say(f'  {line}')
    left = translation.of_severity(Severity.WARNING)
    if left:
        say(_('without counterpart, the training does without:'))
    for finding in left:
        say(f'  {finding}')
    return Config(
        translation.settings,
        cfg_text=cfg.text,
        filename=cfg.filename,
        env_variables=cfg.env_variables,
    )
