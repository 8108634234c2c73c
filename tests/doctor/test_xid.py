"""What the driver has said, in the words of several generations of it."""

from __future__ import annotations

import pytest

from mmstable.doctor import Plan
from mmstable.doctor.gpus import (
    complaints,
    judge_xid,
    kernel_log,
    xid,
)
from mmstable.errors import UsageError
from mmstable.finding import Finding

# As published, most by people in trouble; the comment says where.
LINES = [
    # github.com/Bumblebee-Project/Bumblebee/issues/677, 2015
    (
        '[24128.834365] NVRM: Xid (PCI:0000:01:00): 31, Ch 00000003, engmask '
        '00000101, intr 10000000',
        (31, '0000:01:00', 'warning'),
    ),
    # pastebin.com/NGng33SB, without 'PCI:'
    (
        'Nov 22 18:29:55 hostname kernel: [ 966.503025] NVRM: Xid '
        '(0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000',
        (31, '0000:01:00', 'warning'),
    ),
    # github.com/doitsujin/dxvk/issues/1027, driver 418
    (
        '[31609.615230] NVRM: Xid (PCI:0000:01:00): 13, Graphics Exception: '
        'Class 0x0 Subchannel 0x0 Mismatch',
        (13, '0000:01:00', 'warning'),
    ),
    # github.com/xtknight/vdpau-va-driver-vp9/issues/2, 2019, with a pid
    (
        'NVRM: Xid (PCI:0000:00:06): 31, pid=2708, Ch 0000003d, intr '
        '10000000. MMU Fault: ENGINE NVDEC HUBCLIENT_NVDEV faulted @ '
        '0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_READ',
        (31, '0000:00:06', 'warning'),
    ),
    # github.com/NVIDIA/open-gpu-kernel-modules/issues/363, driver 515
    (
        'NVRM: Xid (PCI:0000:08:00): 31, pid=169800, name=chrome, Ch '
        '00000023, intr 00000000. MMU Fault: ENGINE CE0 HUBCLIENT_HSCE0 '
        'faulted @ 0x0_0abe0000. Fault is of type FAULT_PTE '
        'ACCESS_TYPE_VIRT_READ',
        (31, '0000:08:00', 'warning'),
    ),
    # github.com/madMAx43v3r/chia-gigahorse/issues/301, 2024
    (
        "[14370.687545] NVRM: Xid (PCI:0000:0a:00): 62, pid='<unknown>', "
        'name=<unknown>, 2023b230 20238a3a 2023e8b6 2023eac4 2023ec3c '
        '2023ea86 00000000 00000000',
        (62, '0000:0a:00', 'error'),
    ),
    # A gist of kohsuke's, nothing but numbers
    (
        'Dec 23 23:32:27 rescue kernel: [ 270.439207] NVRM: Xid '
        '(PCI:0000:01:00): 62, 0096(1c54) 00000000 00000000',
        (62, '0000:01:00', 'error'),
    ),
    # github.com/NVIDIA/open-gpu-kernel-modules/issues/1150, driver 590
    (
        'kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, '
        'Ch 00000001 caused by previous Xid 149',
        (45, '0000:dc:00', 'hint'),
    ),
    # github.com/NVIDIA/gpu-operator/issues/1146
    (
        "NVRM: Xid (PCI:0000:07:00): 48, pid='<unknown>', name=<unknown>, An "
        'uncorrectable double bit error (DBE) has been detected on GPU in '
        'the framebuffer at physAddr 0x7fdf0de80 partition 5, subpartition 1',
        (48, '0000:07:00', 'error'),
    ),
    # github.com/stas00/ml-engineering, debug.md
    (
        'NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row '
        'marked for remapping, reset gpu to activate.',
        (63, '0000:10:1c', 'warning'),
    ),
    # open-gpu-kernel-modules, the comment on contained errors, with MIG
    (
        'NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE '
        'User Channel (0x9). RST: No, D-RST: No',
        (94, '0000:01:00', 'error'),
    ),
    # github.com/NVIDIA/NVSentinel, tests of its syslog monitor
    (
        '[16450076.435595] NVRM: Xid (PCI:0002:00:00): 119, pid=1582259, '
        'name=nvc:[driver], Timeout after 6s of waiting for RPC response '
        'from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 '
        '0x8).',
        (119, '0002:00:00', 'error'),
    ),
    # github.com/NVIDIA/NVSentinel/issues/155
    (
        'NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus',
        (79, '0000:44:00', 'error'),
    ),
    # A newer number, which is not in the table; shortened where it is from.
    (
        'NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action ... Node '
        'Reboot Required',
        (154, '0000:01:00', 'warning'),
    ),
    # A mail to linux-pci of 18 April 2024, without a number
    (
        '[  228.414765] NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.',
        (None, '0000:09:00', 'error'),
    ),
    # The last of three lines, which has no place either
    (
        '               NVRM: fallen off the bus and is not responding to '
        'commands.',
        (None, '', 'error'),
    ),
]


