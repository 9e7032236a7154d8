#!/usr/bin/env bash
# Everything `make test` checks: style, types, import direction, all tests and doctests. As root, all but the fabric
# tests run as an unprivileged user, and the fabric tests, which build networks, as root.
set -uo pipefail
umask 022
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLUXBED_VENV:-$ROOT/.venv}
NOBODY=65534
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/fluxbed-test.XXXXXX") || exit 4
chmod 755 "$SCRATCH"
trap 'rm -rf --one-file-system "$SCRATCH"' EXIT
failed=()

check() { # NAME COMMAND...: run it, remember whether it passed
  local name=$1 began=$SECONDS
  shift
  printf '\n=== %s\n' "$name"
  if "$@"; then printf '=== %s: ok, %s s\n' "$name" $((SECONDS - began)); else
    printf '=== %s: FAILED, %s s\n' "$name" $((SECONDS - began))
    failed+=("$name")
  fi
}

# Tests see a clean environment: caches in scratch, captured traces where this checkout would look for them.
traces=${FLUXBED_TRACES:-$(cd "$ROOT/.." && pwd)/shared/traces}
settings=(PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY="$SCRATCH/hypothesis" FLUXBED_TRACES="$traces" LC_ALL=C.UTF-8)
sources=(topologies scheduler testbed fluxbed.py)

pytest_as_nobody() { # where they can read this checkout and its Python in place, else from a copy
  local drop=(setpriv --reuid "$NOBODY" --regid "$NOBODY" --clear-groups --no-new-privs)
  local checkout=$ROOT python=$VENV/bin/python
  install -d -o "$NOBODY" -g "$NOBODY" "$SCRATCH"/nobody/{home,cache,hypothesis,tmp}
  local own=("${settings[@]}" HOME="$SCRATCH/nobody/home" TMPDIR="$SCRATCH/nobody/tmp" FLUXBED_CACHE_DIR="$SCRATCH/nobody/cache"
    HYPOTHESIS_STORAGE_DIRECTORY="$SCRATCH/nobody/hypothesis")
  if "${drop[@]}" sh -c 'cat "$0" && "$1" -c ""' "$ROOT/pyproject.toml" "$python" >/dev/null 2>&1; then
    local compiled
    compiled=$("$python" -c 'import fluxbed, scheduler.kernel; print(scheduler.kernel.cache_directory() or "")')
    if [ -n "$compiled" ]; then # what root compiled, unprivileged users need not compile again
      install -d -o "$NOBODY" -g "$NOBODY" "$SCRATCH/nobody/cache/fluxbed"
      cp -rp "$compiled" "$SCRATCH/nobody/cache/fluxbed/" && chown -R "$NOBODY:$NOBODY" "$SCRATCH/nobody/cache"
    fi
    (cd "$ROOT" && "${drop[@]}" env "${own[@]}" "$python" -m pytest "$@")
    return
  fi
  checkout=$SCRATCH/checkout
  mkdir -p "$checkout" "$SCRATCH/venv"
  tar -C "$ROOT" --exclude=./.venv --exclude=./.git --exclude=./.vagrant --exclude=./runs -cf - . | tar -C "$checkout" --no-same-owner -xf -
  chmod -R a+rX "$checkout"
  own+=(PYTHONPATH="$checkout")
  unshare --mount --propagation private sh -ec '
    mount --bind "$1" "$2/venv"
    cd "$2/checkout"
    shift 2
    exec "$@"' sh "$VENV" "$SCRATCH" "${drop[@]}" env "${own[@]}" "$SCRATCH/venv/bin/python" -m pytest "$@"
}

pytest_here() { (cd "$ROOT" && env "${settings[@]}" "$VENV/bin/python" -m pytest "$@"); }

cd "$ROOT" || exit 4
run="$VENV/bin"
check "ruff check" "$run/ruff" check --cache-dir "$SCRATCH/ruff" .
check "ruff format" "$run/ruff" format --check --cache-dir "$SCRATCH/ruff" .
check "mypy --strict" "$run/mypy" --cache-dir "$SCRATCH/mypy"
check "import direction" "$run/lint-imports" --no-cache
if [ "$(id -u)" = 0 ]; then
  check "tests as an unprivileged user" pytest_as_nobody --doctest-modules --ignore=tests/fabric tests "${sources[@]}"
  check "fabric tests as root" pytest_here tests/fabric
else
  check "tests" pytest_here --doctest-modules --ignore=tests/fabric tests "${sources[@]}"
  if sudo -n true 2>/dev/null; then
    check "fabric tests as root" sudo -n env "${settings[@]}" "$VENV/bin/python" -m pytest "$ROOT/tests/fabric"
  else
    printf '\n=== fabric tests: not run, they build networks and need root\n'
  fi
fi

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nmake test: failed after %s s:' "$SECONDS"
  printf ' [%s]' "${failed[@]}"
  printf '\n'
  exit 1
fi
printf '\nmake test: all passed in %s s\n' "$SECONDS"
