"""Write what follows from the records in results/: `make results`."""

from __future__ import annotations

from pathlib import Path

from submodel.drawing.style import save_figure
from submodel_lab.advice.evidence import EVIDENCE_FILE
from submodel_lab.advice.gather import gather_evidence
from submodel_lab.converged.agenda import read_available
from submodel_lab.converged.claims import claims_lines, claims_of, draw_claims
from submodel_lab.converged.questions import QUESTIONS
from submodel_lab.converged.report import draw_question, question_lines, results_of
from submodel_lab.paper.gpu_time import gpu_lines
from tools.packages import ROOT
from tools.pages import RESULTS, replace

RECORDS = ROOT / "results"
FIGURES = "images/results"
"""The folder of the figures in docs/."""


def parts(records: Path = RECORDS) -> dict[str, str]:
    """The generated parts of the pages in docs/results, by name."""
    questions = list(QUESTIONS.values())
    results, tables = read_available(questions, records / "converged")
    generated = {
        "contrasts": claims_lines(claims_of(questions, results), f"../{figure('claims')}"),
        "GPU": gpu_lines(),
    }
    for question in questions:
        own_tables = [t for candidate in question.candidates for t in tables.get(candidate, [])]
        command = f"submodel reproduce {question.name} --scale converged"
        picture = f"../{figure(question.name)}"
        own_results = results_of(question, results)
        generated[question.name] = question_lines(
            question, own_results, own_tables, command, picture, is_brief=True
        )
    return {name: "\n".join(lines).strip() for name, lines in generated.items()}


def page_of(name: str) -> Path:
    """The page with a generated part."""
    return RESULTS / f"{'method' if name == 'GPU' else name}.md"


def figure(name: str) -> str:
    """The path of a figure in docs/."""
    return f"{FIGURES}/converged-{name}.png"


def main() -> None:
    """Write the generated parts, their figures, and the evidence of `submodel advise`."""
    for name, text in parts().items():
        replace(page_of(name), name, text)
    questions = list(QUESTIONS.values())
    results, _ = read_available(questions, RECORDS / "converged")
    for question in questions:
        if own_results := results_of(question, results):
            save_figure(draw_question(own_results), RESULTS.parent / figure(question.name))
    save_figure(draw_claims(claims_of(questions, results)), RESULTS.parent / figure("claims"))
    gather_evidence(RECORDS).write(EVIDENCE_FILE)


if __name__ == "__main__":
    main()
