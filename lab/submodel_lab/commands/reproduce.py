"""The command `submodel reproduce`: experiments of the paper and questions to converged runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from submodel.cli import AsJson, console, make_folder, print_json, talk
from submodel.core import ConfigError, SubmodelError
from submodel_lab.paper.experiments import DATASETS, EXPERIMENTS, Scale, Split


def reproduce_command(
    name: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(EXPERIMENTS)}, or all; of --scale converged: a question, or all.",
            metavar="NAME",
        ),
    ],
    scale: Annotated[Scale, typer.Option(help="Size of the models and runs.")] = Scale.SMALL,
    seeds: Annotated[
        int | None,
        typer.Option(help="Seeds of each arm (default: 3; smoke: 1; converged: 3 or 10).", min=1),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Number of parallel runs (default: one per core).", min=1)
    ] = None,
    datasets: Annotated[
        str | None, typer.Option(help="Datasets, such as cifar10,cifar100 (default: by scale).")
    ] = None,
    split: Annotated[Split, typer.Option(help="How the clients' data differ.")] = Split.LABELS,
    out: Annotated[Path | None, typer.Option(help="Output folder.")] = None,
    records: Annotated[
        Path | None, typer.Option(help="Redraw from this folder of records; trains nothing.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="For --scale converged: folder of records of earlier runs; their seeds are not "
            "run again, and new runs are added as they end."
        ),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="For --scale converged: print the cost and statistical power, then exit."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the experiments of the paper and judge its statements.

    The same command resumes a stopped campaign.

    Examples:
        submodel reproduce all --scale smoke
        submodel reproduce heterofl --seeds 5 --jobs 2
        submodel reproduce all --scale converged --plan
        submodel reproduce heterofl --records results/small --json
    JSON:
        scale: the scale of the experiments
        experiments: each with its name, title, page and claims: the statement, its setting, the
            differences seed by seed in its favour, their interval, p-value and verdict
        overview: for several questions of --scale converged, the page with all their contrasts
        plan: with --plan instead of experiments, the lines of the plan
    """
    from submodel.comparison import ArmRecord, Runner
    from submodel.config import parse
    from submodel.runs import Interruption
    from submodel_lab.paper import report

    if scale is Scale.CONVERGED:
        if datasets is not None or split is not Split.LABELS:
            raise ConfigError("--scale converged: its questions have data and splits of their own")
        default = Path("runs") / f"reproduce-{scale.value}"
        _reproduce_converged(name, seeds, jobs, out or default, records, keep, plan, as_json)
        return
    if plan or keep is not None:
        option = "--plan" if plan else "--keep"
        raise ConfigError(f"{option}: needs --scale converged")
    if name != "all" and name not in EXPERIMENTS:
        raise ConfigError(f"{name!r} is not one of {', '.join(EXPERIMENTS)}, all")
    count = seeds or (1 if scale is Scale.SMOKE else 3)
    folder = out or Path("runs") / f"reproduce-{scale.value}"
    dataset_names = tuple(datasets.split(",")) if datasets else None
    if dataset_names and (
        unknown := sorted(set(dataset_names) - {d for s in Scale for d in DATASETS[s]})
    ):
        raise ConfigError(f"--datasets: {unknown[0]!r} has no experiments")
    experiments = [e for e in EXPERIMENTS.values() if name in (e.name, "all")]
    arms_by_experiment = {e.name: e.arms(scale, dataset_names, split) for e in experiments}
    arms = list(dict.fromkeys(v for group in arms_by_experiment.values() for v in group))
    make_folder(folder)
    if records is None:
        configs = {v.slug: [parse(v.settings(scale, seed)) for seed in range(count)] for v in arms}
        try:
            runner = Runner(folder, jobs or os.cpu_count() or 1, talk(as_json))
            arm_records = runner.run(configs)
        except Interruption as stop:
            talk(as_json).print(str(stop), soft_wrap=True)
            raise typer.Exit(130) from None
        for record in arm_records:
            record.write(folder / "records" / f"{record.slug}.json")
    else:
        arm_records = [ArmRecord.read(records / f"{arm.slug}.json") for arm in arms]
    by_arm = dict(zip(arms, arm_records, strict=True))
    command = f"submodel reproduce {name} --scale {scale.value} --seeds {count}"
    command += "" if split is Split.LABELS else f" --split {split.value}"
    answers = []
    for experiment in experiments:
        own_records = {v: by_arm[v] for v in arms_by_experiment[experiment.name]}
        page = report.write_experiment(experiment, own_records, command, folder)
        if as_json:
            contrasts = report.plain_contrasts(experiment, own_records)
            about = {"name": experiment.name, "title": experiment.title, "page": page}
            answers.append({**about, "claims": contrasts})
            continue
        console.print(report.contrast_table(experiment, own_records))
        print(page)
    if as_json:
        print_json({"scale": scale.value, "experiments": answers})


