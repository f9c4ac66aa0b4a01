"""Gather evidence from the records of experiments: every contrast that has records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from submodel.comparison import EXCLUSIVE, ArmRecord, ComparisonResult, behind_best, parse_arms
from submodel.core import read_typed
from submodel_lab.advice.evidence import Circumstances, Evidence, Family, Method, TriedContrast
from submodel_lab.advice.fleet import fleet_shares
from submodel_lab.converged.agenda import read_available
from submodel_lab.converged.arms import EQUAL_BYTES, SETTINGS, ConvergedArm
from submodel_lab.converged.questions import QUESTIONS
from submodel_lab.converged.report import differences_of
from submodel_lab.paper.experiments import EXPERIMENTS, METHODS, PAPER_CAPACITIES, PaperArm, Scale
from submodel_lab.paper.report import contrast_sides

_DEFAULTS = ("scheme.order=shuffled", "scheme.sampling=bernoulli", "merge.rule=selective")
_OF_THE_FLEET = ("clients.capacities=", "clients.capacity_mode=")
"""Keys that describe devices and are not a choice."""
FIT = "rolling, then fit"
"""Method whose sub-models are trained on their own after the run."""
_MOST_BYTES = 2**20  # bytes of a record
_FITTED_FILES = {
    "as-it-is": "rolling",
    "fit": FIT,
    "finish": "rolling:train.finish=1/4",
    "static": "static",
    "importance": "importance",
    "ordered-distilled": "ordered:distill=1.0",
    "exclusive": EXCLUSIVE,
}
"""Method of each file of sub-models that devices keep (benchmarks/fitting.py)."""
_INDEPENDENT = "it adds channels that do not belong together, to show what that costs"


def settings_of(sections: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write sections as ``key=value``, without the keys of the fleet.

    >>> settings_of({"scheme": {"name": "rolling"}, "clients": {"capacities": [1]}})
    ['scheme.name=rolling']
    """
    texts = [f"{name}.{key}={value}" for name, s in sections.items() for key, value in s.items()]
    return [text for text in texts if not text.startswith(_OF_THE_FLEET)]


def method_key(settings: Iterable[str]) -> str:
    """Return one name for all spellings of the same settings.

    >>> method_key(["scheme.name=dropout"])
    'random:sampling=fixed'
    >>> method_key(["scheme.name=rolling", "merge.rule=fill_in"])
    'rolling:merge.rule=fill_in'
    """
    names = [text.partition("=")[2] for text in settings if text.startswith("scheme.name=")]
    others = [
        text.removeprefix("scheme.")
        for text in settings
        if not text.startswith("scheme.name=") and text not in _DEFAULTS
    ]
    if names == ["dropout"]:
        names, others = ["random"], ["sampling=fixed", *others]
    return ":".join([*names, *sorted(others)])


def method_of(title: str, settings: Sequence[str], reference: str = "") -> Method:
    """Make a method with the reason, if any, why a fleet would not run it."""
    if not reference:
        if any(text.startswith("clients.capacities=") for text in settings):
            reference = "it has capacities of its own"
        elif "scheme.name=full" in settings:
            reference = "every device holds the whole model"
        elif "scheme.granularity=coordinate" in settings:
            reference = "its masks are as large as the whole model"
    return Method(title, list(settings), reference)


def circumstances_of(
    title: str,
    config: Mapping[str, Any],
    records: Sequence[ArmRecord],
    budget: str,
    is_converged: bool = False,
) -> Circumstances:
    """Describe the circumstances of some runs."""
    clients, data = config["clients"], config["data"]
    rounds = [int(r) for record in records for r in record.final("round").values()]
    labels = data.get("labels_per_client") if data.get("partition") == "labels" else None
    return Circumstances(
        title,
        data["name"],
        config["model"]["name"],
        labels,
        fleet_shares(clients["capacities"], clients.get("proportions")),
        (min(rounds), max(rounds)),
        is_converged,
        budget,
    )


_RECORD, _CONFIG = TypeAdapter(dict[str, Any]), "config.json"


@dataclass(frozen=True)
class FittedScores:
    """Scores by method, measure and seed, with their circumstances."""

    circumstances: Circumstances
    scores: Mapping[str, Mapping[str, Mapping[int, float]]]


def read_fitted(folder: Path) -> FittedScores | None:
    """Read the records beside a ``config.json``; None without it, or without accuracies."""
    if not (folder / _CONFIG).is_file():
        return None
    config = _read(folder / _CONFIG)
    scores: dict[str, dict[str, dict[int, float]]] = {}
    for file, method in _FITTED_FILES.items():
        for path in sorted(folder.glob(f"{file}-seed-*.json")):
            record, seed = _read(path), int(path.stem.rpartition("-")[2])
            if record["metric"] != "accuracy":
                return None
            sizes = {float(c): score for c, score in record["capacities"].items()}
            measures = {
                "accuracy": record["global"],
                "mean over sizes": fmean(sizes.values()),
                "smallest size": sizes[min(sizes)],
            }
            by_measure = scores.setdefault(method, {measure: {} for measure in measures})
            for measure, value in measures.items():
                by_measure[measure][seed] = value
    clients, rounds = config["clients"], config["train"]["rounds"]
    circumstances = Circumstances(
        f"{config['data']['name']}, {clients['capacity_mode']} capacities",
        config["data"]["name"],
        config["model"]["name"],
        None,
        fleet_shares(clients["capacities"], clients.get("proportions")),
        (rounds, rounds),
        is_converged=False,
        budget="rounds",
    )
    return FittedScores(circumstances, scores)


