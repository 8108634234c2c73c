"""Write the golden files anew, where a user is meant to see a change.

::

    python -m tests.golden.write
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from tests.golden.runs import Outside
from tests.golden.snapshots import DATA, SNAPSHOTS, take


def main() -> None:
    os.environ.pop('MMSTABLE_LANG', None)
    with tempfile.TemporaryDirectory() as folder:
        seen = Outside(Path(folder))
        texts = {name: take(name, seen) for name in SNAPSHOTS}
        texts['most_modules.json'] = (
            json.dumps(seen.fresh_import['modules']) + '\n'
        )
    for name, text in texts.items():
        path = DATA / name
        is_new = not path.exists() or path.read_text(encoding='utf-8') != text
        path.write_text(text, encoding='utf-8')
        print(f'{path}: {"written" if is_new else "as before"}')


if __name__ == '__main__':
    main()
