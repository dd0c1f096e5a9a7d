#!/usr/bin/env bash
# All checks from nothing: lint, types, tests. Arguments go to pytest; without any, it takes all the cores there are.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

ruff check .
ruff format --check .
mypy
(($#)) || set -- --numprocesses=auto --dist=worksteal
python -m pytest "$@"
