"""The claims that a folder of records bears on: the paper's, and questions to converged runs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from submodel.experiments import VariantRecord, how_to_read
from submodel.report import PageTable
from submodel_lab.converged.agenda import read_available
from submodel_lab.converged.questions import QUESTIONS
from submodel_lab.converged.report import ANSWER_HEADINGS, answer_rows
from submodel_lab.converged.settings import SETTINGS
from submodel_lab.paper.plans import EXPERIMENTS
from submodel_lab.paper.report import PAPER_CLAIM_HEADINGS, claim_rows
from submodel_lab.paper.variants import DATASETS, Scale, Split, Variant

_DATASETS = tuple(dict.fromkeys(name for names in DATASETS.values() for name in names))


def variant_titles(records: Mapping[str, VariantRecord]) -> dict[str, str]:
    """What the recorded variants of the paper and ways of questions are called, by their slugs.

    Args:
        records: by slug.
    """
    variants = {v.slug: v for name in EXPERIMENTS for v in _variants(name) if v.slug in records}
    has_several = len({variant.dataset for variant in variants.values()}) > 1
    titles = {
        slug: f"{f'{v.dataset}, ' if has_several else ''}{v.heterogeneity}: {v.title}"
        for slug, v in variants.items()
    }
    return titles | _candidate_titles()


def _candidate_titles() -> dict[str, str]:
    """Of the ways of all questions, and of their runs at one capacity."""
    titles = {}
    for candidate in (c for question in QUESTIONS.values() for c in question.candidates):
        title = f"{SETTINGS[candidate.setting].title}: {candidate.title}"
        titles[candidate.slug] = title
        for capacity, slug in candidate.members.items():
            titles[slug] = f"{title}, {Fraction(capacity)}"
    return titles


def claim_tables(folder: Path, records: Mapping[str, VariantRecord]) -> list[PageTable]:
    """The claims that can be judged by some records, an experiment or question each.

    Args:
        folder: of the records.
        records: by slug.
    """
    tables = []
    for name, experiment in EXPERIMENTS.items():
        by_variant = {v: records[v.slug] for v in _variants(name) if v.slug in records}
        if rows := claim_rows(experiment, by_variant):
            seeds = min(len(record.runs) for record in by_variant.values())
            title, note = f"{name}: {experiment.title}", how_to_read(seeds, len(rows))
            tables.append(PageTable(title, PAPER_CLAIM_HEADINGS, rows, note, verdicts="verdict"))
    return tables + _answers(folder)


def _variants(experiment: str) -> list[Variant]:
    return [
        variant
        for split in Split
        for variant in EXPERIMENTS[experiment].variants(Scale.SMALL, _DATASETS, split)
    ]


def _answers(folder: Path) -> list[PageTable]:
    questions = list(QUESTIONS.values())
    results, _ = read_available(questions, folder)
    tables = []
    for question in questions if results else ():
        if rows := answer_rows(question, results):
            seeds = min(len(record.runs) for record in results.values())
            note = how_to_read(seeds, len(rows))
            tables.append(PageTable(question.title, ANSWER_HEADINGS, rows, note, "verdict"))
    return tables