def _reproduce_converged(
    name: str,
    seeds: int | None,
    jobs: int | None,
    folder: Path,
    records: Path | None,
    keep: Path | None,
    plan: bool,
    as_json: bool,
) -> None:
    from submodel.comparison import Runner
    from submodel.drawing import text_table
    from submodel.runs import Interruption
    from submodel_lab.converged import report
    from submodel_lab.converged.agenda import (
        plan_lines,
        read_results,
        run_agenda,
        spread_over_seeds,
        words_of_rest,
    )
    from submodel_lab.converged.contrasts import contrast_outcomes, write_contrasts
    from submodel_lab.converged.questions import QUESTIONS

    names = list(QUESTIONS) if name == "all" else name.split(",")
    if unknown := [n for n in names if n not in QUESTIONS]:
        raise ConfigError(
            f"{unknown[0]!r} is not one of {', '.join(QUESTIONS)}, all: the questions of "
            "--scale converged"
        )
    questions = [QUESTIONS[n] for n in names]
    if records is not None and keep is not None:
        raise ConfigError("--keep: cannot be used with --records, which trains nothing")
    if plan:
        if records is not None:
            read_results(list(QUESTIONS.values()), records)  # raises an error if there are none
        earlier = keep if records is None else records
        all_questions = list(QUESTIONS.values())
        deviations = {} if earlier is None else spread_over_seeds(all_questions, earlier)
        lines = plan_lines(questions, deviations, seeds)
        rest = [] if keep is None else [words_of_rest(questions, keep, seeds)]
        if as_json:
            print_json({"scale": "converged", "plan": [*lines, *rest]})
        else:
            print("\n".join([*lines, *rest]))
        return
    make_folder(folder)
    stop: Interruption | SubmodelError | None = None
    if records is None:
        records = folder / "records" if keep is None else make_folder(keep, "--keep")
        try:
            run_agenda(
                Runner(folder, jobs or os.cpu_count() or 1, talk(as_json)),
                questions,
                records,
                seeds,
            )
        except (Interruption, SubmodelError) as error:  # existing results are still reported
            stop = error
    try:
        results, tables = read_results(questions, records)
    except SubmodelError:
        if stop is None:
            raise
        results, tables = {}, {}
    command = f"submodel reproduce {name} --scale converged"
    command += "" if seeds is None else f" --seeds {seeds}"
    answers = []
    for question in questions if results else ():
        own_tables = [t for arm in question.arms for t in tables.get(arm, [])]
        page = report.write_question(question, results, own_tables, command, folder)
        if as_json:
            contrasts = report.plain_answers(question, results)
            answers.append(
                {"name": question.name, "title": question.title, "page": page, "claims": contrasts}
            )
            continue
        rows = report.answer_rows(question, results)
        words = ("setting", "difference", "measure", "verdict")
        console.print(text_table(question.title, report.ANSWER_HEADINGS, rows, words=words))
        print(page)
    overview = None
    if results and len(questions) > 1:
        overview = write_contrasts(contrast_outcomes(questions, results), folder)
        if not as_json:
            print(overview)
    if isinstance(stop, Interruption):
        talk(as_json).print(str(stop), soft_wrap=True)
        raise typer.Exit(130) from None
    if stop is not None:
        raise stop
    if as_json:
        print_json({"scale": "converged", "overview": overview, "experiments": answers})
