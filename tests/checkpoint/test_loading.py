from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.runner import CheckpointLoader

import mmstable  # noqa: F401  (guards mmengine's loader)
from mmstable.checkpoint.catalog import verify_checkpoint, verify_weights
from mmstable.checkpoint.loaders import trust_checkpoint
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    inspect_checkpoint,
    load_checkpoint,
)
from mmstable.errors import CheckpointError


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / 'iter_4.pth'
    torch.save(
        dict(
            meta=dict(epoch=0, iter=4),
            state_dict=dict(weight=torch.ones(1000)),
        ),
        path,
    )
    return path


def test_good_file_is_loaded(good):
    loaded = load_checkpoint(good)
    assert torch.equal(loaded['state_dict']['weight'], torch.ones(1000))
    assert inspect_checkpoint(good)['state_dict']['weight'].is_meta
    assert verify_weights(good)


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == 'truncated':
        path.write_bytes(data[: len(data) // 2])
    elif how == 'empty':
        path.write_bytes(b'')
    elif how == 'text':
        path.write_text('this is not a checkpoint at all')
    elif how == 'html':
        path.write_text('<html>404</html>')
    elif how == 'list':
        torch.save([1, 2], path)
    elif how == 'dict':
        torch.save(dict(epoch=1, weights=2), path)
    elif how == 'pickle':
        path.write_bytes(pickle.dumps(dict(state_dict={})))
    elif how == 'missing':
        path.unlink()
    elif how == 'folder':
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ('how', 'reason'),
    [
        ('truncated', 'truncated: its end is missing after \\d+ bytes'),
        ('empty', 'empty$'),
        ('text', 'foreign: no checkpoint of torch$'),
        ('html', 'foreign: no checkpoint of torch$'),
        ('pickle', 'foreign: '),
        ('list', 'foreign: a dict with a state_dict is expected, got a list'),
        ('dict', 'foreign: .* got a dict of epoch, weights'),
        ('missing', 'missing: No such file'),
        ('folder', 'foreign: not a regular file'),
    ],
)
def test_bad_file_is_explained(good, how, reason):
    spoil(good, how)
    message = f"checkpoint '{re.escape(str(good))}' is {reason}"
    for load in (load_checkpoint, verify_checkpoint):
        with pytest.raises(CheckpointError, match=message) as caught:
            load(good)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize('load', [load_checkpoint, inspect_checkpoint])
def test_payload_is_refused(good, tmp_path, load):
    marker = tmp_path / 'marker'
    content = load_checkpoint(good)
    content['meta']['extra'] = Payload(marker)
    torch.save(content, good)
    with pytest.raises(
        BadCheckpoint,
        match=r'refused: it asks for posix\.mkdir, .* Nothing in it was '
        r'executed\. .* --trust-checkpoint',
    ):
        load(good)
    assert not marker.exists()


def test_payload_in_a_bare_pickle_is_refused(tmp_path):
    path, marker = tmp_path / 'a.pth', tmp_path / 'marker'
    path.write_bytes(pickle.dumps(Payload(marker), protocol=2))
    with pytest.raises(BadCheckpoint, match='refused|foreign'):
        load_checkpoint(path)
    assert not marker.exists()


def test_flipped_bit_is_found(good):
    data = bytearray(good.read_bytes())
    place = data.index(torch.ones(8).numpy().tobytes()) + 2
    data[place] ^= 1
    good.write_bytes(data)
    # torch does not notice.
    loaded = torch.load(good, weights_only=True)['state_dict']['weight']
    assert not torch.equal(loaded, torch.ones(1000))
    for load in (verify_checkpoint, verify_weights, load_checkpoint, from_any):
        with pytest.raises(BadCheckpoint, match='corrupt: .* check sum'):
            load(good)


def from_any(path):
    """As ``load_from`` of a config loads it."""
    return CheckpointLoader.load_checkpoint(str(path))


def test_plain_weights_are_enough_to_start_with(tmp_path):
    path = tmp_path / 'resnet.pth'
    torch.save(dict(weight=torch.ones(2)), path)
    assert verify_weights(path)
    torch.save(torch.ones(2), path)
    with pytest.raises(BadCheckpoint, match='a dict is expected, got a Ten'):
        verify_weights(path)


def test_trust_is_for_one_file(good, tmp_path):
    marker = tmp_path / 'marker'
    other = tmp_path / 'iter_4.pth.copy'
    torch.save(dict(state_dict=Payload(marker)), good)
    other.write_bytes(good.read_bytes())

    address = trust_checkpoint(good)
    for path in (good, other, f'mmstable-trusted://{other}'):
        with pytest.raises(CheckpointError, match='refused|not trusted'):
            CheckpointLoader.load_checkpoint(str(path))
    assert not marker.exists()
    CheckpointLoader.load_checkpoint(address)
    assert marker.exists()


def test_the_error_can_be_sent_to_other_ranks():
    error = BadCheckpoint('a.pth', 'corrupt: its end is missing')
    found = pickle.loads(pickle.dumps(error))
    assert (str(found), found.reason) == (str(error), error.reason)
