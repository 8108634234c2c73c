"""The outside of mmstable is what `data` says, until somebody means it.

`python -m tests.golden.write` writes those files anew.
"""

from __future__ import annotations

import difflib
import json
import re

import pytest

from tests.golden import fresh_import, outside
from tests.golden.runs import ROOT, Outside
from tests.golden.snapshots import ADVICE, DATA, SNAPSHOTS, take


@pytest.fixture(scope='module')
def seen(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    return Outside(tmp_path_factory.mktemp('golden'))


@pytest.mark.parametrize('name', SNAPSHOTS)
def test_the_outside_is_as_before(name: str, seen: Outside) -> None:
    golden = (DATA / name).read_text(encoding='utf-8')
    found = take(name, seen)
    if found != golden:
        changes = difflib.unified_diff(
            golden.splitlines(),
            found.splitlines(),
            f'tests/golden/data/{name}',
            'now',
            lineterm='',
        )
        pytest.fail('\n'.join(['', *changes, '', ADVICE]), pytrace=False)


def test_no_file_is_left_of_an_old_snapshot() -> None:
    names = {path.name for path in DATA.iterdir()}
    assert names == {*SNAPSHOTS, 'most_modules.json'}


def test_an_import_loads_no_more_modules(seen: Outside) -> None:
    most = json.loads((DATA / 'most_modules.json').read_text())
    found = seen.fresh_import['modules']
    assert found <= most, (
        f'`import mmstable` loads {found} of its modules, {most} before. '
        + ADVICE
    )


def test_an_import_loads_nothing_optional(seen: Outside) -> None:
    assert seen.fresh_import['optional'] == []
    assert seen.fresh_import['optional_loaded'] == []
    # A misspelt name could not be found.
    assert {'mmcv', 'mmseg', 'probing'} <= set(fresh_import.OPTIONAL)


@pytest.mark.parametrize('language', ['en', 'zh_cn'])
def test_exit_codes_are_in_the_docs(language: str) -> None:
    page = ROOT / 'docs' / language / 'resume.md'
    text = page.read_text(encoding='utf-8')
    cells = re.findall(r'^\| (\d+(?:[, 、]+\d+)*) \|', text, re.M)
    listed = {int(one) for cell in cells for one in re.findall(r'\d+', cell)}
    # Above are those of signals, one row for all of them.
    codes = {code for code in outside.exit_codes().values() if code < 128}
    assert codes <= listed
