"""Record what the old base configs of two projects set.

The result is ``shipped_settings.json`` next to this file: the keys and values
of the schedule and runtime files in the wheels of mmsegmentation 0.30.0 and
mmdet 2.28.2. It needs the wheels in a folder::

    pip download --no-deps -d wheels mmsegmentation==0.30.0 mmdet==2.28.2
    python tests/legacy/record_shipped_settings.py wheels
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path

from mmengine.config import Config

BASES = '.mim/configs/_base_/'


def main(folder: str) -> None:
    """Read all files that are about the run, not about model or data."""
    found = {}
    for wheel in sorted(Path(folder).glob('*.whl')):
        archive = zipfile.ZipFile(wheel)
        for name in sorted(archive.namelist()):
            place = name.partition(BASES)[2]
            if place.endswith('runtime.py') or place.startswith('schedules/'):
                title = f'{"-".join(wheel.name.split("-")[:2])}/{place}'
                found[title] = read(archive.read(name))
    path = Path(__file__).with_name('shipped_settings.json')
    rows = [f'{json.dumps(k)}: {json.dumps(v)}' for k, v in found.items()]
    path.write_text('{\n' + ',\n'.join(rows) + '\n}\n')
    print(f'{len(found)} files in {path}')


def read(text: bytes) -> dict:
    """The settings of a config without bases."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'config.py')
        path.write_bytes(text)
        return Config.fromfile(path)._cfg_dict.to_dict()


if __name__ == '__main__':
    main(sys.argv[1])
