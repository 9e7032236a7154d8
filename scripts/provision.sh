#!/usr/bin/env bash
# Make a bare Debian 12 or 13 or Ubuntu 24.04 machine ready for fluxbed. Safe to repeat: a second run changes nothing
# and takes seconds. Asks nothing. As root, or as a user whose sudo needs no password, it installs system packages;
# without either it installs the Python part and says what is missing.
#
#   FLUXBED_VENV           where the virtual environment goes     (default: .venv in the checkout)
#   FLUXBED_EXTRA_CA_FILE  PEM file of extra authorities to trust (networks that inspect TLS)
#   FLUXBED_APT_MIRROR     a Debian mirror to use instead of the configured ones
set -euo pipefail
umask 022
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH="$PATH:/usr/sbin:/sbin" # Debian gives users no sbin
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ -f "$ROOT/fluxbed.py" ] || ROOT=/vagrant # Vagrant copies this file elsewhere before it runs it
VENV=${FLUXBED_VENV:-$ROOT/.venv}
PACKAGES=(ca-certificates ethtool iproute2 iputils-ping kmod make mininet procps python3 python3-venv tcpdump util-linux)
MODULES=(veth sch_ingress cls_bpf)

say() { printf '[provision +%ss] %s\n' "$SECONDS" "$*" >&2; }
die() { printf 'provision: %s\n' "$*" >&2; exit 4; }

BEAT=
trap '[ -z "$BEAT" ] || kill "$BEAT" 2>/dev/null' EXIT
patiently() { # WHAT LOG COMMAND...: run it with its chatter in LOG, and say every 15 s how far it is
  local what=$1 log=$2 code=0
  shift 2
  say "$what"
  # in the background such a loop does not hear Ctrl-C: it ends with this script
  while sleep 15 </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    say "... still at it  $(grep -oE '^ *(Collecting|Downloading|Building|Installing) .{1,70}' "$log" 2>/dev/null | tail -n 1)"
  done &
  BEAT=$!
  "$@" >"$log" || code=$?
  kill "$BEAT" 2>/dev/null
  wait "$BEAT" 2>/dev/null || true
  BEAT=
  return $code
}

PASSED_ON=() # sudo drops these
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  [ -z "${!name:-}" ] || PASSED_ON+=("$name=${!name}")
done
SUDO=()
PRIVILEGED=1
if [ "$(id -u)" != 0 ]; then
  if sudo -n true 2>/dev/null; then SUDO=(sudo -n); else PRIVILEGED=; fi
fi

trust_extra_authorities() {
  local pem=${FLUXBED_EXTRA_CA_FILE:-} directory=/usr/local/share/ca-certificates/fluxbed sum
  [ -s "$pem" ] || return 0
  [ -n "$PRIVILEGED" ] || { export PIP_CERT=${PIP_CERT:-$pem}; return 0; }
  sum=$(sha256sum <"$pem" | cut -d' ' -f1)
  [ "$(cat "$directory/.sum" 2>/dev/null)" = "$sum" ] && return 0
  say "trusting the authorities in $pem"
  "${SUDO[@]}" install -d "$directory"
  "${SUDO[@]}" find "$directory" -name '*.crt' -delete # update-ca-certificates wants one certificate a file
  "${SUDO[@]}" awk -v directory="$directory" '
    /BEGIN CERT/ {file = sprintf("%s/extra-%03d.crt", directory, ++n)}
    file {print > file}
    /END CERT/ {close(file); file = ""}' "$pem"
  # absent on a bare machine: then installing ca-certificates below picks them up
  if command -v update-ca-certificates >/dev/null; then "${SUDO[@]}" update-ca-certificates >/dev/null 2>&1; fi
  printf '%s\n' "$sum" | "${SUDO[@]}" tee "$directory/.sum" >/dev/null
}

