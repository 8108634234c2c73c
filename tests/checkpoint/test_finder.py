from __future__ import annotations

import hashlib

import torch

import mmstable  # noqa: F401  (guards mmengine's loader)
from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.checkpoint.manifest import Lineage, Manifest, manifest_path
from tests.some_files import some_files
from tests.toys import INF, NAN

_TIME = 1e9


def save(folder, name, iteration, side=True, value=1.0, finite=True, **label):
    path = folder / name
    torch.save(
        dict(
            meta=dict(epoch=0, iter=iteration),
            state_dict=dict(weight=torch.tensor([value, 2.0, 3.0] * 100)),
        ),
        path,
    )
    if side:
        Manifest(
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
            iteration,
            0,
            finite,
            _TIME - iteration,
            **label,
        ).write(path)
    return path


def test_newest_is_by_iteration_not_by_name(tmp_path):
    save(tmp_path, 'iter_900.pth', 900)
    save(tmp_path, 'iter_1000.pth', 1000, side=False)
    save(tmp_path, 'epoch_3.pth', 1100, side=False)
    newest = save(tmp_path, 'emergency_iter_1150.pth', 1150)
    save(tmp_path, 'best_mIoU_iter_2000.pth', 2000)
    search = find_checkpoint(tmp_path)
    assert search.skipped == ()
    assert search.found.path == newest.resolve()
    assert (search.found.iteration, search.found.epoch) == (1150, 0)
    for path in some_files(tmp_path, 'emergency*'):
        path.unlink()
    assert find_checkpoint(tmp_path).found.iteration == 1100


def flip(path):
    data = bytearray(path.read_bytes())
    data[data.index(torch.tensor([2.0, 3.0]).numpy().tobytes())] ^= 1
    path.write_bytes(data)


def test_bad_ones_are_skipped_with_a_reason(tmp_path):
    good = save(tmp_path, 'iter_1.pth', 1)
    flip(save(tmp_path, 'iter_2.pth', 2))
    flip(save(tmp_path, 'iter_3.pth', 3, side=False))
    save(tmp_path, 'iter_4.pth', 4, finite=False)
    save(tmp_path, 'iter_5.pth', 5, side=False, value=NAN)
    save(tmp_path, 'iter_6.pth', 6, side=False, value=INF)
    (tmp_path / 'iter_7.pth').touch()
    for number, side in ((8, True), (9, False)):
        path = save(tmp_path, f'iter_{number}.pth', number, side)
        path.write_bytes(path.read_bytes()[:-100])
    (tmp_path / 'iter_10.pth').write_text('something else entirely')
    search = find_checkpoint(tmp_path)
    assert search.found.path == good.resolve()
    words = [line.split(':')[:2] for line in search.skipped]
    assert [(n, w.strip()) for n, w in words] == [
        ('iter_10.pth', 'foreign'),
        ('iter_9.pth', 'truncated'),
        ('iter_8.pth', 'truncated'),
        ('iter_7.pth', 'empty'),
        ('iter_6.pth', 'non-finite'),
        ('iter_5.pth', 'non-finite'),
        ('iter_4.pth', 'non-finite'),
        ('iter_3.pth', 'corrupt'),
        ('iter_2.pth', 'corrupt'),
    ]


def test_before_an_iteration(tmp_path):
    for number in (10, 20, 30):
        save(tmp_path, f'iter_{number}.pth', number)
    search = find_checkpoint(tmp_path, before_iter=30)
    assert search.found.iteration == 20
    assert search.skipped == ('iter_30.pth: iteration 30 is not before 30',)
    assert find_checkpoint(tmp_path, before_iter=10).found is None


FIRST = Lineage('run', ((1, 0),))
AGAIN = Lineage.after(1, FIRST, 10)


def test_past_that_was_given_up_comes_last(tmp_path):
    """Went on from 10 once more, and came to 20 so far."""
    save(tmp_path, 'iter_10.pth', 10, lineage=FIRST)
    old = save(tmp_path, 'iter_30.pth', 30, lineage=FIRST)
    again = save(tmp_path, 'iter_20.pth', 20, lineage=AGAIN)
    search = find_checkpoint(tmp_path)
    assert search.found.path == again.resolve()
    assert search.notes == (
        'iter_30.pth of iteration 30 is not taken: a newer start of this '
        'folder has left it behind; --resume-from takes it',
    )
    again.write_bytes(b'')
    assert find_checkpoint(tmp_path).found.iteration == 10
    (tmp_path / 'iter_10.pth').write_bytes(b'')
    assert find_checkpoint(tmp_path).found.path == old.resolve()


