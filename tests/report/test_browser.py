"""The page in a real browser: drawn, clicked, switched, not injected into."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmstable.report.history import read_history
from mmstable.report.page import write_page
from tests.report.browser import started
from tests.report.event_files import (
    end,
    explained,
    fault,
    header,
    heartbeat,
    hostile_records,
    scale,
    write_run,
    write_scalars,
)

# The share of pixels of a canvas that something was painted on.
PAINTED = """
canvas => {
  const {width, height} = canvas;
  const context = canvas.getContext('2d');
  const pixels = context.getImageData(0, 0, width, height).data;
  let painted = 0;
  for (let i = 3; i < pixels.length; i += 4) painted += pixels[i] > 0;
  return painted / (width * height);
}
"""


@pytest.fixture(scope='module')
def browser():
    with started() as one:
        yield one


def write_story(work_dir: Path) -> None:
    """Two starts with a bit of everything."""
    lines = [
        dict(lr=0.1, loss=1 / i, grad_norm=2.0, time=0.5, data_time=0.3)
        | dict(iter=i, step=i)
        for i in range(10, 500, 10)
    ]
    memory = {'train/stable/memory/workers_mib': 64.0, 'step': 12}
    write_scalars(work_dir, *lines, memory, name='20260101_120000')
    beats = [heartbeat(i, 1 / i) for i in range(10, 500, 10)]
    back = dict(event='intervention', iteration=320, time=1320.0)
    back |= dict(action='rollback', restored=300, reason='NaN', lr_factor=0.5)
    write_run(
        work_dir,
        *(scale(i, 2048.0 / 2**i, 1024.0 / 2**i) for i in range(1, 5)),
        *beats,
        fault(100),
        scale(100, 64.0, 32.0),
        *(
            scale(i + down, *((64.0, 32.0) if down else (32.0, 64.0)))
            for i in (200, 220, 240)
            for down in (0, 1)
        ),
        fault(310, 'nan_loss'),
        explained(310, 'domain_error'),
        back,
    )
    later = header(iteration=450, time=4000.0, restarts=1)
    write_run(work_dir, end(1000), name='20260101_130000', start=later)


@pytest.fixture(scope='module')
def story(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp('story')
    write_story(folder)
    page = folder / 'report.html'
    page.write_text(write_page([read_history(folder)]), encoding='utf-8')
    return page.as_uri()


@pytest.fixture
def show(browser):
    """Opens a page, and at the end looks whether it has complained."""
    complaints, contexts = [], []

    def opened(address, width=1200, scheme='light'):
        context = browser.new_context(
            viewport=dict(width=width, height=900),
            color_scheme=scheme,
            offline=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.on('console', lambda one: complaints.append(one.text))
        page.on('pageerror', lambda error: complaints.append(str(error)))
        page.on('request', lambda one: _no_foreign(one.url, complaints))
        page.goto(address)
        page.wait_for_selector('footer')
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def _no_foreign(url, complaints):
    if not url.startswith(('file:', 'data:')):
        complaints.append(f'asked for {url}')


def test_every_chart_is_drawn(show, story):
    page = show(story)
    charts = page.query_selector_all('.chart')
    names = {one.get_attribute('data-chart') for one in charts}
    assert names >= {'loss', 'scale', 'norm', 'modules', 'memory', 'time'}
    assert 'lr' in names
    for chart in charts:
        canvas = chart.query_selector('canvas')
        assert canvas is not None, chart.get_attribute('data-chart')
        assert canvas.evaluate(PAINTED) > 0.005


def test_a_click_on_a_fault_tells_its_story(show, story):
    page = show(story)
    page.click('.mark[data-kind=step_fault] >> nth=1')
    text = page.inner_text('.drawer')
    for word in (
        'losses/dice.py:61: overlap / total',
        'backbone.conv1.weight',
        'img_path=data/0113.png',
        'undefined operation',
        'mmstable replay work_dirs/x/stability/faults/iter_310',
    ):
        assert word in text
    page.keyboard.press('Escape')
    assert page.query_selector('.drawer') is None


def test_rows_and_filters_work(show, story):
    page = show(story)
    page.click('.chip[data-filter=intervention]')
    rows = page.query_selector_all('tr.row')
    assert [one.get_attribute('data-kind') for one in rows] == ['intervention']
    rows[0].click()
    assert 'rolled back' in page.inner_text('.drawer')
    page.click('[data-close]')
    assert page.query_selector('.drawer') is None


def test_diagnosis_has_evidence_and_config(show, story):
    page = show(story)
    text = page.inner_text('[data-finding=slow_phase]')
    assert '60% of the time is waiting for data' in text
    assert 'Of 0.500 s for an iteration' in text
    text = page.inner_text('[data-finding=scale_sawtooth]')
    assert 'init_scale=32.0' in text


def test_chinese_and_back(show, story):
    page = show(story)
    page.click('[data-switch=lang]')
    assert '训练' in page.inner_text('.card') or '诊断' in page.inner_text(
        'h2'
    )
    assert page.get_attribute('html', 'lang') == 'zh-CN'
    assert '的时间在等待数据' in page.inner_text('[data-finding=slow_phase]')
    page.click('[data-switch=lang]')
    assert 'Diagnosis' in page.inner_text('h2')


def test_light_and_dark(show, story):
    read = 'getComputedStyle(document.body).backgroundColor'
    page = show(story)
    light = page.evaluate(read)
    page.click('[data-switch=theme]')
    dark = page.evaluate(read)
    assert light != dark
    assert show(story, scheme='dark').evaluate(read) == dark


def test_it_fits_on_a_phone(show, story):
    page = show(story, width=375)
    assert page.evaluate('document.documentElement.scrollWidth') <= 375
    page.click('.mark[data-kind=step_fault] >> nth=0')
    box = page.query_selector('.drawer').bounding_box()
    assert box['x'] >= 0 and box['width'] <= 375


def test_nothing_is_injected(show, tmp_path):
    write_run(tmp_path, *hostile_records())
    path = tmp_path / 'report.html'
    path.write_text(write_page([read_history(tmp_path)]), encoding='utf-8')
    page = show(path.as_uri())
    for row in range(len(page.query_selector_all('tr.row'))):
        page.click(f'tr.row >> nth={row}')
        page.click('[data-close]')
    page.click('[data-switch=lang]')
    assert page.evaluate('window.hacked') is None
    assert page.query_selector('img') is None
    assert len(page.query_selector_all('script')) == 2


def test_a_run_that_has_just_begun(show, tmp_path):
    write_run(tmp_path)
    path = tmp_path / 'report.html'
    path.write_text(write_page([read_history(tmp_path)]), encoding='utf-8')
    page = show(path.as_uri())
    assert 'Too little has happened' in page.inner_text('h1') or (
        'needs your attention' in page.inner_text('h1')
    )


def test_two_runs_are_compared(show, tmp_path):
    for name in 'ab':
        write_story(tmp_path / name)
    histories = [read_history(tmp_path / name) for name in 'ab']
    path = tmp_path / 'report.html'
    path.write_text(write_page(histories), encoding='utf-8')
    page = show(path.as_uri())
    assert len(page.query_selector_all('#comparison thead th')) == 3
    assert 'Skipped steps' in page.inner_text('#comparison')
    loss = page.inner_text('[data-chart=loss]')
    assert 'a · loss' in loss and 'b · loss' in loss