@pytest.mark.parametrize(('line', 'expected'), LINES)
def test_lines_of_all_generations(line, expected):
    (one,) = complaints(['usb 1-1: new device', line, 'NVRM: loading'])
    severity = judge_xid(one).severity.value
    assert (one.code, one.bus, severity) == expected


@pytest.mark.parametrize(
    'code',
    [13, 31, 43, 45, 48, 61, 62, 63, 64, 68, 69]
    + [74, 79, 92, 94, 95, 109, 119, 120],
)
def test_every_number_has_its_meaning(code):
    (one,) = complaints([f'NVRM: Xid (PCI:0000:01:00): {code}, pid=1'])
    finding = judge_xid(one)
    assert finding.id == f'xid_{code}'
    assert finding.what.startswith(f'Xid {code}: ')
    assert 'not in the table' not in finding.what
    assert finding.why.startswith('Most likely')


@pytest.mark.parametrize(
    ('code', 'word', 'whose'),
    [
        # Often told wrong.
        (31, 'page fault', 'a program'),
        (43, 'a channel was reset', 'a program'),
        (48, 'double-bit ECC', 'hardware'),
        (79, 'fallen off the bus', 'hardware'),
        (119, 'GSP', 'the driver'),
    ],
)
def test_meanings(code, word, whose):
    (one,) = complaints([f'NVRM: Xid (PCI:0000:01:00): {code}, pid=1'])
    finding = judge_xid(one)
    assert word in finding.what
    assert whose in finding.why


def test_a_flood_of_lines_is_one_finding():
    lines = [
        f'NVRM: Xid (PCI:0000:01:00): 45, pid=1, Ch {number:08x}'
        for number in range(1000)
    ]
    (one,) = complaints(lines)
    assert one.count == 1000
    assert '(1000 lines), at last: ' in judge_xid(one).what
    assert '000003e7' in judge_xid(one).what


def test_two_gpus_are_two_findings():
    line = 'NVRM: Xid (PCI:0000:{}:00): 74, pid=1'
    found = complaints([line.format('3B'), line.format('af')])
    assert [one.bus for one in found] == ['0000:3b:00', '0000:af:00']


def test_one_that_fell_off_the_bus_is_told_once():
    lines = [
        'NVRM: Xid (PCI:0000:83:00): 79, GPU has fallen off the bus.',
        'NVRM: GPU 0000:83:00.0: GPU has fallen off the bus.',
        'NVRM: GPU 0000:84:00.0: GPU has fallen off the bus.',
    ]
    found = complaints(lines)
    assert [(one.code, one.bus) for one in found] == [
        (79, '0000:83:00'),
        (None, '0000:84:00'),
    ]


@pytest.mark.parametrize(
    'line',
    [
        '',
        'NVRM: Xid',
        'NVRM: Xid (PCI:0000:01:00): ',
        'a user wrote: Xid 79',
        'he has fallen off the bus',
        'NVRM: Xid (' * 5000,
    ],
)
def test_other_lines_are_none(line):
    assert complaints([line]) == []


def test_a_log_is_read(tmp_path):
    path = tmp_path / 'kern.log'
    path.write_text('\n'.join(line for line, _ in LINES[:3]))
    items = list(xid(Plan(log=str(path))))
    found = [one.id for one in items if isinstance(one, Finding)]
    assert found == ['xid_31', 'xid_13']
    assert [one.value for one in items[:2]] == [str(path), '3']


def test_only_the_end_of_a_long_log_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr('mmstable.doctor.gpus._file.__defaults__', (99,))
    path = tmp_path / 'kern.log'
    path.write_text('an old line\n' * 1000 + LINES[-3][0])
    assert len('\n'.join(kernel_log(str(path)).lines)) == 99


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (None, 'No such file'),
        (b'\x7fELF\0\0\0', 'is no text'),
        (b'\x1f\x8bpacked', 'is no text'),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, content, message):
    path = tmp_path / 'kern.log'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        kernel_log(str(path))


def test_a_folder_is_no_log(tmp_path):
    with pytest.raises(UsageError, match='--log: .*'):
        kernel_log(str(tmp_path))
