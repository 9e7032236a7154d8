#!/usr/bin/env bash
# Is this machine, fresh from `vagrant up`, able to do what the README says? Run it in the guest:
#   vagrant ssh -c 'sudo bash /vagrant/scripts/check_guest.sh'
# Judges functions, not timing: where a processor is emulated or shared, runs are late.
set -uo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ ! -f /etc/profile.d/fluxbed.sh ] || . /etc/profile.d/fluxbed.sh
VENV=${FLUXBED_VENV:-$ROOT/.venv}
OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT
failed=0
cd "$ROOT" || exit 4

check() { # NAME COMMAND...: what it says is kept in $OUT/log, and shown when it fails
  local name=$1 began=$SECONDS
  shift
  if "$@" >"$OUT/log" 2>&1; then printf 'ok    %s, %s s\n' "$name" $((SECONDS - began)); else
    printf 'FAIL  %s, %s s\n' "$name" $((SECONDS - began))
    show 25
    failed=1
  fi
}

show() { tail -n "$1" "$OUT/log" | sed 's/^/      /'; }

fluxbed() { "$VENV/bin/fluxbed" "$@"; }

json() { "$VENV/bin/python" -c "import json, sys; found = json.load(sys.stdin); print($1)"; }

trace=examples/traces/llama-tp4-dp2
scale=$(json 'found["compute_scale"]' <"$trace/meta.json")
job=("$trace" -t rails,planes=2,rate=800Gbps,delay=100us -s flux --compute-scale "$scale")

pings_over_circuits() {
  "$VENV/bin/mn" --custom testbed/mn.py --topo rails,nodes=4,planes=2 --test pingall 2>&1 | tee "$OUT/pings"
  [ "$(grep -cE '^(h0 -> h1 X X|h1 -> h0 X X|h2 -> X X h3|h3 -> X X h2)' "$OUT/pings")" = 4 ]
}

lacks_only_realtime() {
  local rc=0 missing
  fluxbed doctor --format json >"$OUT/doctor.json" || rc=$?
  missing=$(json '*(one["name"] for one in found if one["state"] == "missing")' <"$OUT/doctor.json")
  echo "exit code $rc, missing: $missing"
  [ $rc = 4 ] && [ "$missing" = SCHED_FIFO ]
}

says_why_it_cannot_run() {
  local rc=0
  fluxbed run "${job[@]}" -o "$OUT/measured" || rc=$?
  [ $rc = 4 ] && [ ! -e "$OUT/measured" ] && grep -q 'the emulated fabric needs SCHED_FIFO' "$OUT/log"
}

run_slower_if_need_be() {
  fluxbed run "${job[@]}" -o "$OUT/measured" && return
  local slower
  fluxbed run "${job[@]}" --dry-run --format json -o "$OUT/dry" >"$OUT/dry.json" || return 1
  slower=$(json '4 * found[0]["dilation"]' <"$OUT/dry.json")
  echo "this machine is too late for the dilation chosen for it: once more, $slower times slower than the fabric"
  rm -rf "$OUT/measured"
  fluxbed run "${job[@]}" --dilation "$slower" -o "$OUT/measured"
}

arrived_exactly_once() {
  local summary
  summary=$(find "$OUT/measured" -name summary.json | grep .) || return 1
  json '" ".join(f"{name}={found[name]}" for name in ("status", "lost_bytes", "drops"))' <"$summary"
  [ "$(json '(found["status"], found["lost_bytes"])' <"$summary")" = "('ok', 0)" ]
}

printf 'kernel %s, %s processors, %s\n' "$(uname -r)" "$(nproc)" "$("$VENV/bin/python" --version)"
check "root" test "$(id -u)" = 0
check "mnexec and tcpdump" command -v mnexec tcpdump
check "mininet, numba and numpy" "$VENV/bin/python" -c 'import mininet.net, numba, numpy'
check "no Open vSwitch was needed" sh -c '! command -v ovs-vsctl'
check "fluxbed inspect" fluxbed inspect "$trace"
check "fluxbed simulate" fluxbed simulate "${job[@]}" -o "$OUT/simulated"
check "fluxbed check of the simulation" fluxbed check "$OUT/simulated"
check "mn --custom: pings where there are circuits, and only there" pings_over_circuits
if chrt --fifo 1 true 2>/dev/null; then
  check "fluxbed doctor" fluxbed doctor
  check "fluxbed run" run_slower_if_need_be
  show 12
  check "every byte arrived exactly once" arrived_exactly_once
  show 1
  check "fluxbed check of the run" fluxbed check "$OUT/measured"
else # a container whose host lends it no real-time share; a virtual machine has its own
  check "fluxbed doctor: all but SCHED_FIFO is here" lacks_only_realtime
  check "fluxbed run: refuses in one sentence" says_why_it_cannot_run
  printf 'skip  fluxbed run and check of the run: measuring needs SCHED_FIFO, and this guest may not use it\n'
fi
check "nothing left behind" sh -c '! ip -o link | grep -q veth'
if [ $failed = 0 ]; then echo "this machine does what the README says"; fi
exit $failed
