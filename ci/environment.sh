# Sourced by the other scripts: creates and activates their virtual environment.
# PYTHON chooses the interpreter (3.11.4 or later). To start over, delete .venv.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=.venv
if [ ! -x "$environment/bin/python" ]; then
    echo "Creating the virtual environment $environment (downloads torch, takes a few minutes)"
    "${PYTHON:-python3}" -m venv "$environment"
fi
. "$environment/bin/activate"
stamp="$environment/installed"
wanted=$(cat pyproject.toml constraints.txt | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
    bash ci/install.sh --constraint constraints.txt --editable . --group test --group lint --group docs
    echo "$wanted" > "$stamp"
fi
