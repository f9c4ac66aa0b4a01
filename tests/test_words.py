"""One name for one thing, and nouns for things: rules that a reader of one file cannot see."""

from __future__ import annotations

from pathlib import Path

from tools.words import doubled_names, participles

ALLOWED_PARTICIPLES = {
    "configured": "how a component is made of its keys; plugins.py names it",
    "factorised": "a key of the configuration",
    "finished": "of a run that is opened in Python",
    "measured": "of axes, in docs/axes.md",
    "observed": "an entry of a round's metrics",
    "refused": "an entry of a round's metrics",
    "Ordered": "the name of a scheme",
    "Pruned": "the name of a scheme",
    "Unbiased": "the name of a scheme",
    "processed": "a field of a message to devices",
    "counted": "a field of a message to devices",
    "halved": "a field of a message to devices",
    "drawn": "a field of a message to devices",
    "transposed": "an attribute of torch's convolutions",
}


def test_things_are_not_called_by_bare_participles() -> None:
    found = {name: dict(places) for name, places in participles().items()}
    assert {name: where for name, where in found.items() if name not in ALLOWED_PARTICIPLES} == {}
    assert ALLOWED_PARTICIPLES.keys() <= found.keys()  # what is no longer needed goes


def test_no_public_name_is_defined_in_two_modules() -> None:
    assert doubled_names() == {}


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("def load(kept_units, own):\n    kept = own\n")
    assert doubled_names(tmp_path) == {"load": ["one.py", "two.py"]}
    assert {n: c.total() for n, c in participles(tmp_path).items()} == {"own": 2, "kept": 2}
