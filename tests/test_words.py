"""One name for one thing, and nouns for things: rules that a reader of one file cannot see."""

from __future__ import annotations

from pathlib import Path

from tools.words import doubled_names, participles

ALLOWED_PARTICIPLES = {
    "configured": "how a component is made of its keys; plugins.py names it",
    "factorised": "a key of the configuration",
    "finished": "of a run that is opened in Python",
    "hidden": "a setting of a study",
    "measured": "of axes, in docs/axes.md",
    "planned": "a cut as plain data, in docs/axes.md",
    "observed": "an entry of a round's metrics",
    "refused": "an entry of a round's metrics",
    "Ordered": "the name of a scheme",
    "Pruned": "the name of a scheme",
    "Unbiased": "the name of a scheme",
    "unbiased": "the scheme, in the theory of its masks",
    "UNDECIDED": "a verdict",
    "CONVERGED": "the name of a scale",
    "answered": "an entry of the file of known devices",
    "missed": "an entry of the file of known devices",
    "own": "an entry of the file that says where a run is served",
    "processed": "a field of a message to devices",
    "counted": "a field of a message to devices",
    "halved": "a field of a message to devices",
    "drawn": "a field of a message to devices",
    "transposed": "an argument of torch's convolution",
}
ALLOWED_TWICE = {"app": "what Flower calls an app, the server's and the clients'"}


def test_things_are_not_called_by_bare_participles() -> None:
    found = {name: dict(places) for name, places in participles().items()}
    assert {name: where for name, where in found.items() if name not in ALLOWED_PARTICIPLES} == {}
    assert ALLOWED_PARTICIPLES.keys() <= found.keys()  # what is no longer needed goes


def test_no_public_name_is_defined_in_two_modules() -> None:
    assert doubled_names().keys() == ALLOWED_TWICE.keys()


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("def load(kept_units, own):\n    kept = own\n")
    assert doubled_names(tmp_path) == {"load": ["one.py", "two.py"]}
    assert {n: c.total() for n, c in participles(tmp_path).items()} == {"own": 2, "kept": 2}
