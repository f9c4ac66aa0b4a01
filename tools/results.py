"""Write what follows from the records in results/: `make results`."""

from __future__ import annotations

from pathlib import Path

from submodel.drawing.style import save_figure
from submodel_lab.advice.evidence import EVIDENCE_FILE
from submodel_lab.advice.gather import gather_evidence
from submodel_lab.converged.agenda import plan_lines, read_available, spread_over_seeds
from submodel_lab.converged.claims import claims_lines, claims_of, draw_claims
from submodel_lab.converged.questions import QUESTIONS
from submodel_lab.converged.report import draw_question, question_lines, results_of
from submodel_lab.paper.gpu_time import gpu_lines
from tools.packages import ROOT
from tools.pages import RESULTS, replace

RECORDS = ROOT / "results"
FIGURES = "images/results"
"""Where figures are, from the page."""


def parts(records: Path = RECORDS) -> dict[str, str]:
    """What stands between the markers of docs/results.md, by name."""
    questions = list(QUESTIONS.values())
    results, tables = read_available(questions, records / "converged")
    deviations = spread_over_seeds(questions, records / "converged")
    lines: list[str] = []
    for question in questions:
        own_tables = [t for candidate in question.candidates for t in tables.get(candidate, [])]
        command = f"submodel reproduce {question.name} --scale converged"
        own_results = results_of(question, results)
        lines += [
            f"### {question.title}",
            "",
            *question_lines(question, own_results, own_tables, command, figure(question.name)),
        ]
    return {
        "claims": "\n".join(claims_lines(claims_of(questions, results), figure("claims"))),
        "questions": "\n".join(lines).strip(),
        "plan": "\n".join(plan_lines(questions, deviations)).strip(),
        "GPU": "\n".join(gpu_lines()),
    }


def figure(name: str) -> str:
    """A figure, from the page."""
    return f"{FIGURES}/converged-{name}.png"


def main() -> None:
    """The page's parts, its figures, and the evidence that the package has."""
    for name, text in parts().items():
        replace(RESULTS, name, text)
    questions = list(QUESTIONS.values())
    results, _ = read_available(questions, RECORDS / "converged")
    for question in questions:
        if own_results := results_of(question, results):
            save_figure(draw_question(own_results), RESULTS.parent / figure(question.name))
    save_figure(draw_claims(claims_of(questions, results)), RESULTS.parent / figure("claims"))
    gather_evidence(RECORDS).write(EVIDENCE_FILE)


if __name__ == "__main__":
    main()
