"""Questions to converged runs: the plan, running it, and saying what came out."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from submodel.cli import console, make_folder, print_json, talk
from submodel.errors import ConfigError, SubmodelError


def reproduce_converged(
    name: str,
    seeds: int | None,
    jobs: int | None,
    folder: Path,
    records: Path | None,
    keep: Path | None,
    plan: bool,
    as_json: bool,
) -> None:
    """Answer some questions, or say what that would take.

    Args:
        name: of a question, several with commas between them, or all.
        seeds: how many runs of each way; None: as many as each setting has.
        jobs: how many runs at a time; None: one per core.
        folder: where everything goes.
        records: redraw from these, train nothing; with ``plan``, the spread over seeds is theirs.
        keep: records of earlier runs, to which new ones are added; None: those in ``folder``.
        plan: only say what would be run.
        as_json: print the answers so.
    """
    from submodel.experiments import Runner
    from submodel.presentation import text_table
    from submodel.runs import Interruption
    from submodel_lab.converged import report
    from submodel_lab.converged.agenda import (
        plan_lines,
        read_results,
        run_agenda,
        spread_over_seeds,
        words_of_rest,
    )
    from submodel_lab.converged.claims import claims_of
    from submodel_lab.converged.overview import write_claims
    from submodel_lab.converged.questions import QUESTIONS

    names = list(QUESTIONS) if name == "all" else name.split(",")
    if unknown := [n for n in names if n not in QUESTIONS]:
        raise ConfigError(
            [
                f"{unknown[0]!r} is not one of {', '.join(QUESTIONS)}, all: the questions of "
                "--scale converged"
            ]
        )
    questions = [QUESTIONS[n] for n in names]
    if records is not None and keep is not None:
        raise ConfigError(["--keep: goes with runs; --records trains nothing"])
    if plan:
        if records is not None:
            read_results(list(QUESTIONS.values()), records)  # says so where there are none
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
        except (Interruption, SubmodelError) as error:  # what there is is reported all the same
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
        own_tables = [t for candidate in question.candidates for t in tables.get(candidate, [])]
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
        overview = write_claims(claims_of(questions, results), folder)
        if not as_json:
            print(overview)
    if isinstance(stop, Interruption):
        talk(as_json).print(str(stop), soft_wrap=True)
        raise typer.Exit(130) from None
    if stop is not None:
        raise stop
    if as_json:
        print_json({"scale": "converged", "overview": overview, "experiments": answers})
