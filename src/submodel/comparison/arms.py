"""Arms of a comparison, written as the name of a scheme and settings.

``rolling``, ``random:sampling=fixed``, ``rolling:merge.rule=fill_in:local.lr=0.05``: a key without
a dot belongs to ``scheme``, any other is a key of the configuration. A user's scheme is named by
its path, ``package.module:Name``, and takes settings like any other: ``mine:Mine:depth=3``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from submodel.comparison.records import ArmRecord, put_together
from submodel.config import Config
from submodel.core.errors import ConfigError, refuse
from submodel.schemes.builtin_schemes import SCHEMES

EXCLUSIVE = "exclusive"
"""Name of the arm that trains a model of every width, each by the clients that can hold it."""
COMMON = ("data", "train", "clients.count")
"""Keys that no arm may change: the partition, the evaluation and the number of rounds."""
_LONGEST = 100  # characters of a folder's name
_OPENING, _CLOSING, _QUOTES = "[{", "]}", "\"'"


@dataclass(frozen=True)
class Arm:
    """An arm of a comparison."""

    text: str
    slug: str  # name of its folder
    scheme: str
    settings: tuple[tuple[str, str], ...]  # key as written, and value

    @property
    def title(self) -> str:
        """Name of the arm in tables and legends.

        >>> parse_arms("random:sampling=fixed")[0].title
        'random, sampling = fixed'
        """
        return ", ".join([self.scheme, *(f"{key} = {value}" for key, value in self.settings)])

    @property
    def overrides(self) -> list[str]:
        """Settings of the arm, as ``key.path=value``.

        >>> parse_arms("random:sampling=fixed:local.lr=0.1")[0].overrides
        ['scheme.name=random', 'scheme.sampling=fixed', 'local.lr=0.1']
        """
        settings = (f"{_full(key)}={value}" for key, value in self.settings)
        return [f"scheme.name={self.scheme}", *settings]

    def config(self, base: Callable[[Sequence[str]], Config]) -> Config:
        """Make the arm's configuration with ``base``; errors name the arm.

        >>> from submodel.config import override, parse
        >>> parse_arms("static")[0].config(lambda s: parse(override({}, s))).scheme.name
        'static'
        """
        try:
            return base(self.overrides)
        except ConfigError as error:
            raise self.blame(error) from None

    def blame(self, error: ConfigError) -> ConfigError:
        """Add the arm's name to the mistakes of an error."""
        problems = (problem.removeprefix("--set ") for problem in error.problems)
        return ConfigError([f"arm {self.text!r}: {problem}" for problem in problems])


def _full(key: str) -> str:
    return key if "." in key else f"scheme.{key}"


def split_unquoted(text: str, separator: str) -> list[str]:
    """Split a text at separators outside brackets and quotes.

    >>> split_unquoted('a,b:x=[1, 2],c:y="d,e"', ",")
    ['a', 'b:x=[1, 2]', 'c:y="d,e"']
    """
    parts, depth, quote = [""], 0, ""
    for character in text:
        if character == separator and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += character
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        else:
            depth += (character in _OPENING) - (character in _CLOSING)
    return [part.strip() for part in parts]


def parse_arms(text: str | Sequence[str]) -> list[Arm]:
    """Parse the arms of a comma-separated text or of a list of texts.

    >>> [arm.slug for arm in parse_arms("random:sampling=fixed,full:clients.capacities=[1]")]
    ['random-sampling-fixed', 'full-clients.capacities-1']
    >>> parse_arms("mine:Mine:depth=3")[0].overrides
    ['scheme.name=mine:Mine', 'scheme.depth=3']
    """
    texts = split_unquoted(text, ",") if isinstance(text, str) else list(text)
    arms: list[Arm] = []
    problems: list[str] = []
    for arm_text in texts:
        try:
            arms.append(_arm(arm_text, {arm.slug for arm in arms}))
        except ConfigError as error:
            problems += error.problems
    repeated_texts = {arm.text for arm in arms if sum(w.text == arm.text for w in arms) > 1}
    problems += [f"arm {text!r} is given twice" for text in sorted(repeated_texts)]
    refuse(problems)
    return arms


