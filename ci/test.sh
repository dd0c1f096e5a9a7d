#!/usr/bin/env bash
# All checks from nothing: lint, types, tests. Arguments go to pytest; without any, or with --full alone, it takes all
# the cores there are, up to eight.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

ruff check .
ruff format --check .
mypy
lint-imports
case "$*" in
"" | --full) set -- "$@" --numprocesses=auto --maxprocesses=8 --dist=worksteal ;;
esac
python -m pytest "$@"
