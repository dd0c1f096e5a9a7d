#!/usr/bin/env bash
# All checks from nothing: lint, types, tests. Arguments go to pytest.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

ruff check .
ruff format --check .
mypy
python -m pytest "$@"
