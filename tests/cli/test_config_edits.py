"""What `mmstable train` changes in a config before it is built."""

from mmengine.config import Config

from mmstable.cli.config_edits import drop_absent_hooks


def test_none_switches_a_hook_off():
    cfg = Config(
        dict(default_hooks=dict(guard=None, logger=None, timer=dict(type='T')))
    )
    drop_absent_hooks(cfg)
    # mmengine lets go of its own by itself.
    assert cfg.default_hooks == dict(logger=None, timer=dict(type='T'))


def test_a_config_without_hooks_is_left_alone():
    cfg = Config(dict(model=dict(type='M')))
    drop_absent_hooks(cfg)
    assert 'default_hooks' not in cfg
