"""Which settings hold secrets, and what is shown of them."""

from __future__ import annotations

import collections
import time

import pytest

from mmstable.messages import _, use_language
from mmstable.messages.secrets import (
    is_secret,
    mask_text,
    mask_values,
    mask_words,
    shell_command,
)

SECRETS = """
token TOKEN hf_token auth_token accessToken access_token wandb_token bot_token
use_auth_token password Password db_password passwd passphrase secret
PGPASSWORD dbpassword passcode Authorization cookie jwt X-Amz-Signature
client_secret secret_id SECRET_KEY apikey API_KEY api_key apiKey api_keys
access_key aws_secret_access_key access_key_id access_key_secret private_key
key credential credentials aws_credentials auth webhook webhook_url
vis_backends.0.init_kwargs.api_key model.credentials.user --hub-token
"""
OPEN = """
num_keys key_embed_dims keypoint keypoint_head tokenizer max_tokens num_tokens
monkey keys img_key gt_key meta_keys key_dim keyframe turnkey author authors
with_cls_token mask_token cls_token pad_token eos_token token_mixer tokens
token_embed_dims secretary passed password_file token_path compass_wd hotkey
model.backbone.out_indices train_cfg.max_iters optim_wrapper.optimizer.lr
query_key out_type patch_token key_points lr pwd padding_token sos_token
unknown_token blank_token storage_key
"""


@pytest.mark.parametrize('name', SECRETS.split())
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize('name', OPEN.split())
def test_names_of_other_settings(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        (['a.api_key=x'], ['a.api_key=***']),
        (['a.password=two words, and a comma'], ['a.password=***']),
        (['--cfg-options=a.api_key=x'], ['--cfg-options=a.api_key=***']),
        (['--token=x', 'c.py'], ['--token=***', 'c.py']),
        (['--token', 'x', 'c.py'], ['--token', '***', 'c.py']),
        (['--token', '--amp'], ['--token', '--amp']),
        (["b=dict(api_key='x', n=1)", 'c.py'], ['b=***', 'c.py']),
        (['b=dict(api_key=x)'], ['b=***']),
        (["b={'token': 'x', 'n': 1}"], ['b=***']),
        (["b=[dict(token='x'),2]"], ['b=***']),
        (['b=dict(n=1)'], ['b=dict(n=1)']),
        (['u=http://me:x@host/a'], ['u=http://***@host/a']),
        (['u=http://host:80/a@b'], ['u=http://host:80/a@b']),
        (['a.key=x'], ['a.key=***']),
        (["a=[dict(type='Load', key='img')]"],) * 2,
        (['model.num_keys=3', 'a=b=c'], ['model.num_keys=3', 'a=b=c']),
    ],
)
def test_a_command_line(words, expected):
    assert mask_words(words) == expected


def test_long_words_take_no_time():
    text = 'a' * 200_000
    start = time.thread_time()
    assert mask_text(text) == text
    # It was quadratic: a minute for a tenth of this.
    assert time.thread_time() - start < 5


@pytest.mark.parametrize(
    'address',
    ['redis://:pw@host', 'https://ghp_x@host/a', 'https://u:p@ss@host/a@b'],
)
def test_addresses(address):
    scheme, rest = address.split('://')
    shown = f'{scheme}://***@host' + rest.partition('host')[2]
    assert mask_text(address) == shown
    assert mask_values(dict(url=address)) == dict(url=shown)


def test_tuples():
    pair = collections.namedtuple('pair', 'a b')
    value = dict(betas=(0.9, 0.99), pair=pair(1, dict(token='x')))
    assert mask_values(value) == dict(
        betas=(0.9, 0.99), pair=(1, dict(token='***'))
    )


def test_settings():
    hooks = [dict(type='A', token='x', more=dict(api_key='y', key='img'))]
    assert mask_values(hooks) == [
        dict(type='A', token='***', more=dict(api_key='***', key='img'))
    ]
    assert hooks[0]['token'] == 'x'


def test_a_printed_command_says_what_to_fill_in():
    command = shell_command(['train', '--cfg-options', 'a.api_key=x y'])
    assert command == "train --cfg-options 'a.api_key=***'"
    text = _('Resume with: {command}', command=command)
    assert text.startswith(f'Resume with: {command} ')
    assert text.endswith('Replace *** by the values of the secrets first.')
    use_language('zh_cn')
    try:
        assert '请把 *** 替换' in _('Resume with: {command}', command=command)
    finally:
        use_language(None)
    assert _('Resume with: {command}', command='a') == 'Resume with: a'
