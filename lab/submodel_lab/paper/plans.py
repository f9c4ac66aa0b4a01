"""What is compared: the paper's figures and tables as lists of runs, and the claims they bear.

Experiments share variants, so a run that two of them need is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from submodel_lab.paper.variants import DATASETS, HETEROGENEITY, Scale, Split, Variant


@dataclass(frozen=True)
class Claim:
    """That one way does better than another by some measure, in each of the settings.

    A way may name its own setting, as in "low:rolling".
    """

    text: str
    better: str
    worse: str
    measure: str = "accuracy"  # losses and gaps: smaller is better
    settings: tuple[str, ...] = HETEROGENEITY

    def sides(
        self, dataset: str, heterogeneity: str, split: Split = Split.LABELS
    ) -> tuple[Variant, Variant]:
        """The two variants that are compared."""

        def side(way: str) -> Variant:
            own_setting, _, name = way.rpartition(":")
            return Variant(dataset, own_setting or heterogeneity, name, split)

        return side(self.better), side(self.worse)


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper."""

    name: str
    title: str
    ways: Sequence[str]
    claims: Sequence[Claim] = ()
    only_low: Sequence[str] = ()  # ways beyond the paper, run at low heterogeneity alone
    only_high: bool = False
    gaps: bool = False  # about train/test gaps rather than about the test part
    paper: Sequence[tuple[str, str]] = field(default=())  # what the paper prints
    datasets: Sequence[str] | None = None  # at the paper's scale, where not all

    def variants(
        self,
        scale: Scale,
        datasets: Sequence[str] | None = None,
        split: Split = Split.LABELS,
    ) -> list[Variant]:
        """What has to be run."""
        dataset_names = (
            datasets or (self.datasets if scale is Scale.PAPER else None) or DATASETS[scale]
        )
        variants = []
        for dataset in dataset_names:
            for heterogeneity in HETEROGENEITY[:1] if self.only_high else HETEROGENEITY:
                extra = self.only_low if heterogeneity == "low" else ()
                ways = (*self.ways, *extra)
                variants += [Variant(dataset, heterogeneity, w, split) for w in ways]
        return variants


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "heterogeneous",
            "rolling and random masking, capacities 1 to 1/16 (Fig. 1 and 2)",
            ("rolling", "dropout", "dropout-independent"),
            only_low=(
                "random",
                "rolling-fill_in",
                "dropout-fill_in",
                "rolling-fixed",
                "dropout-fixed",
            ),
            claims=(
                Claim("rolling beats random", "rolling", "random", settings=("low",)),
                Claim("rolling beats random (loss)", "rolling", "random", "loss", ("low",)),
                Claim("rolling beats dropout", "rolling", "dropout"),
                Claim("rolling beats dropout (loss)", "rolling", "dropout", "loss"),
                Claim(
                    "higher heterogeneity hurts",
                    "low:rolling",
                    "high:rolling",
                    settings=("low",),
                ),
                Claim(
                    "rolling beats dropout as published code draws it",
                    "rolling",
                    "dropout-independent",
                ),
                Claim("aligned dropout beats independent layers", "dropout", "dropout-independent"),
                Claim(
                    "rolling beats dropout under fill_in",
                    "rolling-fill_in",
                    "dropout-fill_in",
                    settings=("low",),
                ),
                Claim(
                    "rolling beats dropout with fixed capacities",
                    "rolling-fixed",
                    "dropout-fixed",
                    settings=("low",),
                ),
                Claim("selective beats fill_in", "rolling", "rolling-fill_in", settings=("low",)),
                Claim(
                    "dynamic beats fixed capacities", "rolling", "rolling-fixed", settings=("low",)
                ),
            ),
        ),
        Experiment(
            "homogeneous",
            "all clients of capacity 1, or all of 1/16 (Fig. 3 and 4)",
            ("full", "independent-at-1", "rolling-at-1-16", "dropout-at-1-16"),
            claims=(
                Claim("the largest model beats the smallest", "full", "rolling-at-1-16"),
                Claim("rolling beats dropout at 1/16", "rolling-at-1-16", "dropout-at-1-16"),
                Claim("rolling beats independent layers at 1", "full", "independent-at-1"),
            ),
        ),
        Experiment(
            "generalization",
            "the gap between training and test part, random masks of fixed size and full "
            "(Tab. 1 and 2)",
            ("full", "dropout-at-1-2", "dropout-at-1-4", "dropout-at-1-16", "independent-at-1"),
            gaps=True,
            claims=tuple(
                Claim(f"masking shrinks the gap ({measure}, {name})", way, "full", measure)
                for measure in ("loss gap", "accuracy gap")
                for name, way in (
                    ("capacity 1/2", "dropout-at-1-2"),
                    ("capacity 1/4", "dropout-at-1-4"),
                    ("capacity 1/16", "dropout-at-1-16"),
                    ("capacity 1, independent layers", "independent-at-1"),
                )
            ),
            paper=(
                ("high, random masking", "loss gap 0.0126, accuracy gap 0.384 points"),
                ("high, full", "loss gap 0.0190, accuracy gap 1.488 points"),
                ("low, random masking", "loss gap 0.0154, accuracy gap 0.094 points"),
                ("low, full", "loss gap 0.0330, accuracy gap 0.840 points"),
            ),
        ),
        Experiment(
            "heterofl",
            "static and rolling masking, capacities 1/4 and 1/8 (Tab. 3)",
            ("static-small", "rolling-small"),
            claims=(
                Claim("rolling beats static", "rolling-small", "static-small", settings=("high",)),
                Claim(
                    "rolling beats static (loss)",
                    "rolling-small",
                    "static-small",
                    "loss",
                    settings=("high",),
                ),
            ),
            only_high=True,
            paper=(
                ("static, CIFAR-100", "accuracy 34.37 %, loss 2.5026"),
                ("rolling, CIFAR-100", "accuracy 35.30 %, loss 2.4681"),
            ),
            datasets=("cifar100",),
        ),
    )
}
