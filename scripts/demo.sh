#!/usr/bin/env bash
# The whole path on the bundled trace: captured training steps -> schedule -> emulated fabric -> predicted against
# measured. Without root there are no emulated hosts: the predicted half is shown and the reason given.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLUXBED_VENV:-$ROOT/.venv}
TRACE=examples/traces/llama-tp4-dp2
FABRIC=${FLUXBED_DEMO_FABRIC:-rails,planes=2,rate=800Gbps,delay=10us}
SCHEDULERS=(-s flux -s rotor-direct -s rotor-direct-tuned -s packet-ideal)
# every rank sends to every other of its group: three and one peers over two ports, so circuits must change
EXPANSION=(--collective all_gather=direct --collective reduce_scatter=direct --collective all_reduce=direct)
cd "$ROOT"

scale=$("$VENV/bin/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["compute_scale"])' "$TRACE/meta.json")
arguments=("$TRACE" -t "$FABRIC" "${SCHEDULERS[@]}" "${EXPANSION[@]}" --compute-scale "$scale" "$@")
as_root=()
if [ "$(id -u)" != 0 ]; then
  if sudo -n true 2>/dev/null; then as_root=(sudo -n); else
    echo "demo: measuring needs root, to make network namespaces; this is the predicted half (sudo make demo shows both)" >&2
    runs=runs
    [ -w . ] && [ ! -e runs -o -w runs ] || runs=${TMPDIR:-/tmp}
    runs=$runs/demo-$(date -u +%Y%m%dT%H%M%SZ)
    "$VENV/bin/fluxbed" simulate "${arguments[@]}" -o "$runs" >/dev/null
    exec "$VENV/bin/python" scripts/predicted_table.py "$runs"
  fi
fi
exec "${as_root[@]}" "$VENV/bin/fluxbed" run "${arguments[@]}"
