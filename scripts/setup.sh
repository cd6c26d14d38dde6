#!/usr/bin/env bash
# Makes .venv with Python 3.12, the locked requirements and this package. Does nothing when nothing changed.
# `setup.sh sglang` adds SGLang.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
lock=requirements.lock
if [[ ${1:-} == sglang ]]; then
    scripts/setup.sh
    lock=requirements-sglang.lock
fi
stamp=$venv/.setup-stamp${1:+-$1}
wanted=$(cat pyproject.toml requirements.lock "$lock" scripts/setup.sh | cksum)

is_3_12() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1
}

# A version manager's python3.12 on PATH may be a stub that refuses to run, and uv does not look into pyenv's folder.
find_python() {
    local candidate found_by_uv
    found_by_uv=$(uv python find --no-python-downloads 3.12 2>/dev/null || true)
    for candidate in "${PYTHON:-}" python3.12 python3 python \
        "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.12*/bin/python3.12 "$found_by_uv"; do
        if [[ -n $candidate ]] && is_3_12 "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: wanted Python 3.12 with venv and ensurepip, found none on PATH, in pyenv or in uv;" \
        "install one (python3.12 and python3.12-venv, or uv python install 3.12) or name it: PYTHON=/path make setup" >&2
    return 1
}

if [[ -f $stamp && $(<"$stamp") == "$wanted" && -x $venv/bin/relax-lightning ]]; then
    exit 0
fi

if ! is_3_12 "$venv/bin/python"; then
    python=$(find_python)
    echo "setup: making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

rm -f "$stamp"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# As pip does: behind a proxy the certificates that count are those of the machine.
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
uv=("$venv/bin/python" -m uv pip install --python "$venv/bin/python")
echo "setup: installing the $(grep -c '==' "$lock") packages of $lock (gigabytes, minutes on a first run)"
"$venv/bin/python" -m pip install -qq "$(grep '^uv==' requirements.lock)"
"${uv[@]}" --quiet --requirement "$lock"
echo "setup: installing relax-lightning"
"${uv[@]}" --quiet --no-deps --editable .
echo "$wanted" >"$stamp"
echo "setup: done, $venv/bin/relax-lightning is ready"
