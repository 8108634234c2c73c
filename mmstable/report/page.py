"""One HTML file with everything in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mmstable.messages import LANGUAGES, _, language, speaking
from mmstable.report.charts import draw_charts, heat_map, skip_marks
from mmstable.report.diagnosis import diagnose
from mmstable.report.diagnosis.config_lines import config_lines
from mmstable.report.figures import figures_of, headline, notes_of, worst
from mmstable.report.history import History
from mmstable.report.plain import shorten
from mmstable.report.story import tell_story
from mmstable.report.texts import PAGE
from mmstable.version import __version__

_ASSETS = Path(__file__).parent / 'assets'


def page_data(histories: Sequence[History]) -> dict[str, Any]:
    """All that a page shows, in plain types."""
    data = {
        'version': __version__,
        'generated': time.time(),
        'language': language(),
        'languages': list(LANGUAGES),
        'texts': {lang: _labels(lang) for lang in LANGUAGES},
        'works': [_work(history) for history in histories],
    }
    return _strict(data)


def write_page(histories: Sequence[History]) -> str:
    """The page as text."""
    style = _asset('uPlot.min.css') + _asset('report.css')
    script = _script()
    parts = {
        'POLICY': _policy(style, script),
        'LICENCE': _asset('LICENSE.uPlot.txt').replace('--', ''),
        'STYLE': style,
        'SCRIPT': script,
        'DATA': as_script(page_data(histories)),
    }
    # In one pass, so that no part can name another one.
    pieces = _asset('report.html').split('%%')
    return ''.join(
        parts[piece] if index % 2 else piece
        for index, piece in enumerate(pieces)
    )


def as_script(data: Any) -> str:
    """JSON that can neither end the element it is in nor begin another."""
    text = json.dumps(data, ensure_ascii=True, separators=(',', ':'))
    for character in '<>&':
        text = text.replace(character, f'\\u{ord(character):04x}')
    return text


def _policy(style: str, script: str) -> str:
    """Only what is in the file may run, and nothing may leave it."""
    rules = [
        "default-src 'none'",
        f"style-src '{_digest(style)}'",
        f"script-src '{_digest(script)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return '; '.join(rules)


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return 'sha256-' + base64.b64encode(digest).decode()


@cache
def _script() -> str:
    """Ours in the order of their names, and nothing of it global."""
    ours = sorted((_ASSETS / 'js').glob('*.js'))
    text = '\n'.join(path.read_text(encoding='utf-8') for path in ours)
    return f'{_asset("uPlot.iife.min.js")}\n(() => {{\n{text}\n}})();'


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding='utf-8')


def _labels(lang: str) -> dict[str, str]:
    with speaking(lang):
        return {name: _(text) for name, text in PAGE.items()}


def _work(history: History) -> dict[str, Any]:
    return {
        'name': history.path.resolve().name or str(history.path),
        'path': str(history.path),
        'figures': figures_of(history)._asdict(),
        'words': {lang: _words(history, lang) for lang in LANGUAGES},
        'charts': draw_charts(history),
        'skips': skip_marks(history),
        'heat': heat_map(history),
        'story': tell_story(history),
        'starts': [
            [one.header.time, one.last_time, one.header.iteration]
            for one in [*history.earlier, *history.starts]
        ],
        'setup': _setup(history),
    }


def _words(history: History, lang: str) -> dict[str, Any]:
    """What is said, in one language."""
    with speaking(lang):
        findings = diagnose(history)
        return {
            'headline': headline(history, findings),
            'worst': worst(findings),
            'notes': notes_of(history),
            'findings': [
                {**one.as_dict(), 'config': config_lines(one.change)}
                for one in findings
            ],
        }


def _setup(history: History) -> dict[str, Any]:
    header = history.starts[-1].header
    wrappers = {
        name: f'{one.type.rpartition(".")[2]} · '
        f'{one.optimizer.rpartition(".")[2]} · {one.dtype or "float32"}'
        for name, one in header.wrappers.items()
    }
    clips = [one.clip for one in header.wrappers.values() if one.clip]
    return shorten(
        {
            'host': header.host,
            'device': header.device_name or header.device,
            'ranks': header.world_size,
            'versions': ', '.join(
                f'{name} {version}'
                for name, version in header.versions.items()
            ),
            'seed': header.seed,
            'wrapper': '; '.join(wrappers.values()),
            'clip': '; '.join(clips),
            'config_sha': header.config_sha256[:12],
        }
    )


def _strict(value: Any) -> Any:
    """Without the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _strict(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