missing_packages() {
  local package
  for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

install_packages() {
  command -v dpkg-query >/dev/null || { say "no dpkg here: install the equivalents of ${PACKAGES[*]} yourself"; return 0; }
  local missing
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ -z "$PRIVILEGED" ]; then
    say "missing system packages, and neither root nor a sudo without password to install them: ${missing[*]}"
    return 0
  fi
  # jobs of a fresh machine hold dpkg's lock: wait for it
  local apt=("${SUDO[@]}" env "${PASSED_ON[@]}" DEBIAN_FRONTEND=noninteractive apt-get -q
    -o DPkg::Lock::Timeout=900 -o Acquire::Retries=5 -o Dpkg::Use-Pty=0)
  if [ -n "${FLUXBED_APT_MIRROR:-}" ]; then
    local suite
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    printf 'deb %s %s main\n' "$FLUXBED_APT_MIRROR" "$suite" "$FLUXBED_APT_MIRROR" "$suite-updates" |
      "${SUDO[@]}" tee /etc/apt/sources.list >/dev/null
  fi
  say "installing ${missing[*]}"
  "${apt[@]}" update >&2 || die "apt-get update failed: check this machine's network and its apt sources, then repeat"
  # no Open vSwitch: the emulated fabric brings its own switch
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get could not install ${missing[*]}: see its message above, then repeat"
}

load_modules() {
  [ -n "$PRIVILEGED" ] && command -v modprobe >/dev/null || return 0
  local module # built in or loaded on demand on most kernels: `fluxbed doctor` says what is really missing
  for module in "${MODULES[@]}"; do "${SUDO[@]}" modprobe -q "$module" 2>/dev/null || true; done
}

choose_python() {
  local candidate
  for candidate in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
    command -v "$candidate" >/dev/null || continue
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  die "no Python from 3.11 to 3.14 with venv here: install python3 and python3-venv, then repeat"
}

install_python_part() {
  [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c '' 2>/dev/null || {
    local python
    python=$(choose_python)
    say "making $VENV with $python"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
  }
  local stamp
  stamp=$({ echo "$ROOT"; cat "$ROOT/pyproject.toml" "$ROOT/scripts/constraints.txt" "$ROOT/scripts/provision.sh"; } | sha256sum)
  [ "$(cat "$VENV/.fluxbed-stamp" 2>/dev/null)" = "$stamp" ] && return 0
  [ -w "$VENV" ] || die "$VENV is out of date and $(stat -c %U "$VENV")'s: repeat this as that user, or set FLUXBED_VENV"
  if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
    export PIP_CERT=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
  fi
  local pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --no-color
    --progress-bar off --retries 5 --timeout 120 --constraint "$ROOT/scripts/constraints.txt")
  local extras=dev,exact,cluster,docs
  local log=$VENV/.fluxbed-pip.log
  patiently "installing setuptools, to see that the package index answers" "$log" "${pip[@]}" setuptools ||
    die "pip could not reach its package index: check the network (PIP_INDEX_URL, https_proxy), then repeat"
  if [ "$(uname -m)" = x86_64 ] && ! grep -qw avx2 /proc/cpuinfo; then # polars is compiled for AVX2 by default
    patiently "installing polars for a processor without AVX2" "$log" "${pip[@]}" 'polars[rtcompat]' ||
      die "pip could not install polars for this processor: see its message above"
  fi
  # in the environment's own setuptools: nothing is fetched that constraints.txt does not name
  patiently "installing about a hundred Python packages: minutes, once" "$log" \
    "${pip[@]}" --no-build-isolation --editable "$ROOT[$extras]" ||
    die "pip could not install fluxbed: see its message above"
  printf '%s\n' "$stamp" >"$VENV/.fluxbed-stamp"
}

compile_kernels() {
  local where='import scheduler.kernel as k; print(k.cache_directory() or "")'
  local roots=("${SUDO[@]}" "$VENV/bin/python" -c "$where") from to
  cd /
  from=$("$VENV/bin/python" -c "$where") || die "fluxbed does not start: see the message above"
  if [ -z "$from" ] || [ ! -e "$from/complete" ]; then
    patiently "compiling what has to be fast: two or three minutes, once" /dev/null \
      "$VENV/bin/python" -c 'import scheduler.kernel as k; k.compile_all()' ||
      die "the kernels do not compile: see the message above"
  fi
  [ ${#SUDO[@]} -gt 0 ] && [ -n "$from" ] || return 0
  to=$("${roots[@]}") || die "root cannot use $VENV: see the message above"
  # root, who runs this environment too, need not compile the same again
  [ -z "$to" ] || "${SUDO[@]}" test -e "$to/complete" || "${SUDO[@]}" cp -r "$from/." "$to/"
}

trust_extra_authorities
install_packages
load_modules
install_python_part
compile_kernels
say "ready: $VENV/bin/fluxbed"
