"""Commands on a finished run: show, fit and export."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from submodel.cli.common import AsJson, RunPath, console, make_folder, print_json
from submodel.core.amounts import parse_capacity
from submodel.core.errors import Interruption


def show_command(
    run: RunPath,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Also score a finished run on all training and test examples, by capacity and by "
            "client; the run's folder keeps the scores.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run: its evaluated rounds and its state.

    Examples:
        submodel show runs/digits
        submodel show runs/digits --full
        submodel show runs/digits --json | jq '.history[-1].test_loss'
    JSON:
        run: its folder
        finished: whether all rounds are done
        round: number of the last finished round
        rounds: planned number of rounds
        config: its configuration, without keys that are not set
        history: the lines of metrics.jsonl, one for every round
        damage: description of damaged lines of metrics.jsonl; null if there are none
        summary: scores and costs of a finished run; null before its end
        scores: with --full, loss and every metric on the parts test_*, train_eval_* and held_out_*,
            by capacity (capacity_*), and over clients (client_*: mean, mean of the worst quarter,
            and mean by capacity; client_count: number of scored clients)
    """
    from submodel.report.tables import clients_table, history_table, plain_run
    from submodel.runs.open import Run

    past_run = Run(run)
    scores = past_run.score() if full else None
    if as_json:
        content = plain_run(past_run)
        print_json(content if scores is None else {**content, "scores": scores})
        return
    folder, config, history = past_run.folder, past_run.config, past_run.history
    scheme = f"{config.scheme.name}, {config.merge.rule}"
    console.print(history_table(history, f"{config.name}: {config.model.name}, {scheme}"))
    evaluated_lines = [line for line in history if "test_loss" in line]
    if evaluated_lines and (of_clients := clients_table(evaluated_lines[-1])) is not None:
        console.print(of_clients)
    if lost_lines := folder.describe_damage():
        console.print(f"{folder.metrics_file}: {lost_lines}")
    summary = past_run.summary
    if summary is None or not past_run.finished:
        last_round = history[-1]["round"] if history else 0
        console.print(
            f"round {last_round} of {config.train.rounds}; continue with: {folder.how_to_resume()}"
        )
    else:
        console.print(f"finished; model sha256 {summary['model_sha256']}")
    if scores is not None:
        show_scores(scores)


def show_scores(scores: Mapping[str, Any]) -> None:
    """Print the full scores of a run, one a line."""
    from submodel.runs.metrics import flat

    for name, value in flat(scores).items():
        print(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")


def fit_command(
    run: RunPath,
    capacities: Annotated[
        list[str],
        typer.Option("--capacity", help="Capacity of a sub-model, as 1/4; repeatable."),
    ],
    rounds: Annotated[
        int | None, typer.Option(help="Rounds for each (default: a quarter of the run's).")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of the clients (default: that of the run).")
    ] = None,
    cut: Annotated[
        str, typer.Option(help="Initial units: search, importance, prefix or scheme.")
    ] = "search",
    as_json: AsJson = False,
) -> None:
    """Train sub-models that devices will keep, each on its own.

    The global model is unchanged. After a stop, the same command continues.

    Examples:
        submodel fit runs/digits --capacity 1/4
        submodel fit runs/digits --capacity 1/4 --capacity 1/8 --rounds 20
    JSON:
        run: the run's folder
        submodels: for every capacity the score, the score before fitting, that of the global
            model, rounds, bytes, FLOPs
    """
    from submodel.report.tables import fit_table
    from submodel.runs.open import Run

    past_run = Run(run)
    try:
        results = past_run.fit(capacities, rounds=rounds, lr=lr, cut=cut)
    except Interruption as stop:
        print(f"{stop}; the same command continues", file=sys.stderr, flush=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json({"run": run, "submodels": results})
    else:
        console.print(fit_table(results))


def export_command(
    run: RunPath,
    capacity: Annotated[str, typer.Option(help="Capacity of the sub-model, such as 1/4.")] = "1",
    kind: Annotated[
        Literal["safetensors", "program", "onnx", "huggingface", "peft"],
        typer.Option("--format", help="File format."),
    ] = "safetensors",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to (default: export in the run's folder).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model or a sub-model for use elsewhere.

    Examples:
        submodel export runs/digits
        submodel export runs/digits --capacity 1/4 --format onnx --out phone
    JSON:
        file: the written file or folder
        format: its format
        capacity: capacity of the model
        fitted: whether submodel fit trained the sub-model
        test: loss and every metric on the test part; null if the data is not available
    """
    from submodel.report.tables import advice_of_export
    from submodel.runs.open import Run

    share = parse_capacity(capacity)
    past_run = Run(run)  # before a folder is created: the path may not be a run
    path, score = past_run.export(share, kind, None if out is None else make_folder(out))
    is_fitted = past_run.is_fitted(share)
    if as_json:
        content = {"file": path, "format": kind, "capacity": share, "fitted": is_fitted}
        print_json({**content, "test": None if score is None else score.entries()})
        return
    fit_note = ", fitted" if is_fitted else ""
    if score is None:
        print(f"{path}: capacity {share:g}{fit_note}, not scored: the data is not available")
        return
    accuracy = "" if score.accuracy is None else f"test accuracy {score.accuracy:.1%}, "
    print(f"{path}: capacity {share:g}{fit_note}, {accuracy}test loss {score.loss:.4f}")
    if share < 1 and (advice := advice_of_export(past_run, share, score, is_fitted)):
        print(advice)
