#!/usr/bin/env bash
# Runs the tests with the lowest versions of its dependencies that pyproject.toml allows, in an environment of their own.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=.venv-lowest
if [ ! -x "$environment/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$environment"
fi
. "$environment/bin/activate"
python - << 'END' > "$environment/lowest.txt"
import re, tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = [one for name in ("frames", "plots", "torchcodec") for one in project["optional-dependencies"][name]]
lowest = dict(one.split(">=") for one in project["dependencies"] + extras)
for line in Path("constraints.txt").read_text().splitlines():
    name, _, version = line.partition("==")
    if version and not re.match("cuda|nvidia|triton|pydantic_core|setuptools", name):  # others pin these
        lowest.setdefault(re.sub("_", "-", name).lower(), version)
print(*map("==".join, lowest.items()), sep="\n")
END
stamp="$environment/installed"
wanted=$(cat pyproject.toml constraints.txt | cksum)
if [ "$(cat "$stamp" 2> /dev/null)" != "$wanted" ]; then
    python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
    bash ci/install.sh --constraint "$environment/lowest.txt" \
        --editable ".[frames,plots,torchcodec]" --group test
    python -m pip uninstall --quiet --yes pyarrow # which needs a later NumPy
    echo "$wanted" > "$stamp"
fi
python -m pytest "$@"
