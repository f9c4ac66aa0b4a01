"""Plans and axes as text: what was kept is read back, whatever else it says is refused."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc

import numpy as np
import pytest

from submodel.errors import PlanError
from submodel.model.axes import trace
from submodel.model.axes.declare import Axes, axes_fingerprint, from_json, to_json
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Product
from submodel.model.cut import PlannedCut
from tests.model.zoo import Entry, builtin, transformer

BAD_PLANS = {
    "a thousand million units in forty bytes": '{"w": [[0, [[0, 1000000000]]]]}',
    "as many, in many pieces": json.dumps(
        {f"w{i}": [[0, [[i, i + 10_000_000]]]] for i in range(100)}
    ),
    "nested": "[" * 100_000,
    "objects, nested": '{"":' * 100_000,
    "no object": "[]",
    "no text": "",
    "no list": '{"w": 5}',
    "no pair": '{"w": [[0, [[1]]]]}',
    "backwards": '{"w": [[0, [[3, 1]]]]}',
    "negative": '{"w": [[0, [[-1, 1]]]]}',
    "twice": '{"w": [[0, [[0, 2], [1, 3]]]]}',
    "one dimension twice": '{"w": [[0, [[0, 2]]], [0, [[0, 2]]]]}',
    "no whole number": '{"w": [[0, [[0, 1.5]]]]}',
    "no dimension": '{"w": [[-1, [[0, 2]]]]}',
    "too many digits": '{"w": [[0, [[0, 1' + "0" * 5000 + "]]]]}",
    "no character": "\ud800",
}


@pytest.mark.parametrize("text", BAD_PLANS.values(), ids=BAD_PLANS)
def test_a_plan_that_cannot_be_one_is_refused_at_once(text: str) -> None:
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(PlanError, match="not a plan: "):
            PlannedCut.from_json(text)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
        assert time.process_time() - started < 1
    finally:
        tracemalloc.stop()


def test_a_plan_is_read_as_it_was_written() -> None:
    kept = np.array([5, 0, 1, 2, 7])
    plan = {"a": ((0, kept), (2, np.array([1]))), "b": ((1, kept.copy()),), "c": ((0, kept[:0]),)}
    text = PlannedCut(plan).to_json()
    read = PlannedCut.from_json(text)
    assert read.to_json() == text
    assert read.plan["a"][0][1] is read.plan["b"][0][1]  # equal positions are held once
    large = '{"w": [[0, [[0, 1000]]], [1, [[0, 1000]]]]}'
    assert PlannedCut.from_json(large, most=1000).value_count("w", (2000, 2000)) == 1000**2
    with pytest.raises(PlanError, match="1,000 positions; at most 999"):
        PlannedCut.from_json(large, most=999)


@pytest.mark.parametrize("entry", [*builtin.ENTRIES, *transformer.ENTRIES], ids=str)
def test_axes_are_read_as_they_were_written(entry: Entry) -> None:
    module, inputs = entry.make()
    axes = trace(module, inputs, outputs=entry.outputs, verify=False)
    assert from_json(to_json(axes)) == axes


RIGHT = Axes(
    {"h": 4},
    {"w": (Along("h", 4), Concatenation((FixedPart(2), Product((Along("h", 4), FixedPart(3))))))},
)
TEXT = to_json(RIGHT)
BAD_AXES = {
    "nested lists": "[" * 100_000,
    "nested layouts": '{"": "Product", "parts": [' * 100_000,
    "nested and closed": TEXT.replace(
        '{"": "Fixed", "size": 2}',
        '{"": "Product", "parts": [' * 400 + '{"": "Fixed", "size": 2}' + "]}" * 400,
    ),
    "no text": "",
    "cut short": TEXT[:-1],
    "no axes": '{"": "Fixed", "size": 2}',
    "no kind": TEXT.replace("Concatenation", "Module"),
    "no field": TEXT.replace('"parts"', '"part"'),
    "no number": TEXT.replace('"size": 2', '"size": "2"'),
    "not whole": TEXT.replace('"size": 2', '"size": 2.5'),
    "negative": TEXT.replace('"size": 2', '"size": -2'),
    "huge": TEXT.replace('"size": 2', '"size": 1' + "0" * 400),
    "other size": TEXT.replace('{"h": 4}', '{"h": 5}'),
    "other axis": TEXT.replace('{"h": 4}', '{"g": 4}'),
    "no layout": TEXT.replace('{"": "Fixed", "size": 2}', "7"),
    "an axis for a layout": TEXT.replace('{"": "Fixed", "size": 2}', TEXT),
    "no kind of the axes": TEXT.replace('{"": "Axes", ', "{"),
    "a field too many": TEXT.replace('"size": 2', '"size": 2, "unit": 1'),
    "an operation that nobody knows": TEXT.replace(
        '"stored": null',
        '"stored": {"": "Stored", "made": [{"": "Made", "where": "", "dimension": '
        '{"": "Fixed", "size": 2}, "number": {"": "Computed", "operation": "pow", "left": 2, '
        '"right": 1}}]}',
    ),
    "a number for a truth": TEXT.replace(
        '"stored": null',
        '"stored": {"": "Stored", "compared": [{"": "Compared", "one": 1, "other": 1, '
        '"equal": 1}]}',
    ),
    "no set": TEXT.replace('{"": "Fixed", "size": 2}', '{"": "set", "items": [[1], {}]}'),
}


@pytest.mark.parametrize("text", BAD_AXES.values(), ids=BAD_AXES)
def test_axes_that_cannot_be_any_are_refused(text: str) -> None:
    assert from_json(TEXT) == RIGHT
    assert text != TEXT
    with pytest.raises(PlanError, match="not the axes of a model: "):
        from_json(text)


def test_axes_with_many_mistakes_are_refused_in_little_time_and_memory() -> None:
    text = TEXT.replace('"unused": []', f'"unused": [{", ".join(["7"] * 20_000)}]')
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(PlanError, match="not the axes of a model: ") as refusal:
            from_json(text)
        assert len(str(refusal.value)) < 300
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
        assert time.process_time() - started < 5
    finally:
        tracemalloc.stop()


def test_what_is_wrong_with_axes_is_named_with_its_place() -> None:
    with pytest.raises(PlanError, match=r"layouts\.w\.1\..*parts\.0.*size: input should be"):
        from_json(TEXT.replace('"size": 2', '"size": -2'))
    with pytest.raises(PlanError, match=r"no axis 'h' of 4"):
        from_json(TEXT.replace('{"h": 4}', '{"h": 5}'))


def test_the_words_of_fingerprints_stay() -> None:
    """Checkpoints and devices compare them: other words would make other models of the same."""
    assert (
        axes_fingerprint(RIGHT)
        == hashlib.sha256(
            b"([('h', 4)], [('w', (Along(axis='h', size=4), Concatenation(parts=(Fixed(size=2), "
            b"Product(parts=(Along(axis='h', size=4), Fixed(size=3)))))))])"
        ).hexdigest()[:16]
    )
    assert (
        axes_fingerprint(Axes({}, {"b": (FixedPart(3),)}))
        == hashlib.sha256(b"([], [('b', (Fixed(size=3),))])").hexdigest()[:16]
    )
