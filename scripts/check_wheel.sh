#!/usr/bin/env bash
# Does what is published work where it is installed? Builds sdist and wheel, checks their metadata, installs the wheel
# into a fresh environment of each Python with the lowest declared and with the newest versions of its dependencies, and
# there plans, simulates, checks, reports and converts: outside this checkout, unprivileged, without Mininet's tools.
#
#   scripts/check_wheel.sh [PYTHON...]     (default: every python3.11 to python3.14 on PATH)
#   FLUXBED_RESOLUTIONS=newest             only the newest versions  (default: "lowest newest")
set -uo pipefail
umask 022
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLUXBED_VENV:-$ROOT/.venv}
NOBODY=65534
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/fluxbed-wheel.XXXXXX") || exit 4
chmod 755 "$SCRATCH"
trap 'rm -rf --one-file-system "$SCRATCH"' EXIT
read -ra resolutions <<<"${FLUXBED_RESOLUTIONS:-lowest newest}"
failed=0

say() { printf '[wheel +%ss] %s\n' "$SECONDS" "$*"; }
die() { printf 'check_wheel: %s\n' "$*" >&2; exit 1; }

pythons=("$@")
if [ $# = 0 ]; then
  for name in python3.11 python3.12 python3.13 python3.14; do
    ! "$name" -c '' 2>/dev/null || pythons+=("$name")
  done
fi
[ ${#pythons[@]} -gt 0 ] || die "no Python from 3.11 to 3.14 is on PATH: name one"

# a clean copy: nothing that lies about in a checkout may help
mkdir "$SCRATCH/source" "$SCRATCH/dist"
git -C "$ROOT" ls-files -z --cached --others --exclude-standard |
  (cd "$ROOT" && xargs -0 sh -c 'for f; do [ ! -e "$f" ] || printf "%s\0" "$f"; done' sh) |
  tar -C "$ROOT" --null -T - -cf - | tar -C "$SCRATCH/source" -xf -
python3 -m venv "$SCRATCH/tools" && "$SCRATCH/tools/bin/pip" install -q -q --disable-pip-version-check build twine packaging ||
  die "build and twine cannot be installed: see the message above"
"$SCRATCH/tools/bin/python" -m build --outdir "$SCRATCH/dist" "$SCRATCH/source" >"$SCRATCH/log" 2>&1 || {
  tail -n 30 "$SCRATCH/log"
  die "python -m build fails"
}
"$SCRATCH/tools/bin/twine" check --strict "$SCRATCH"/dist/* || die "twine finds fault with the metadata"
wheel=$(echo "$SCRATCH"/dist/*.whl)
say "built $(cd "$SCRATCH/dist" && echo *)"

lowest() { # PYTHON: each dependency it needs, at the lowest version declared for it
  "$SCRATCH/tools/bin/python" - "$ROOT/pyproject.toml" "$("$1" -c 'import platform; print(platform.python_version())')" <<'PY'
import sys, tomllib
from packaging.requirements import Requirement
path, version = sys.argv[1:]
here = {"python_version": ".".join(version.split(".")[:2]), "python_full_version": version}
with open(path, "rb") as stream:
    declared = tomllib.load(stream)["project"]["dependencies"]
for requirement in map(Requirement, declared):
    if requirement.marker is None or requirement.marker.evaluate(here):
        (floor,) = (one.version for one in requirement.specifier if one.operator == ">=")
        print(f"{requirement.name}=={floor}")
PY
}

smoke() { # ENVIRONMENT WORK: as nobody where we are root, if nobody may start this Python
  local as=()
  if [ "$(id -u)" = 0 ]; then
    as=(setpriv --reuid "$NOBODY" --regid "$NOBODY" --clear-groups --no-new-privs)
    # through env, as below: setpriv itself may still have a capability to read what nobody may not
    if "${as[@]}" env "$1/bin/python" -c '' 2>/dev/null; then chown -R "$NOBODY:$NOBODY" "$2"; else
      say "this Python lies where only root reads: run as root, without what makes root one"
      as=(setpriv --bounding-set -all --no-new-privs)
    fi
  fi
  (cd "$2" && "${as[@]}" env -i PATH="$1/bin" HOME="$2" TMPDIR="$2" LC_ALL=C.UTF-8 "$1/bin/python" -I - <<'PY'
import json, subprocess, sys
from pathlib import Path
import importlib.metadata
import fluxbed
assert Path(fluxbed.__file__).is_relative_to(sys.prefix), fluxbed.__file__
assert importlib.metadata.version("fluxbed") == fluxbed.__version__
FABRIC = "rails,planes=2,rate=400Gbps,delay=20us"
def run(*words: str) -> str:
    done = subprocess.run(["fluxbed", *words], capture_output=True, text=True)
    if done.returncode or done.stderr.count("Warning"):
        sys.exit(f"fluxbed {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
assert run("--version").split()[1] == fluxbed.__version__
run("synth", "llama3-8b", "--tp", "2", "--dp", "2", "--layers", "1", "--mfu", "0.5", "-o", "step.workload.jsonl.zst")
assert "all_gather" in run("inspect", "step.workload.jsonl.zst")
run("expand", "step.workload.jsonl.zst", "-t", FABRIC, "-o", "messages.parquet")
(plan,) = json.loads(run("plan", "step.workload.jsonl.zst", "-t", FABRIC, "-o", "plan.json", "--format", "json"))
run("check", "plan.json", "step.workload.jsonl.zst")
rows = json.loads(run("simulate", "step.workload.jsonl.zst", "-t", FABRIC, "-s", "rotor-direct", "-p", "plan.json",
                      "-n", "4", "--skip", "1", "-o", "runs", "--format", "json"))
assert rows[0]["iteration_ns"] > rows[1]["iteration_ns"] >= plan["lower_bound_ns"], rows
for row in rows:
    run("check", row["run"])
run("report", "runs")
run("report", "runs", "--format", "md")
run("compare", "runs")
run("convert", "step.workload.jsonl.zst", "--to", "chakra", "-o", "chakra")
run("convert", "chakra", "-o", "back.workload.jsonl.zst")
assert Path("back.workload.jsonl.zst").read_bytes() == Path("step.workload.jsonl.zst").read_bytes()
run("convert", "step.workload.jsonl.zst", "--to", "goal", "-o", "step.goal")
Path("grid.toml").write_text("""format = "fluxbed-experiment"
version = 1
title = "Flux beside a rotor"
schedulers = ["flux", "rotor-direct"]
[workload]
path = "step.workload.jsonl.zst"
[topology]
name = "rails"
delay = ["10us", "100us"]
""")
run("sweep", "grid.toml", "-o", "grid", "-j", "1")
run("figure", "grid", "-x", "topology.delay", "-y", "iteration_ns", "-o", "figure.pdf")
assert "flux" in run("schedulers") and "rails" in run("topologies")
PY
  )
}

for python in "${pythons[@]}"; do
  version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || die "$python does not start"
  for resolution in "${resolutions[@]}"; do
    environment=$SCRATCH/$version-$resolution
    "$python" -m venv "$environment" || die "$python has no venv"
    constraints=()
    if [ "$resolution" = lowest ]; then
      lowest "$python" >"$environment.txt" || die "a dependency declares no lowest version"
      constraints=(--constraint "$environment.txt")
    fi
    # binaries only: what needs a compiler is no lowest version a user could have; Mininet is Python alone
    if ! "$environment/bin/pip" install -q -q --disable-pip-version-check --only-binary :all: --no-binary mininet \
      "${constraints[@]}" "$wheel" >"$SCRATCH/log" 2>&1; then
      tail -n 12 "$SCRATCH/log"
      say "FAIL  Python $version, $resolution: it cannot be installed"
      failed=1
      continue
    fi
    mkdir "$environment.work"
    if smoke "$environment" "$environment.work"; then
      say "ok    Python $version, $resolution: $("$environment/bin/pip" list --format freeze 2>/dev/null |
        grep -E '^(numba|numpy|polars|click|msgspec|protobuf)=' | tr '\n' ' ')"
    else
      say "FAIL  Python $version, $resolution"
      failed=1
    fi
    rm -rf "$environment" "$environment.work"
  done
done
exit $failed
