"""A report of a million events: how long it takes, and how large it is."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from read_events import HEADER, peak

from mmstable.report.history import read_history
from mmstable.report.page import REPORT_NAME, write_report

# Of a hundred events: bad steps, with the scale that they change, the others
# are samples.
_FAULTS, _SCALES = 30, 30


def write(path: Path, events: int) -> None:
    """A file with the documented records in turn."""
    text = HEADER.read_text(encoding='utf-8').splitlines()
    records = [
        json.loads(line) for line in text if line.startswith('{"event"')
    ]
    known = {record['event']: record for record in records}
    kinds = ['step_fault'] * _FAULTS + ['scale_change'] * _SCALES
    kinds += ['heartbeat'] * (100 - len(kinds))
    with path.open('w') as file:
        file.write(json.dumps(known['run_start']) + '\n')
        for iteration in range(1, events):
            record = known[kinds[iteration % 100]]
            record['iteration'] = iteration
            record['time'] = 1.7e9 + iteration
            file.write(json.dumps(record, separators=(',', ':')) + '\n')


def main() -> None:
    """Write events, draw them, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--events', type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, 'run', 'stability', 'events.jsonl')
        file.parent.mkdir(parents=True)
        write(file, args.events)
        size = file.stat().st_size >> 20
        before = peak()
        start, work = time.perf_counter(), time.process_time()
        write_report([read_history(folder)], Path(folder, REPORT_NAME))
        seconds = time.perf_counter() - start
        busy = time.process_time() - work
        page = Path(folder, REPORT_NAME).stat().st_size / 1e6
        print(f'{args.events} events, {size} MiB')
        print(f'drawn in {seconds:.1f} s ({busy:.1f} s of CPU), limit 20 s')
        print(f'page of {page:.2f} MB, limit 10 MB')
        print(f'{(peak() - before) >> 10} MiB more memory')


if __name__ == '__main__':
    main()
