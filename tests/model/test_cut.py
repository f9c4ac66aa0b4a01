"""Cuts against plain index arithmetic; plans and axes as text."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from submodel.core.errors import PlanError
from submodel.model.axes import declare
from submodel.model.axes.declare import Axes, axes_fingerprint, from_json, to_json
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Product
from submodel.model.cut import WHOLE as EVERYTHING
from submodel.model.cut import CutSource, PlannedCut, UnitCut, copy_part, count_values, gather
from submodel.schemes import Draw, Random, Rolling, Static
from submodel.schemes.draw import draw_coordinates, draw_units

WHOLE = {
    "conv": torch.arange(6 * 4 * 3 * 3).view(6, 4, 3, 3).float(),
    "flat": torch.arange(5 * 24).view(5, 24).float(),
    "outer": torch.arange(4 * 3 * 6).view(4, 3, 6).float(),
}
AXES = declare(
    WHOLE, {"conv": ("a", "b"), "flat": ("classes", ("a", 2, 2)), "outer": ("b", None, "a")}
)
subset = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True).map(sorted)


@given(a=subset, b=subset)
def test_unit_cuts_take_and_return_what_numpy_says(a: list[int], b: list[int]) -> None:
    b = sorted({unit % 4 for unit in b})
    cut = UnitCut(AXES, {"a": np.array(a), "b": np.array(b)})
    flat = [unit * 4 + offset for unit in a for offset in range(4)]
    where = {
        "conv": np.ix_(a, b, range(3), range(3)),
        "flat": np.ix_(range(5), flat),
        "outer": np.ix_(b, range(3), a),
    }
    for name, tensor in WHOLE.items():
        taken = copy_part(cut, name, tensor)
        assert np.array_equal(taken.numpy(), tensor.numpy()[where[name]])
        assert taken.is_contiguous()
        assert taken.data_ptr() != tensor.data_ptr()
        assert cut.value_count(name, tensor.shape) == taken.numel()
        target = torch.zeros_like(tensor)
        cut.add(name, target, taken + 1)
        expected = np.zeros(tensor.shape, np.float32)
        expected[where[name]] = taken.numpy() + 1
        assert np.array_equal(target.numpy(), expected)


@given(rows=st.permutations(range(6)), kept=st.integers(1, 6), columns=st.permutations(range(4)))
def test_positions_in_any_order_are_taken_and_returned(
    rows: list[int], kept: int, columns: list[int]
) -> None:
    """[0, 2, 1, 3] starts and ends like a run, but is none."""
    a, tensor = rows[:kept], WHOLE["conv"]
    plan = PlannedCut({"conv": ((0, np.array(a)), (1, np.array(columns)))})
    for cut in (plan, PlannedCut.from_json(plan.to_json())):
        where = np.ix_(a, columns, range(3), range(3))
        taken = copy_part(cut, "conv", tensor)
        assert np.array_equal(taken.numpy(), tensor.numpy()[where])
        target = torch.zeros_like(tensor)
        cut.add("conv", target, taken)
        assert torch.equal(target[sorted(a)], tensor[sorted(a)])
        assert cut.same_key == plan.same_key


def test_an_empty_bernoulli_draw_keeps_one_unit() -> None:
    axes = declare({"w": torch.zeros(4, 2)}, {"w": ("a",)})
    p, draws = 0.05, 4000
    counts = np.zeros(4)
    for r in range(draws):
        cut = draw_units(Random(), axes, p, Draw(0, r, 0))
        assert len(cut.units["a"]) >= 1
        counts[cut.units["a"]] += 1
    expected = p + (1 - p) ** 4 / 4
    assert np.abs(counts / draws - expected).max() < 5 * np.sqrt(expected / draws)


def test_coordinate_masks_are_the_flat_vector_in_parameter_order() -> None:
    parameters = {"first": torch.ones(2, 3), "second": torch.ones(4)}
    cut = draw_coordinates(Static(), declare(parameters, {}), parameters, 0.75, Draw(0, 0, 0))
    held_flat = torch.cat([gather(cut, parameters)[name].flatten() for name in parameters])
    assert held_flat.tolist() == [1.0] * 8 + [0.0] * 2
    assert count_values(cut, parameters) == 8


def test_absent_labels_cut_the_classifier_rows_at_both_granularities() -> None:
    parameters = {"hidden": torch.ones(4, 2), "out": torch.ones(5, 4)}
    axes = declare(parameters, {"hidden": ("h",), "out": ("classes", "h")})
    labels, draw = np.array([1, 3]), Draw(0, 0, 0)
    unit = draw_units(Rolling(4), axes, 0.5, draw, labels)
    assert gather(unit, parameters)["out"].shape == (2, 2)
    masks = draw_coordinates(Static(), axes, parameters, 1.0, draw, labels)
    assert masks.part("out", parameters["out"]).sum(1).tolist() == [0, 4, 0, 4, 0]
    assert masks.part("hidden", parameters["hidden"]).sum() == 8


def test_a_plan_is_plain_data_that_gathers_and_scatters_without_a_model() -> None:
    cut = draw_units(Random("fixed"), AXES, 0.5, Draw(0, 1, 2), np.array([0, 3]))
    sent = PlannedCut.from_json(cut.planned.to_json())
    for name, tensor in WHOLE.items():
        assert torch.equal(sent.part(name, tensor), cut.part(name, tensor))
        ours, theirs = torch.zeros_like(tensor), torch.zeros_like(tensor)
        cut.add(name, ours, 1.0)
        sent.add(name, theirs, 1.0)
        assert torch.equal(ours, theirs)
        assert sent.value_count(name, tensor.shape) == cut.value_count(name, tensor.shape)


@given(a=subset, b=subset)
def test_small_tensors_are_gathered_together_as_they_are_one_by_one(
    a: list[int], b: list[int]
) -> None:
    whole = {**WHOLE, "count": torch.tensor(3), "large": torch.ones(1 << 17), "one": torch.ones(())}
    planned = PlannedCut({"conv": ((1, np.array([3, 0])),), "large": ((0, np.array(a)),)})
    by_units = UnitCut(AXES, {"a": np.array(a), "b": np.array(sorted({unit % 4 for unit in b}))})
    source = CutSource(whole)
    for cut in (planned, by_units, EVERYTHING):
        parts = source.gather(cut)
        assert list(parts) == list(whole)
        for name, part in gather(cut, whole).items():
            assert torch.equal(parts[name], part)
            assert parts[name].is_contiguous()
    source.gather(by_units)["conv"].fill_(7.0)
    assert torch.equal(whole["conv"], WHOLE["conv"])


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
        with pytest.raises(PlanError, match=r"^not a plan: "):
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
    assert read.plan["a"][0][1] is read.plan["b"][0][1]  # equal positions are stored once
    large = '{"w": [[0, [[0, 1000]]], [1, [[0, 1000]]]]}'
    assert PlannedCut.from_json(large, most=1000).value_count("w", (2000, 2000)) == 1000**2
    with pytest.raises(PlanError, match=r"1,000 .*999"):
        PlannedCut.from_json(large, most=999)


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
    with pytest.raises(PlanError, match=r"^not the axes"):
        from_json(text)


def test_axes_with_many_mistakes_are_refused_in_little_time_and_memory() -> None:
    text = TEXT.replace('"unused": []', f'"unused": [{", ".join(["7"] * 20_000)}]')
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(PlanError, match=r"^not the axes") as refusal:
            from_json(text)
        assert len(str(refusal.value)) < 300
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
        assert time.process_time() - started < 5
    finally:
        tracemalloc.stop()


def test_what_is_wrong_with_axes_is_named_with_its_place() -> None:
    with pytest.raises(PlanError, match=r"layouts\.w\.1\..*parts\.0.*size: "):
        from_json(TEXT.replace('"size": 2', '"size": -2'))
    with pytest.raises(PlanError, match=r"'h' .*4"):
        from_json(TEXT.replace('{"h": 4}', '{"h": 5}'))


def test_the_words_of_fingerprints_stay() -> None:
    """Checkpoints and devices compare them, so other texts would make other models of the same."""
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
