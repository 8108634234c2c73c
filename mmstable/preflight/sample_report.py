"""Examine samples where they are made: in the workers of a data loader."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from mmstable.messages import _
from mmstable.preflight.dataset_view import facts_of, read_sample
from mmstable.preflight.sample_checks import (
    Expected,
    Problem,
    Subject,
    check_sample,
)
from mmstable.preflight.sample_parts import Part, identity_of, parts_of

# Files that a sample is made of, but not its content.
_LABEL_WORDS = ('seg', 'ann', 'label', 'mask', 'gt')
_LONGEST_DETAIL = 300


@dataclass(frozen=True)
class SampleReport:
    """What is known of a sample; small, whatever its size was.

    Args:
        index (int): Its index in the data set.
        name (str): What it is called, or ''.
        problems (tuple[Problem]): What is wrong with it.
        layout (Mapping): Paths of its arrays to their types and shapes, as
            far as all samples should have the same.
        sizes (Mapping): Paths of its pictures to their heights and widths.
        milliseconds (float): How long it took.
        size (int): Bytes of its arrays.
        content (str): A digest of what it is made of; '' if there is none.
        source (str): The files it is made of, and all else that is known.
    """

    index: int
    name: str
    problems: tuple[Problem, ...]
    layout: Mapping[str, str]
    sizes: Mapping[str, tuple[int, int]]
    milliseconds: float
    size: int
    content: str
    source: str


class ExaminedDataset(Dataset):
    """Gives reports instead of samples.

    Args:
        dataset (Any): The data set.
        indices (Sequence[int]): The samples to look at.
        expected (Expected): What is known about it.
        seed (int): Of the pipelines, for each sample anew. Defaults to 0.
    """

    def __init__(
        self,
        dataset: Any,
        indices: Sequence[int],
        expected: Expected,
        seed: int = 0,
    ) -> None:
        self._dataset = dataset
        self._indices = indices
        self._expected = expected
        self._seed = seed

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, number: int) -> SampleReport:
        index = self._indices[number]
        # The same whatever worker it is, and in whatever order.
        _seed_all(self._seed + index)
        facts = self._facts(index)
        start = time.perf_counter()
        try:
            sample = read_sample(self._dataset, index)
            problems = [] if sample is not None else [_given_up()]
        except Exception as error:
            sample, problems = None, [_raised(error)]
        spent = 1e3 * (time.perf_counter() - start)
        parts = parts_of(sample)
        subject = Subject(parts, self._expected)
        problems += check_sample(subject)
        return SampleReport(
            index=index,
            name=identity_of(facts) or identity_of(_inside(sample)),
            problems=tuple(problems),
            layout={part.path: _layout(part) for part in parts},
            sizes={part.path: size for part, __, size in subject.images()},
            milliseconds=spent,
            size=sum(part.array.nbytes for part in parts),
            content=_content(facts, parts),
            source=_digest_facts(facts),
        )

    def _facts(self, index: int) -> dict[str, Any]:
        try:
            return facts_of(self._dataset, index)
        except Exception:
            # Reading the sample fails as well, and tells why.
            return {}


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _given_up() -> Problem:
    return Problem('no_sample', '', _('the pipeline gives None'))


def _raised(error: Exception) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    where = f'{frames[-1].filename}:{frames[-1].lineno}' if frames else ''
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    return Problem('raises', where, text[:_LONGEST_DETAIL])


def _inside(sample: Any) -> Any:
    """Where a packed sample tells what it is called."""
    if isinstance(sample, Mapping):
        return {**sample}
    if isinstance(sample, (list, tuple)):
        return dict(enumerate(sample))
    return sample


def _layout(part: Part) -> str:
    """The type and the number of dimensions."""
    return f'{part.array.dtype} {part.array.ndim}-d'


def _content(facts: Mapping[str, Any], parts: list[Part]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    files = _files(facts)
    if files:
        for path in files:
            with open(path, 'rb') as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()
    inputs = [p for p in parts if p.words[0] in ('inputs', 'img', '0')]
    # A single number tells nothing about the content.
    if not inputs or all(part.array.size < 2 for part in inputs):
        return ''
    for part in inputs:
        digest.update(f'{part.array.dtype}{part.array.shape}'.encode())
        digest.update(np.ascontiguousarray(part.array).tobytes())
    return digest.hexdigest()


def _files(facts: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found += _files(value)
        elif (
            name.endswith('_path')
            and isinstance(value, str)
            and not any(word in name for word in _LABEL_WORDS)
            and os.path.isfile(value)
        ):
            found.append(value)
    return found


def _digest_facts(facts: Mapping[str, Any]) -> str:
    known = {k: v for k, v in facts.items() if k != 'sample_idx'}
    paths = ' '.join(_files(facts))
    try:
        rest = hashlib.blake2b(pickle.dumps(known), digest_size=16).hexdigest()
    except Exception:
        rest = ''
    return f'{paths}\n{rest}'
