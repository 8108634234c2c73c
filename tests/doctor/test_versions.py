"""Which versions get along."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from mmstable.doctor import Fact, Plan, read_data
from mmstable.doctor.host import (
    cudnn_text,
    driver_version,
    in_range,
    known_bad,
    versions,
)
from mmstable.finding import Severity

NVRM = (
    'NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 '
    '01:15:15 UTC 2023\nGCC version:  gcc version 11.4.0\n'
)
# github.com/NVIDIA/open-gpu-kernel-modules/issues/1230
NVRM_OPEN = (
    'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  '
    'Release Build  (root@epyc)  Fri Jul  3 11:27:00 AM UTC 2026\n'
)


@pytest.mark.parametrize(
    ('version', 'bounds', 'expected'),
    [
        ('2.1.0+cu118', '<2.3', True),
        ('2.3.0', '<2.3', False),
        ('2.10.1', '>=2.9,<2.10', False),
        ('2.9.1', '>=2.9,<2.10', True),
        ('0.10.7', '<=0.10.7', True),
        ('1.0.0rc1', '>=1', True),
        ('535.104.05', '<525', False),
        ('nobody knows', '>=1', False),
    ],
)
def test_ranges(version, bounds, expected):
    assert in_range(version, bounds) is expected


@pytest.mark.parametrize(
    ('here', 'severity'),
    [
        ({'torch': '2.1.0', 'numpy': '2.0.1'}, 'error'),
        ({'torch': '2.9.1', 'cuda': '13.0', 'driver': '570.86'}, 'error'),
        ({'mmdet': '3.3.0', 'mmcv-lite': '2.2.0'}, 'error'),
        ({'torch': '2.9.0+cu128', 'cudnn': '9.10.2'}, 'warning'),
        ({'nccl': '2.29.2'}, 'warning'),
        ({'cuda': '11.8', 'driver': '440.33.01'}, 'error'),
    ],
)
def test_known_bad(here, severity):
    (found,) = known_bad(here)
    assert found.severity.value == severity
    assert found.source.startswith('https://')


@pytest.mark.parametrize(
    'here',
    [
        {},
        {'torch': '2.4.0', 'numpy': '2.0.1'},
        {'torch': '2.9.1', 'cuda': '13.0', 'driver': '580.65.06'},
        {'mmdet': '3.3.0', 'mmcv': '2.1.0'},
        {'nccl': '2.29.3'},
    ],
)
def test_nothing_is_said_of_good_ones(here):
    assert not list(known_bad(here))


@pytest.mark.parametrize(
    'row',
    read_data('known_bad.json'),
    ids=lambda row: str(row['versions'][0]),
)
def test_every_row_has_all_it_takes(row):
    assert all(
        SpecifierSet(one) for r in row['versions'] for one in r.values()
    )
    assert Severity(row['severity'])
    assert row['why']
    assert row['fix']
    assert row['source'].startswith('https://')


@pytest.mark.parametrize(
    ('number', 'expected'), [(8907, '8.9.7'), (91002, '9.10.2')]
)
def test_cudnn(number, expected):
    assert cudnn_text(number) == expected


@pytest.mark.parametrize(
    ('text', 'expected'),
    [(NVRM, '535.104.05'), (NVRM_OPEN, '595.71.05'), ('?', None)],
)
def test_driver(tmp_path, text, expected):
    (tmp_path / 'version').write_text(text)
    assert driver_version(tmp_path / 'version') == expected
    assert driver_version(tmp_path / 'none') is None


def test_versions_of_this_machine():
    facts = [one for one in versions(Plan()) if isinstance(one, Fact)]
    assert {'python', 'torch', 'mmengine'} <= {one.id for one in facts}
