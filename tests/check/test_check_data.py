"""Planted faults in data sets of every kind, found by the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

import pytest
import torch
from torch.utils.data import Dataset

from mmstable.check.data import check_data
from mmstable.check.sample_checks import Expected, Subject, parts_of
from mmstable.cli.check_data import EXIT_BAD_DATA
from mmstable.cli.main import main
from tests.check import data_project as project
from tests.cli.runs import ROOT, run


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data_project')
    project.write(folder)
    return folder


@pytest.fixture
def folder(data, tmp_path, monkeypatch):
    """The data, and an empty folder to stand in."""
    monkeypatch.syspath_prepend(str(data))
    monkeypatch.chdir(tmp_path)
    return data


def check(config, *words):
    """Exit code, and what is in the JSON file."""
    code = main(['check-data', config, '--json', 'found.json', *words])
    with open('found.json', encoding='utf-8') as file:
        return code, json.load(file)


def by_id(found):
    problems = {}
    for sample in found['samples']:
        for problem in sample['problems']:
            problems.setdefault(problem['id'], []).append(sample['index'])
    return problems


SEG_FAULTS = {
    'non_finite': [6, 7],
    'label_range': [8],
    'all_ignored': [9],
    'channel_count': [10],
    'map_shape': [11],
    'duplicate': [12],
    'label_type': [13],
    'odd_layout': [13],
    'raises': [14],
}


@pytest.mark.parametrize('workers', [0, 2])
def test_segmentation(folder, capsys, workers):
    config = project.config(folder, project.SEG, workers)
    code, found = check(config)
    assert code == EXIT_BAD_DATA
    assert by_id(found) == SEG_FAULTS
    severities = {one['id']: one['severity'] for one in found['findings']}
    assert severities['non_finite'] == 'error'
    assert severities['duplicate'] == 'warning'
    out = capsys.readouterr().out
    assert f'15 samples of 15 checked (train, SmallSeg, {workers} w' in out
    assert 'NaN or Inf in the data (inputs: 3 of 192 are NaN)' in out
    assert f'first: 6 (img_path={folder}/img_6.npy), 7 (' in out
    assert '7 with 3 classes' in out
    assert 'slowest: ' in out
    assert 'largest: ' in out


def test_detection_and_what_its_filter_drops(folder, capsys):
    more = 'filter_cfg=dict(min_size=32),'
    code, found = check(project.config(folder, project.DET, more=more))
    assert code == EXIT_BAD_DATA
    assert by_id(found) == {
        'inverted_box': [1],
        'flat_box': [2],
        'no_boxes': [3],
        'empty_mask': [4],
        'label_range': [5],
    }
    assert found['total'] == 6
    assert found['dropped'] == [
        f'img_path={folder}/det_{index}.npy' for index in (6, 7)
    ]
    out = capsys.readouterr().out
    assert 'samples that are filtered out before training' in out


def test_point_clouds(folder):
    code, found = check(project.config(folder, project.SCANS))
    assert code == EXIT_BAD_DATA
    assert by_id(found) == {'non_finite': [2], 'no_points': [3]}
    assert found['samples'][0]['name'].endswith('scan_2.bin')


def test_a_demo_that_is_shorter_than_a_chunk(folder, capsys):
    dataset = "dict(type='Demos', lengths=[10, 3, 9, 2], chunk=8)"
    code, found = check(project.config(folder, dataset))
    # Nothing is wrong with the samples that there are.
    assert code == 0
    assert found['dropped'] == ['demos[1]', 'demos[3]']
    out = capsys.readouterr().out
    assert 'shorter than a chunk' in out


def test_good_data(folder, capsys):
    dataset = "dict(type='Demos', lengths=[10, 9], chunk=8)"
    code, found = check(project.config(folder, dataset))
    assert (code, found['findings']) == (0, [])
    assert 'no problems found' in capsys.readouterr().out


def test_a_sample_that_is_replaced_silently(folder):
    more = "dict(type='GiveUpOn', word='img_3'),"
    _, found = check(project.config(folder, project.SEG, more=more))
    assert by_id(found)['no_sample'] == [3]


def test_the_same_in_chinese(folder, capsys, monkeypatch):
    monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    monkeypatch.setattr('mmstable.messages._chosen', None)
    check(project.config(folder, project.SEG))
    out = capsys.readouterr().out
    assert '错误  non_finite' in out
    assert '数据中有 NaN 或 Inf' in out


def test_details_are_chinese_as_well(folder, capsys, monkeypatch):
    monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    monkeypatch.setattr('mmstable.messages._chosen', None)
    _, found = check(project.config(folder, project.SEG))
    details = {
        problem['id']: problem['detail']
        for sample in found['samples']
        for problem in sample['problems']
        if problem['id'] not in ('raises', 'label_type')
    }
    words = {
        name: re.sub(
            r'img_path=\S+|NaN|Inf|float32|int64|\d-d| x ', '', detail
        )
        for name, detail in details.items()
    }
    assert [n for n, w in words.items() if re.search('[a-z]', w)] == []


class Sized(Dataset):
    """Pictures of given sizes."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return dict(inputs=torch.full((3, *self.sizes[index]), index))