def test_a_newer_run_goes_before_more_iterations(tmp_path):
    save(tmp_path, 'iter_30.pth', 30, side=False)
    save(tmp_path, 'iter_40.pth', 40, lineage=FIRST)
    new = save(tmp_path, 'iter_15.pth', 15, lineage=Lineage.after(1, None, 0))
    search = find_checkpoint(tmp_path)
    assert search.found.path == new.resolve()
    names = [note.partition(' ')[0] for note in search.notes]
    assert names == ['iter_40.pth', 'iter_30.pth']


def test_what_others_saved_last_goes_first(tmp_path):
    """mmengine's own hook has no manifests, but writes the pointer."""
    save(tmp_path, 'iter_40.pth', 40, lineage=FIRST)
    save(tmp_path, 'iter_60.pth', 60, side=False)
    last = save(tmp_path, 'iter_50.pth', 50, side=False)
    (tmp_path / 'last_checkpoint').write_text(str(last))
    search = find_checkpoint(tmp_path)
    assert search.found.path == last.resolve()
    assert [note.partition(' ')[0] for note in search.notes] == ['iter_60.pth']


def test_a_run_that_continues_that_of_others_goes_first(tmp_path):
    stock = save(tmp_path, 'iter_30.pth', 30, side=False)
    (tmp_path / 'last_checkpoint').write_text(str(stock))
    lineage = Lineage.after(0, None, 30)
    new = save(tmp_path, 'iter_40.pth', 40, lineage=lineage)
    assert find_checkpoint(tmp_path).found.path == new.resolve()
    new.write_bytes(b'')
    assert find_checkpoint(tmp_path).found.path == stock.resolve()


def test_other_folders_of_the_run_are_looked_at(tmp_path):
    work, other = tmp_path / 'work', tmp_path / 'other'
    work.mkdir()
    other.mkdir()
    stale = save(work, 'iter_30.pth', 30, side=False)
    last = save(other, 'iter_20.pth', 20, side=False)
    (work / 'last_checkpoint').write_text(str(last))
    assert find_checkpoint(work).found.path == stale.resolve()
    search = find_checkpoint(work, others=[other])
    assert search.found.path == last.resolve()
    assert len(search.notes) == 1


def test_names_of_any_kind_are_found(tmp_path):
    save(tmp_path, 'step-10-of-x.pt', 10, kind='kept')
    path = save(tmp_path, 'weights.20', 20, side=False)
    save(tmp_path, 'weights.15', 15, side=False)
    save(tmp_path, 'weights.backup', 90, side=False)
    assert find_checkpoint(tmp_path).found.iteration == 10
    (tmp_path / 'last_checkpoint').write_text(str(path))
    assert find_checkpoint(tmp_path).found.iteration == 20
    path.write_bytes(b'')
    assert find_checkpoint(tmp_path).found.iteration == 15


def test_a_copied_work_dir_is_searched_by_itself(tmp_path):
    original, copied = tmp_path / 'original', tmp_path / 'copied'
    original.mkdir()
    copied.mkdir()
    newest = save(original, 'iter_60.pth', 60)
    own = save(copied, 'iter_20.pth', 20)
    (copied / 'last_checkpoint').write_text(str(newest))
    assert find_checkpoint(copied).found.path == own.resolve()


def test_pointer_is_followed(tmp_path):
    work, other = tmp_path / 'work', tmp_path / 'other'
    work.mkdir()
    other.mkdir()
    path = save(other, 'mine.pt', 7)
    (work / 'last_checkpoint').write_text(f'{path}\n')
    assert find_checkpoint(work).found.path == path.resolve()
    # Of a work directory that was moved.
    (work / 'last_checkpoint').write_text('/gone/mine.pt')
    assert find_checkpoint(work).found is None
    moved = save(work, 'mine.pt', 7)
    assert find_checkpoint(work).found.path == moved.resolve()


def test_damaged_side_file_is_as_none(tmp_path):
    path = save(tmp_path, 'iter_1.pth', 1)
    for text in ('', '{}', '[]', '{"size": 1', 'null'):
        manifest_path(path).write_text(text)
        assert Manifest.read(path) is None
        assert find_checkpoint(tmp_path).found.path == path.resolve()


def test_nothing_is_nothing(tmp_path):
    search = find_checkpoint(tmp_path / 'absent')
    assert search.found is None
    assert search.skipped == ()
