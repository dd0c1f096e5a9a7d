#!/usr/bin/env bash
# All checks from nothing: lint, types, tests. Arguments go to pytest. Without any, or with --full or --stress
# alone, it uses all cores, up to eight.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

ruff check .
ruff format --check .
mypy
lint-imports
case "$*" in
"" | --full | --stress) set -- "$@" --numprocesses=auto --maxprocesses=8 --dist=worksteal ;;
esac
python -m pytest "$@"
