"""mmengine loads every address through the guard."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import threading

import pytest
import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as zoo

import mmstable  # noqa: F401  (guards mmengine's loader)
from mmstable.checkpoint.loaders import guard_checkpoints, pin_checkpoint
from mmstable.checkpoint.loading import BadCheckpoint
from mmstable.errors import CheckpointError

load = CheckpointLoader.load_checkpoint


class Payload:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with a good and a hostile file."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'hub'))
    folder = tmp_path / 'files'
    folder.mkdir()
    meta = dict(iter=1, epoch=0, config='raise SystemExit')
    good = dict(meta=meta, state_dict=dict(w=torch.ones(2)))
    torch.save(good, folder / 'good.pth')
    torch.save(
        dict(state_dict=Payload(tmp_path / 'marker')), folder / 'bad.pth'
    )
    yield folder
    assert not (tmp_path / 'marker').exists()


@pytest.fixture
def server(files):
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(files)
    )
    handler.log_message = lambda *args: None
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{one.server_port}'
        one.shutdown()


def check_pair(address):
    """The good file is loaded, the hostile one is not."""
    loaded = load(f'{address}good.pth')
    assert torch.equal(loaded['state_dict']['w'], torch.ones(2))
    assert 'config' not in loaded['meta']
    with pytest.raises(BadCheckpoint, match=r'refused: .*posix\.mkdir'):
        load(f'{address}bad.pth')


def test_local_files(files):
    check_pair(f'{files}/')


def test_downloads(server):
    check_pair(f'{server}/')
    # From the folder of downloads.
    check_pair(f'{server}/')


def test_a_download_needs_a_name(server):
    with pytest.raises(CheckpointError, match='does not name a file'):
        load(f'{server}/')


def test_zoos(server, monkeypatch):
    models = dict(good=f'{server}/good.pth', bad=f'{server}/bad.pth')
    for function in (
        'get_torchvision_models',
        'get_external_models',
        'get_mmcls_models',
    ):
        monkeypatch.setattr(zoo, function, lambda: models)
    for scheme in ('torchvision', 'modelzoo', 'open-mmlab', 'openmmlab'):
        assert 'state_dict' in load(f'{scheme}://good')
        with pytest.raises(BadCheckpoint, match='refused'):
            load(f'{scheme}://bad')
    assert load('mmcls://good') == dict(state_dict={})
    with pytest.raises(CheckpointError, match="no model 'other'"):
        load('mmcls://other')


def test_backends_of_mmengine(files):
    class Elsewhere(LocalBackend):
        def get(self, filepath):
            return super().get(filepath.replace('elsewhere://', ''))

    register_backend('elsewhere', Elsewhere, prefixes='elsewhere', force=True)
    check_pair(f'elsewhere://{files}/')


def test_pavi_is_not_left_to_mmengine():
    with pytest.raises(CheckpointError, match="no file backend for 'pavi:"):
        load('pavi://model')


def test_home_folder(files, monkeypatch):
    monkeypatch.setenv('HOME', str(files))
    assert 'state_dict' in load('~/good.pth')


def test_missing_file(files):
    with pytest.raises(CheckpointError, match='missing: No such file'):
        load(f'{files}/none.pth')


def test_only_the_verified_content_is_loaded(files):
    path = files / 'good.pth'
    pin_checkpoint(path, hashlib.sha256(path.read_bytes()).hexdigest())
    load(str(path))
    torch.save(dict(state_dict=dict(w=torch.zeros(2))), path)
    with pytest.raises(BadCheckpoint, match='not the file that was verified'):
        load(str(path))


def test_loaders_of_others_stay(tmp_path):
    CheckpointLoader.register_scheme(
        'mine://', lambda name, where: {'a': name}, force=True
    )
    guard_checkpoints()
    assert load('mine://x') == {'a': 'mine://x'}
