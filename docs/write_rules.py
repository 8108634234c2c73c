"""Write the rules of ``mmstable check`` into its pages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmstable.cli.check import rule_table  # noqa: E402
from mmstable.messages import LANGUAGES, use_language  # noqa: E402

START, END = '<!-- rules -->\n', '<!-- end of rules -->\n'


def main() -> None:
    """Replace what is between the marks, in every language."""
    for lang in LANGUAGES:
        page = Path(__file__).parent / lang / 'check.md'
        before, _, rest = page.read_text(encoding='utf-8').partition(START)
        after = rest.partition(END)[2]
        use_language(lang)
        text = f'{before}{START}{rule_table()}{END}{after}'
        page.write_text(text, encoding='utf-8')


if __name__ == '__main__':
    main()