def _read(path: Path) -> dict[str, Any]:
    return read_typed(_RECORD, path, _MOST_BYTES, "not a record")


@dataclass
class _Gathering:
    """Evidence under construction."""

    methods: dict[str, Method] = field(default_factory=dict)
    settings: dict[str, Circumstances] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    rates: dict[str, dict[str, float]] = field(default_factory=dict)

    def add_method(self, key: str, method: Method) -> str:
        """Add a method unless it is known, and return its key."""
        self.methods.setdefault(key, method)
        return key

    def add_setting(self, key: str, setting: Circumstances) -> str:
        """Add circumstances, widen their range of rounds, and return their key."""
        before = self.settings.get(key, setting)
        rounds = [*before.rounds, *setting.rounds]
        self.settings[key] = replace(setting, rounds=(min(rounds), max(rounds)))
        return key

    def add_family(
        self, name: str, folder: str, contrasts: Sequence[TriedContrast], best: bool = False
    ) -> None:
        """Add contrasts that are judged together, if there are any."""
        if contrasts:
            self.families.append(Family(name, f"results/{folder}", contrasts, best))

    def contrast(
        self,
        setting: str,
        sides: tuple[str, str],
        measure: str,
        differences: Sequence[float],
        is_choice: bool = True,
    ) -> TriedContrast:
        """Make a contrast of two methods; it is no choice if one of them is a reference."""
        may_choose = is_choice and not any(self.methods[side].reference for side in sides)
        values = [float(f"{difference:.7g}") for difference in differences]
        return TriedContrast(setting, *sides, measure, values, may_choose and len(set(sides)) == 2)


def gather_evidence(results: Path) -> Evidence:
    """Gather evidence from the records of ``converged``, ``compare-*``, ``small`` and ``fit``."""
    gathering = _Gathering()
    _gather_converged(gathering, results / "converged")
    for folder in sorted(results.glob("compare-*")):
        _gather_comparison(gathering, folder)
    _gather_paper(gathering, results / "small")
    for folder in sorted((results / "fit").glob("*")):
        _gather_fitted(gathering, folder)
    return Evidence(gathering.methods, gathering.settings, gathering.families, gathering.rates)


def _gather_converged(gathering: _Gathering, folder: Path) -> None:
    questions = [question for question in QUESTIONS.values() if question.guides_choice]
    results, tables = read_available(questions, folder)
    families = [(question, family) for question in questions for family in question.families]
    for question, family in families:
        contrasts = []
        for contrast in family:
            if not all(side in results for side in contrast.sides):
                continue
            first, second = contrast.sides
            keys = _add_arm(gathering, first), _add_arm(gathering, second)
            budget = "bytes" if EQUAL_BYTES in f"{first.method} {second.method}" else "rounds"
            modes = dict.fromkeys(map(_mode, contrast.sides))
            base = SETTINGS[contrast.setting]
            setting = gathering.add_setting(
                "/".join([folder.name, contrast.setting, budget, *modes]),
                circumstances_of(
                    f"{base.title}, {' and '.join(modes)} capacities",
                    base.sections,
                    [results[side] for side in contrast.sides],
                    budget,
                    is_converged=True,
                ),
            )
            for side, key in zip(contrast.sides, keys, strict=True):
                if not side.members and tables[side]:
                    gathering.rates.setdefault(setting, {})[key] = tables[side][0].best
            differences = differences_of(contrast, results)
            is_choice = len(modes) == 1
            tried_contrast = gathering.contrast(
                setting, keys, contrast.measure, differences, is_choice
            )
            runs = [run for side in contrast.sides for run in results[side].runs]
            rising_runs = sum(run.is_flat is False for run in runs)
            contrasts.append(replace(tried_contrast, rising_runs=rising_runs))
        gathering.add_family(f"converged: {question.title}", folder.name, contrasts)


def _mode(arm: ConvergedArm) -> str:
    sections = METHODS[arm.method][1]
    usual = SETTINGS[arm.setting].sections["clients"]["capacity_mode"]
    return str(sections.get("clients", {}).get("capacity_mode", usual))


def _add_arm(gathering: _Gathering, arm: ConvergedArm) -> str:
    title, sections = METHODS[arm.method]
    settings = settings_of(sections)
    if arm.members:
        return gathering.add_method(EXCLUSIVE, Method("exclusive", []))
    if "capacities" in sections.get("clients", {}):
        reference = "it has capacities of its own"
        return gathering.add_method(arm.method, method_of(title, settings, reference))
    return gathering.add_method(method_key(settings), method_of(method_key(settings), settings))