def _arm(text: str, earlier_slugs: set[str]) -> Arm:
    scheme, *rest = split_unquoted(text, ":")
    if rest and "=" not in rest[0] and not SCHEMES.accepts(scheme) and scheme != EXCLUSIVE:
        scheme = f"{scheme}:{rest.pop(0)}"
    if not re.fullmatch(r"\w+|[\w.]+:[\w.]+", scheme):
        example = "as rolling:order=shuffled, or package.module:Name"
        raise ConfigError(f"arm {text!r}: must begin with the name of a scheme, {example}")
    settings: dict[str, str] = {}
    problems = []
    for part in rest:
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not key or not sign or not value:
            problems.append(f"{part!r} is not key=value (quote a value that contains ':' or ',')")
        elif _full(key) in map(_full, settings):
            problems.append(f"{key} is set twice")
        elif _full(key) == "scheme.name":
            problems.append(f"{key}: the scheme's name comes first, here {scheme!r}")
        elif any(f"{_full(key)}.".startswith(f"{common}.") for common in COMMON):
            problems.append(f"{key} is the same for all arms; set it for all with --set")
        settings[key] = value
    refuse([f"arm {text!r}: {problem}" for problem in problems])
    slug = re.sub(r"[^\w.]+", "-", text, flags=re.ASCII).strip("-.")[:_LONGEST]
    number = next(
        n for n in range(1, len(earlier_slugs) + 2) if _number_slug(slug, n) not in earlier_slugs
    )
    return Arm(text, _number_slug(slug, number), scheme, tuple(settings.items()))


def _number_slug(slug: str, number: int) -> str:
    return slug if number == 1 else f"{slug}-{number}"


def describe_duplicates(arms: Sequence[Arm], configs: Sequence[Config]) -> list[str]:
    """List the arms that have the same configuration as an earlier one."""
    problems = []
    for place, (arm, config) in enumerate(zip(arms, configs, strict=True)):
        for other, before in zip(arms[:place], configs, strict=False):
            if config == before:
                problems.append(f"arm {arm.text!r} is the same as {other.text!r}; remove one")
                break
    return problems


@dataclass(frozen=True)
class ArmRuns:
    """The runs of an arm for each seed: one, or one per capacity."""

    arm: Arm  # as given
    parts: Sequence[Arm]  # the arms to run for it
    capacities: Sequence[float] = field(default=())  # of the parts, if each has its own

    def record(self, records: Mapping[str, ArmRecord]) -> ArmRecord:
        """Return the record of the arm, joined from the records of its parts."""
        own_records = [records[part.slug] for part in self.parts]
        if not self.capacities:
            return own_records[0]
        by_capacity = dict(zip(self.capacities, own_records, strict=True))
        return put_together(self.arm.slug, by_capacity)


def runs_of(arm: Arm, base: Callable[[Sequence[str]], Config]) -> ArmRuns:
    """Return the runs of an arm; for ``exclusive`` one per capacity of the clients.

    >>> from submodel.config import override, parse
    >>> from submodel.comparison.arms import parse_arms
    >>> base = lambda settings: parse(override({"clients": {"capacities": [1, 0.5]}}, settings))
    >>> [part.slug for part in runs_of(parse_arms("exclusive")[0], base).parts]
    ['exclusive-at-1', 'exclusive-at-0.5']
    """
    if arm.scheme != EXCLUSIVE:
        return ArmRuns(arm, [arm])
    whole = Arm(arm.text, arm.slug, "full", arm.settings)
    config = whole.config(base)
    capacities = sorted(set(config.clients.capacities), reverse=True)
    no_scaler = (("model.scaler", "false"),) if getattr(config.model, "scaler", False) else ()
    parts = [
        Arm(
            arm.text,
            f"{arm.slug}-at-{capacity:g}",
            "full",
            (
                *arm.settings,
                ("model.share", repr(capacity)),
                ("clients.least", repr(capacity)),
                *no_scaler,
            ),
        )
        for capacity in capacities
    ]
    return ArmRuns(arm, parts, capacities)


Way = Arm  # former name
parse_ways = parse_arms  # former name
