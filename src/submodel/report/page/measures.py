"""Which numbers of a run can be drawn, what they are called, and what is better."""

from __future__ import annotations

from collections.abc import Iterable

from submodel.report.page.types import MeasureInfo, PageRun

COSTS = ("round", "bytes", "flops", "seconds")
"""What curves are drawn against."""
CAPACITY_PARTS = ("capacity_accuracy.", "capacity_loss.")
"""How the scores of capacities begin, which have a chart of their own."""
_PARTS = {
    "test_": "test ",
    "held_out_": "held-out ",
    "train_eval_": "train ",
    "client_": "clients' ",
    "observed.": "",
}
_LABELS = {
    "train_loss": "training loss of clients",
    "coverage.units": "units covered",
    "coverage.weights": "weights covered",
    "clients": "clients in the round",
    "refused": "refused updates",
    "missing": "missing devices",
}
_LESS = ("loss", "perplexity", "bits_per_byte", "error")
_MORE = ("accuracy", "f1", "auc", "r2", "top5", "precision", "recall", "correlation")
_FIRST = ("test_accuracy", "test_loss", "test_", "held_out_", "train_eval_", "train_loss",
          "client_", "observed.", "coverage.", "clients", "refused", "missing")  # fmt: skip
_MOST = 60  # that a page offers


def measures_of(runs: Iterable[PageRun]) -> list[MeasureInfo]:
    """What there is to draw of some runs, the most telling first.

    Args:
        runs: all of a page.
    """
    table_of: dict[str, str] = {}
    for run in runs:
        for table, columns in (("scores", run.scores), ("every", run.every)):
            for key in columns:
                if key not in (*COSTS, "rows") and not key.startswith(CAPACITY_PARTS):
                    table_of.setdefault(key, table)
    ranked_keys = sorted(table_of, key=_rank)
    return [MeasureInfo(key, label_of(key), form_of(key), better_of(key), table_of[key])
            for key in ranked_keys[:_MOST]]  # fmt: skip


def _rank(key: str) -> int:
    return next((place for place, part in enumerate(_FIRST) if key.startswith(part)), len(_FIRST))


def label_of(key: str) -> str:
    """What people call a measure.

    Args:
        key: as in a run's lines.

    >>> label_of("test_bits_per_byte"), label_of("client_accuracy.worst_quarter")
    ('test bits per byte', "clients' accuracy, worst quarter")
    """
    if key in _LABELS:
        return _LABELS[key]
    for part, word in _PARTS.items():
        if key.startswith(part):
            key = word + key.removeprefix(part)
            break
    return key.replace(".", ", ").replace("_", " ")


def form_of(key: str) -> str:
    """How its values are written.

    Args:
        key: as in a run's lines.
    """
    if key in ("clients", "refused", "missing"):
        return "count"
    return "percent" if "accuracy" in key or key.startswith("coverage.") else "number"


def better_of(key: str) -> str:
    """Whether more or less is better; empty where nothing is said of it.

    Args:
        key: as in a run's lines.

    >>> better_of("test_loss"), better_of("test_accuracy"), better_of("observed.norm")
    ('less', 'more', '')
    """
    if key.startswith(("observed.", "coverage.")):
        return ""
    name = key.partition(".")[0]
    if name.endswith(_LESS):
        return "less"
    return "more" if name.endswith(_MORE) else ""
