"""Draw ``docs/images/report.png``: a drill on the quick start, and its report.

Needs playwright and a chromium, see ``requirements/browser.sh``::

    python docs/screenshot.py [--work-dir FOLDER] [--output FILE] [--dark]

The run is trained first, in about five minutes, unless the folder has one.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from mmstable.report.history import read_history
from mmstable.report.page import write_page

ROOT = Path(__file__).resolve().parents[1]
DRILL = f"""
_base_ = ['{ROOT}/configs/quickstart/digit-scenes_fcn_fp16.py']
default_hooks = dict(logger=dict(interval=10))
custom_hooks = [
    dict(hook, interval=10) if hook['type'].endswith('EventLogHook') else hook
    for hook in _base_.custom_hooks
] + [
    dict(type='mmstable.FaultInjectorHook', enabled=True, faults=[
        dict(kind='inf_grad', param='encoder.2.conv.weight', at=[160, 161]),
        dict(kind='nan_loss', at=250),
        dict(kind='inf_grad', param='head.weight', at=[320, 322, 325]),
        dict(kind='spike_loss', factor=500.0, at=400),
        dict(kind='nan_weight', param='decoder.1.conv.weight', at=560),
        dict(kind='oom', at=620),
        dict(kind='signal', signal='SIGTERM', at=700),
    ]),
]
"""


def train(work_dir: Path) -> None:
    """Train until the drill stops the run, and once more to the end."""
    work_dir.mkdir(parents=True, exist_ok=True)
    config = work_dir / 'drill.py'
    config.write_text(DRILL)
    command = [sys.executable, '-m', 'mmstable', 'train', str(config)]
    command += ['--work-dir', str(work_dir), '--resume', 'auto']
    for _ in range(2):
        subprocess.run(command, check=False, cwd=ROOT)


def draw(work_dir: Path, output: Path, dark: bool) -> None:
    """Open the report of a run in a browser, and take a picture."""
    page_file = work_dir / 'screenshot.html'
    page_file.write_text(
        write_page([read_history(work_dir)]), encoding='utf-8'
    )
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which('chromium'), args=['--no-sandbox']
        )
        context = browser.new_context(
            viewport=dict(width=1280, height=1760),
            color_scheme='dark' if dark else 'light',
        )
        page = context.new_page()
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector('footer')
        # Not the folder of whoever took the picture.
        page.evaluate(
            "document.querySelector('.where').textContent = 'work_dirs/drill'"
        )
        page.screenshot(path=str(output))
        browser.close()


def main() -> None:
    """Train if there is no run yet, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--work-dir', type=Path, default='work_dirs/drill')
    parser.add_argument(
        '--output', type=Path, default=ROOT / 'docs/images/report.png'
    )
    parser.add_argument('--dark', action='store_true')
    args = parser.parse_args()
    if not list(args.work_dir.glob('*/stability/events.jsonl')):
        train(args.work_dir)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    draw(args.work_dir, args.output, args.dark)


if __name__ == '__main__':
    main()
