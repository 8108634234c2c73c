"""The text of a config in a checkpoint is data, or it is left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.infer import BaseInferencer
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader

from mmstable.checkpoint.config_text import plain_config
from tests.toys import ToyModel

GENUINE = dict(
    model=dict(type='mmpretrain.ImageClassifier', neck=None, depth=-1),
    train_pipeline=[
        dict(type='LoadImage', mean=[123.5, -1e-5], size=(224, 224)),
        dict(type='Resize', interpolation='bicubic', flags={1, 2}),
    ],
    paramwise_cfg=dict(custom_keys={'.norm 1': dict(lr_mult=0.1), 'b': ()}),
    optim_wrapper=dict(type='mmstable.SafeOptimWrapper', by=True, name="a'b"),
    default_scope='mmpretrain',
    train_cfg=dict(type=None, schedule={1: 'a', 20: 'b'}),
    nested=[[dict(a=[(), [], {}])]],
)


def test_what_mmengine_dumps_stays_as_it_is():
    text = Config(GENUINE).pretty_text
    assert plain_config(text) == text
    assert Config.fromstring(text, '.py').to_dict() == GENUINE


HOSTILE = [
    "x = __import__('os').system('true')",
    "__import__('os')",
    'import os',
    'from os import system as dict',
    'x = [one for one in ()]',
    "x = f'{1}'",
    'x = (lambda: 1)()',
    'x = dict(**{})',
    'x = [*()]',
    'x = {**{}}',
    'x = dict([(1, 2)])',
    'x = list()',
    'x = 1 + 1',
    'x = -dict()',
    'x = [(y := 1)]',
    'x.y = 1',
    'x = y = 1',
    'x: int = 1',
    'x += 1',
    'def x(): pass',
    'class X: pass',
    'x = b""',
    'x = ...',
    "_base_ = '/tmp/other.py'",
    '__builtins__ = {}',
    'x = [\'\\{{$A:}}\', \', __import__("os").system("true")]#\']',
    '# coding: utf-7\nx = 1',
    'x = 1\n   # -*- coding: utf-7 -*-',
    "x = dict(type='os.system', command='true')",
    "type = 'os.system'\ncommand = 'true'",
    "x = dict(type='Linear', _scope_='antigravity')",
    "default_scope = 'antigravity'",
    "x = dict(type='antigravity')",
    "optim_wrapper = dict(constructor='os.system')",
    "runner_type = 'os.system'",
    "x = '\\x7b\\x7b$HOME:}}'",
    "x = {'type': 'subprocess.Popen', 'args': ['true']}",
    "x = [dict(a=dict({'type': 'mmengine.call_command'}))]",
    "x = dict(type='mmengine.utils.call_command')",
    "x = dict(type='torch.optim.SGD')",
    'x = ' + '[' * 60 + ']' * 60,
    'x = ' + '-' * 5000 + '1',
    f"x = '{'a' * (1 << 20)}'",
    'x = (',
    'x = 1\x00',
    "x = '\ud800'",
    dict(model=dict(type='ResNet')),
    None,
]


@pytest.mark.parametrize('text', HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_is_more_than_data_is_left_out(text):
    assert plain_config(text) is None


def test_only_modules_that_are_imported_stay_in_it():
    known = "custom_imports = dict(imports=['os.path', 'json'])\nx = 1\n"
    assert plain_config(known) == known
    assert plain_config("custom_imports = dict(imports='nobody')\nx = 1") == (
        'x = 1'
    )
    # Without its second line, the strings would end elsewhere.
    smuggled = (
        'a = """\n"""; custom_imports = dict(imports="nobody")\n'
        'b = """\n,__import__("os").system("true")#"""'
    )
    kept = plain_config(smuggled)
    assert list(Config.fromstring(kept, '.py').to_dict()) == ['a', 'b']


class Inferencer(BaseInferencer):
    def visualize(self, *args, **kwargs):
        pass

    def postprocess(self, *args, **kwargs):
        pass

    def _init_pipeline(self, cfg):
        return None


def infer_from(path: Path, text: object) -> Inferencer:
    content = dict(
        state_dict={},
        meta=dict(iter=1, epoch=0, cfg=text),
        message_hub=dict(
            log_scalars={}, runtime_info=dict(cfg=text), resumed_keys={}
        ),
    )
    torch.save(content, path)
    return Inferencer(weights=str(path), device='cpu', scope='mmengine')


MODULE = 'mmstable_unheard_of_module'


@pytest.mark.parametrize(
    'text',
    [
        "x = __import__('os').system('touch MARK')\nmodel = dict(type='A')",
        "model = dict(type='os.system', command='touch MARK')",
        f"custom_imports = dict(imports=['{MODULE}'])\nmodel = dict(type='A')",
    ],
)
def test_an_inferencer_runs_nothing(tmp_path, monkeypatch, text):
    (tmp_path / f'{MODULE}.py').write_text("open('MARK', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((ValueError, KeyError), match='config|not in the'):
        infer_from(tmp_path / 'a.pth', text)
    assert not (tmp_path / 'MARK').exists()
    assert MODULE not in sys.modules


def test_an_inferencer_takes_a_genuine_text(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS.module_dict, 'ToyInferred', ToyModel)
    text = Config(dict(model=dict(type='ToyInferred', seed=3))).pretty_text
    found = infer_from(tmp_path / 'a.pth', text)
    assert isinstance(found.model, ToyModel)
    loaded = CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'))
    assert loaded['meta']['cfg'] == text