def _gather_comparison(gathering: _Gathering, folder: Path) -> None:
    """Add contrasts of the best arm that a fleet could run with each of the others."""
    result = ComparisonResult.read(folder)
    keys = {}
    for arm in result.arms:
        settings = parse_arms([arm.text])[0].overrides
        key = method_key(settings)
        keys[arm.text] = gathering.add_method(key, method_of(key, settings))
    config = next(w.record.config for w in result.arms if "clients." not in w.text)
    setting = gathering.add_setting(
        folder.name,
        circumstances_of(
            _describe(config),
            config,
            [arm.record for arm in result.arms],
            "bytes" if "bytes" in result.budget else "rounds",
        ),
    )
    options = [arm for arm in result.arms if not gathering.methods[keys[arm.text]].reference]
    judgements = behind_best({w.text: w.record.final("accuracy") for w in options})
    best = next(keys[arm.text] for arm in options if arm.text not in judgements)
    contrasts = [
        gathering.contrast(setting, (best, keys[text]), "accuracy", judgement.differences)
        for text, judgement in judgements.items()
    ]
    gathering.add_family(f"comparison: {result.budget}", folder.name, contrasts, best=True)


def _describe(config: Mapping[str, Any]) -> str:
    names = {"cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
    data, clients = config["data"], config["clients"]
    name = names.get(data["name"], data["name"])
    return f"{name}, L = {data['labels_per_client']}, {clients['capacity_mode']} capacities"


def _gather_paper(gathering: _Gathering, folder: Path) -> None:
    for experiment in EXPERIMENTS.values():
        records: dict[PaperArm, ArmRecord] = {
            arm: ArmRecord.read(folder / f"{arm.slug}.json")
            for arm in experiment.arms(Scale.SMALL)
            if (folder / f"{arm.slug}.json").is_file()
        }
        contrasts = []
        for contrast, _, better, worse in contrast_sides(experiment, records):
            sides = records[better], records[worse]
            places = list(dict.fromkeys(map(_place, (better, worse))))
            config = records[better].config
            setting = gathering.add_setting(
                f"{folder.name}/{' - '.join(places)}",
                circumstances_of(_describe(config), config, sides, "rounds"),
            )
            keys = _add_paper_arm(gathering, better), _add_paper_arm(gathering, worse)
            differences = sides[0].ahead_of(sides[1], contrast.measure)
            is_choice = len(places) == 1
            contrasts.append(
                gathering.contrast(setting, keys, contrast.measure, differences, is_choice)
            )
        gathering.add_family(f"30 rounds: {experiment.title}", folder.name, contrasts)


def _place(arm: PaperArm) -> str:
    clients = METHODS[arm.method][1].get("clients", {})
    capacities = " ".join(f"{c:g}" for c in clients.get("capacities", PAPER_CAPACITIES))
    mode = clients.get("capacity_mode", "dynamic")
    return f"{arm.dataset} {arm.heterogeneity}, {mode} {capacities}"


def _add_paper_arm(gathering: _Gathering, arm: PaperArm) -> str:
    settings = settings_of(METHODS[arm.method][1])
    key = method_key(settings)
    if "scheme.alignment=independent" in settings:
        return gathering.add_method(key, method_of(arm.title, settings, _INDEPENDENT))
    return gathering.add_method(key, method_of(key, settings))


def _fitted_method(key: str) -> Method:
    if key == EXCLUSIVE:
        return Method(key, [])
    if key == FIT:
        after = "submodel fit RUN --capacity CAPACITY"
        return Method(key, ["scheme.name=rolling"], afterwards=after)
    scheme, *others = key.split(":")
    settings = [text if "." in text.partition("=")[0] else f"scheme.{text}" for text in others]
    return Method(key, [f"scheme.name={scheme}", *settings])


def _gather_fitted(gathering: _Gathering, folder: Path) -> None:
    """Add contrasts of fitted sub-models with the sub-models of every other method."""
    fitted_scores = read_fitted(folder)
    if fitted_scores is None:
        return
    setting = gathering.add_setting(f"fit/{folder.name}", fitted_scores.circumstances)
    for method in fitted_scores.scores:
        gathering.add_method(method, _fitted_method(method))
    for measure in ("accuracy", "mean over sizes", "smallest size"):
        scores = {
            method: by_measure[measure] for method, by_measure in fitted_scores.scores.items()
        }
        first = scores.pop(FIT, {})
        contrasts = [
            gathering.contrast(
                setting,
                (FIT, method),
                measure,
                [first[seed] - by_seed[seed] for seed in sorted(by_seed.keys() & first.keys())],
            )
            for method, by_seed in scores.items()
        ]
        gathering.add_family(f"fit: {folder.name}, {measure}", f"fit/{folder.name}", contrasts)