@pytest.mark.parametrize(
    ('sizes', 'odd'),
    [
        # Nearly all alike.
        ([(32, 32)] * 19 + [(32, 33)], [19]),
        # All sorts of sizes, but one is a line.
        ([(30 + i, 40 - i) for i in range(9)] + [(2, 40)], [9]),
        # Half and half.
        ([(32, 48)] * 5 + [(48, 32)] * 5, []),
    ],
)
def test_pictures_of_an_unusual_size(sizes, odd):
    summary = check_data(Sized(sizes), range(len(sizes)), Expected(), 0)
    found = [
        one.index
        for one in summary.reports
        if any(problem.id == 'odd_size' for problem in one.problems)
    ]
    assert found == odd
    assert summary.bad_samples() == {}


@pytest.mark.soak
def test_samples_of_another_split(folder, capsys):
    config = project.config(folder, project.SEG)
    entries = json.loads((folder / 'seg.json').read_text())
    shutil.copy(entries[2]['img_path'], folder / 'copy.npy')
    copied = {**entries[2], 'img_path': str(folder / 'copy.npy')}
    (folder / 'val.json').write_text(json.dumps([copied]))
    with open(config, 'a', encoding='utf-8') as file:
        file.write(
            'val_dataloader = dict(dataset={**train_dataloader["dataset"], '
            f'"ann_file": {str(folder / "val.json")!r}}})\n'
        )
    assert 'leak' not in by_id(check(config)[1])
    code, found = check(config, '--against', 'val')
    assert code == EXIT_BAD_DATA
    assert by_id(found)['leak'] == [2]
    out = capsys.readouterr().out
    assert f'(same as img_path={folder}/copy.npy)' in out
    assert main(['check-data', config, '--against', 'test']) == 2


class Interrupting(Sized):
    """Somebody presses Ctrl-C at the fourth sample."""

    def __getitem__(self, index):
        if index == 3:
            raise KeyboardInterrupt
        sample = super().__getitem__(index)
        sample['inputs'] = sample['inputs'] * float('nan')
        return sample


def test_an_interrupted_check_tells_what_it_has(folder, capsys, monkeypatch):
    monkeypatch.setattr(
        'mmstable.cli.check_data._build',
        lambda loader: Interrupting([(4, 4)] * 9),
    )
    config = project.config(folder, project.SEG)
    assert main(['check-data', config, '--json', 'found.json']) == 130
    captured = capsys.readouterr()
    assert '3 samples of 9 checked' in captured.out
    assert 'NaN or Inf in the data' in captured.out
    with open('found.json', encoding='utf-8') as file:
        assert by_id(json.load(file))['non_finite'] == [0, 1, 2]


class Killed(Sized):
    """A worker ends at the fourth sample, as if there were no memory."""

    def __getitem__(self, index):
        if index == 3:
            os._exit(9)
        return super().__getitem__(index)


