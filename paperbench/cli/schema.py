"""paperbench schema [NAME]: the JSON Schema of a file format, generated from the type that reads it."""

from __future__ import annotations

import argparse
import importlib
import json

from paperbench.cli.arguments import REMOVED
from paperbench.errors import PaperbenchError, nearest

SUMMARY = "print the JSON Schema of a file format"

FORMATS = {
    "experiment": "specs.experiment.Experiment",
    "expected": "specs.expected.Expected",
    "recipe": "specs.recipe.Recipe",
    "profiles": "specs.profile.Profiles",
    "record": "runs.record.Record",
    "history": "runs.history.HistoryLine",
    "external": "runs.external.ExternalResult",
    "analysis": "analysis.record.Analysis",
    "bench": "bench.figures.BenchReport",
    "loader": "bench.figures.LoaderReport",
    "scaling": "bench.figures.ScalingReport",
    "comparison": "report.json_format.ComparisonDocument",
    "changes": "compare.against.Changes",
    "facts": "specs.facts.FactsFile",
    "list": "report.published.TableList",
    "show": "report.published.ShownTable",
    "plan": "report.planned.PlanDocument",
    "status": "runs.status.Statuses",
    "doctor": "runs.diagnosis.Diagnosis",
    "rerun": "runs.rerun_record.RerunRecord",
    "verify": "runs.verify.Verification",
}
"""The type of each file format, as a path below `paperbench`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a file format (default: list all formats)")


def execute(args: argparse.Namespace) -> int:
    from paperbench.typed import json_schema

    if args.name is None:
        print("\n".join(FORMATS))
        return 0
    if args.name not in FORMATS:
        then = REMOVED.get(f"schema {args.name}") or nearest(args.name, FORMATS)
        raise PaperbenchError(f"Unknown format {args.name!r}. {then}")
    module, _, kind = FORMATS[args.name].rpartition(".")
    print(json.dumps(json_schema(getattr(importlib.import_module(f"paperbench.{module}"), kind)), indent=2))
    return 0
