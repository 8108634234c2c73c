"""Are the causes of bad steps named right, and nothing innocent blamed?

Every model of ``tests/forensics`` has one cause planted in it. Each is
trained by a real runner until its step is bad; what FaultForensicsHook says is
compared with the truth. Precision is the share of what was said that is true,
recall the share of what is true that was said.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from results import DEFAULT_FOLDER, Row, format_table, write_json

from mmstable.events.records import FaultExplained
from tests.forensics.planted_cases import (
    CASES,
    INNOCENT,
    PATTERN_CASES,
    TWINS,
    Case,
    run_case,
)

ASPECTS = (
    'operation',
    'line',
    'module',
    'loss term',
    'sample',
    'verdict',
    'remedy',
)


def truth(case: Case) -> dict[str, set[Any]]:
    """What is true of a case, by aspect."""
    return {
        'operation': {case.op} - {''},
        'line': {case.code} - {''},
        'module': {case.module} if case.op or case.module else set(),
        'loss term': set(case.terms),
        'sample': set(case.samples),
        'verdict': {case.verdict},
        'remedy': {case.remedy} - {''},
    }


def said(
    case: Case | None, found: Sequence[FaultExplained]
) -> dict[str, set[Any]]:
    """What was said of a case, by aspect."""
    # A text is right if it has the words that are true.
    remedy = '' if case is None else case.remedy
    texts = {one.text.rpartition('\n')[2] for one in found}
    return {
        'operation': {one.op for one in found} - {''},
        'line': {one.lines[0].split(': ', 1)[1] for one in found if one.op},
        'module': {one.module for one in found if one.op or one.module},
        'loss term': {term for one in found for term in one.loss_terms},
        'sample': {index for one in found for index in one.samples},
        'verdict': {one.verdict.value for one in found},
        'remedy': {remedy if remedy in one else one for one in texts}
        if case is None or remedy
        else set(),
    }


def score(
    pairs: Sequence[tuple[Case | None, list[FaultExplained]]],
) -> list[Row]:
    """Precision and recall of every aspect.

    Args:
        pairs (Sequence): Cases and what was said; None for a run without a
            cause.
    """
    rows = []
    for aspect in ASPECTS:
        right = claimed = true = 0
        for case, found in pairs:
            facts = set() if case is None else truth(case)[aspect]
            claims = said(case, found)[aspect]
            right += len(facts & claims)
            claimed += len(claims)
            true += len(facts)
        note = f'{right} of {claimed} said, of {true} true'
        for what, total in (('precision', claimed), ('recall', true)):
            value = right / total if total else 1.0
            rows.append(Row(aspect, what, value, note=note))
    return rows


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--only', default='', help='part of a name')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'forensics.json'
    )
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    innocent = [*INNOCENT, *TWINS]
    pairs: list[tuple[Case | None, list[FaultExplained]]] = []
    for case in [*CASES, *PATTERN_CASES, *INNOCENT, *TWINS]:
        if args.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = run_case(case, Path(folder))
        is_innocent = case in innocent
        pairs.append((None if is_innocent else case, found))
        facts = {} if is_innocent else truth(case)
        right = all(
            claims == facts.get(aspect, set())
            for aspect, claims in said(
                None if is_innocent else case, found
            ).items()
        )
        seconds = sum(one.seconds for one in found)
        if not right:
            print(*(one.text for one in found), sep='\n')
        print(
            f'{"right" if right else "WRONG"}  {seconds:5.2f} s  {case.name}'
        )
    rows = score(pairs)
    print(format_table(rows))
    write_json(args.json, rows, {})
    if any(row.value < 1 for row in rows):
        raise SystemExit(1)


if __name__ == '__main__':
    main()