def test_a_worker_that_is_killed(folder, capsys, monkeypatch):
    monkeypatch.setattr(
        'mmstable.cli.check_data._build', lambda loader: Killed([(4, 4)] * 9)
    )
    config = project.config(folder, project.SEG, 1)
    assert main(['check-data', config]) == 1
    captured = capsys.readouterr()
    assert 'samples of 9 checked' in captured.out
    assert 'a worker failed' in captured.err


def test_a_repeated_data_set_is_looked_at_once(folder):
    dataset = "dict(type='RepeatDataset', times=50, dataset=" + project.SEG
    config = project.config(folder, dataset + ')')
    _, found = check(config)
    assert found['total'] == 15
    assert by_id(found) == SEG_FAULTS


def test_a_concatenation(folder):
    dataset = f"dict(type='ConcatDataset', datasets=[{project.SEG}] * 2)"
    _, found = check(project.config(folder, dataset))
    assert found['total'] == 30
    problems = by_id(found)
    assert problems['non_finite'] == [6, 7, 21, 22]
    # The same files again.
    assert {15, 16, 27} <= set(problems['duplicate'])


def test_some_samples_are_spread_over_all(folder):
    code, found = check(project.config(folder, project.SEG), '--max', '5')
    assert found['looked_at'] == 5
    assert by_id(found) == {
        'non_finite': [6],
        'all_ignored': [9],
        'duplicate': [12],
    }
    assert code == EXIT_BAD_DATA


def test_the_ignored_label_and_classes_can_be_given(folder):
    config = project.config(folder, project.SEG)
    _, found = check(config, '--ignore-index', '7', '--num-classes', '2')
    # Class 2, and 255 where that was to be ignored.
    assert {1, 2, 5, 9} <= set(by_id(found)['label_range'])
    assert 8 in by_id(found)['label_range']
    assert 'all_ignored' not in by_id(found)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--split', 'val'], 'the config has no `val_dataloader` with a '),
        (['--max', '0'], "--max: a number from 1 on is expected, got '0'"),
        (['--workers', 'x'], "a number from 0 on is expected, got 'x'"),
        (['--json', 'no/x.json'], "there is no folder 'no' to write to."),
        (
            ['--cfg-options', 'train_dataloader.dataset.type=SmalSeg'],
            "the config asks for the dataset 'SmalSeg', which is not "
            "registered in scope 'mmengine'. Did you mean SmallSeg",
        ),
        (
            ['--cfg-options', 'train_dataloader.dataset.ann_file=no.json'],
            'the data set cannot be built: FileNotFoundError',
        ),
        (
            ['--cfg-options', 'train_dataloader.dataset.colour=1'],
            "unexpected keyword argument 'colour'",
        ),
    ],
)
def test_mistakes_get_one_line(folder, capsys, words, message):
    config = project.config(folder, project.SEG)
    assert main(['check-data', config, *words]) == 2
    captured = capsys.readouterr()
    lines = [
        line
        for line in captured.err.splitlines()
        if line.startswith('mmstable check-data: error: ')
    ]
    assert len(lines) == 1
    assert message in lines[0]
    assert 'Traceback' not in captured.err


@pytest.mark.soak
def test_the_tool_is_the_same_command(folder, tmp_path):
    config = project.config(folder, project.SCANS)
    code, out, err = run(
        [sys.executable, str(ROOT / 'tools/check_data.py'), config],
        tmp_path,
        path=f'{ROOT}:{folder}',
    )
    assert code == EXIT_BAD_DATA, err
    assert 'non_finite' in out


@pytest.mark.parametrize('sample', ['tuple', 'dict'])
def test_labels_that_are_bare_tensors(sample):
    image, label = torch.zeros(3, 4, 4), torch.tensor(7)
    made = (image, label)
    if sample == 'dict':
        made = dict(inputs=image, data_samples=label)
    expected = Expected(num_classes=5, ignore_index=255, channels=3)
    found = [one.id for one in Subject(parts_of(made), expected).problems()]
    assert found == ['label_range']
