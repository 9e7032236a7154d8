#!/usr/bin/env bash
# Is this machine, fresh from `vagrant up`, able to do what the README says? Run it in the guest:
#   vagrant ssh -c 'sudo bash /vagrant/scripts/check_guest.sh'
# Judges functions, not timing: an emulated processor may be slow.
set -uo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ ! -f /etc/profile.d/fluxbed.sh ] || . /etc/profile.d/fluxbed.sh
VENV=${FLUXBED_VENV:-$ROOT/.venv}
OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT
failed=0
cd "$ROOT" || exit 4

check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$OUT/log" 2>&1; then printf 'ok    %s\n' "$name"; else
    printf 'FAIL  %s\n' "$name"
    sed 's/^/      /' "$OUT/log" | tail -25
    failed=1
  fi
}

trace=examples/traces/llama-tp4-dp2
fabric=rails,planes=2,rate=800Gbps,delay=100us
check "root" test "$(id -u)" = 0
check "mnexec and tcpdump" command -v mnexec tcpdump
check "mininet, numba and numpy" "$VENV/bin/python" -c 'import mininet.net, numba, numpy'
check "no Open vSwitch was needed" sh -c '! command -v ovs-vsctl'
check "fluxbed inspect" "$VENV/bin/fluxbed" inspect "$trace"
check "fluxbed simulate" "$VENV/bin/fluxbed" simulate "$trace" -t "$fabric" -s flux -o "$OUT/simulated"
check "mn --custom" "$VENV/bin/mn" --custom testbed/mn.py --topo rails,nodes=4,planes=2 --test pingall
if chrt --fifo 1 true 2>/dev/null; then
  check "fluxbed doctor" "$VENV/bin/fluxbed" doctor
  check "fluxbed run" "$VENV/bin/fluxbed" run "$trace" -t "$fabric" -s flux -o "$OUT/measured"
  check "fluxbed check" "$VENV/bin/fluxbed" check "$OUT/measured"
else # a container may not: a virtual machine always does
  printf 'skip  fluxbed doctor, run and check: this guest allows no real-time scheduling\n'
fi
check "nothing left behind" sh -c '! ip -o link | grep -q veth'
[ $failed = 0 ] && echo "this machine does what the README says"
exit $failed
