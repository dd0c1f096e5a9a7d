#!/usr/bin/env bash
# Runs lint, type checks and tests. Arguments go to pytest; without any, or with only --full or --stress, pytest uses
# all cores, up to eight.
set -euo pipefail
. "$(dirname "$0")/environment.sh" test

ruff check .
ruff format --check .
mypy
lint-imports
case "$*" in
"" | --full | --stress) set -- "$@" --numprocesses=auto --maxprocesses=8 --dist=worksteal ;;
esac
python -m pytest "$@"
