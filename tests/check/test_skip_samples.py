"""From what was found to a data set without it."""

from __future__ import annotations

import json

import pytest
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from mmstable.check import SkipSamples
from mmstable.cli.main import main
from tests.check import data_project as project


@pytest.fixture
def folder(tmp_path, monkeypatch):
    project.write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def skip_list(folder):
    config = project.config(folder, project.SEG)
    main(['check-data', config, '--write-skip-list', 'skip.json'])
    return dict(eval(project.SEG.format(folder=str(folder), more='')))


def test_bad_samples_are_left_out(folder, capsys):
    inner = skip_list(folder)
    out = capsys.readouterr().out
    assert '7 samples with errors written to skip.json; use it by' in out
    dataset = DATASETS.build(
        dict(type='mmstable.SkipSamples', dataset=inner, skip_list='skip.json')
    )
    assert [dataset.original_index(i) for i in range(len(dataset))] == [
        0, 1, 2, 3, 4, 5, 9, 12
    ]  # fmt: skip
    assert dataset.metainfo['classes'] == ('sky', 'road', 'car')
    assert dataset.get_data_info(7)['img_path'].endswith('img_12.npy')
    samples = DataLoader(dataset, batch_size=1, collate_fn=list, num_workers=2)
    assert all(batch[0]['inputs'].isfinite().all() for batch in samples)


def test_the_bare_name_and_wrappers_of_mmengine(folder):
    inner = skip_list(folder)
    wrapper = dict(type='SkipSamples', dataset=inner, skip_list='skip.json')
    repeated = DATASETS.build(
        dict(type='RepeatDataset', times=3, dataset=wrapper)
    )
    assert len(repeated) == 24
    assert repeated.metainfo['classes'] == ('sky', 'road', 'car')


def change(**values):
    with open('skip.json', encoding='utf-8') as file:
        content = json.load(file)
    content.update(values)
    with open('skip.json', 'w', encoding='utf-8') as file:
        json.dump(content, file)


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        (dict(length=14), 'damaged'),
        (dict(length=16), 'has 16 samples, the dataset 15'),
        (
            dict(samples=[dict(index=2, name='img_path=other.npy')]),
            "sample 2 is 'img_path=.*', not 'img_path=other.npy'",
        ),
        pytest.param(
            dict(samples=[dict(index=-1, name='')]),
            'damaged',
            marks=pytest.mark.soak,
        ),
        pytest.param(dict(samples=[7]), 'damaged', marks=pytest.mark.soak),
        (dict(skip_list=2), 'written by a newer mmstable'),
    ],
)
def test_a_list_that_does_not_fit_is_refused(folder, values, message):
    inner = skip_list(folder)
    change(**values)
    with pytest.raises(ValueError, match=f'SkipSamples: .*{message}'):
        SkipSamples(inner, 'skip.json')


def test_what_is_no_list_is_refused(folder):
    inner = skip_list(folder)
    with pytest.raises(ValueError, match="'none.json' cannot be used"):
        SkipSamples(inner, 'none.json')
    with pytest.raises(ValueError, match='not a skip list of `mmstable'):
        SkipSamples(inner, 'seg.json')
    with pytest.raises(TypeError, match='`skip_list` must be a str'):
        SkipSamples(inner, 3)
