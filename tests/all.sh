#!/usr/bin/env bash
# All tests, for `./dev test` without filters. Most test programs mostly wait: for leases, for runs of a fixed length, for disks. So
# the programs named below run beside the others, one after another, while cargo runs the others as always.
#
#   tests/all.sh                              runs all tests; the exit code is that of cargo
#   tests/all.sh LANE PROGRAM [ARGUMENT...]   what cargo runs a test program by: of the lane `beside` only those named below, of the
#                                             lane `others` only the rest
set -euo pipefail

# Programs that compute, whose steps have no time limits. They get what the others leave of the processors.
computes='
san/device/tests/full_log
san/model/tests/mutants
san/model/tests/whole
san/sim/tests/cuts
san/sim/tests/mutants
san/sim/tests/seeds
'
# Programs that use a third of a processor at most, on hosts and addresses of their own, with limits that a machine keeps which has much
# else to do.
waits='
tests/console_actions
tests/console_run
tests/console_runs
tests/identity
tests/monitoring
tests/proxmox
tests/service
tests/ssh
tests/ssh_san
tests/witness
'

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The path of a test program's source, without its ending: cargo starts a program in the folder of its package.
source_of() {
    local name=${1##*/} package=${PWD#"$here"/}
    name=${name%-*}
    [[ $package != app/cli ]] || package=
    printf '%s' "${package:+$package/}tests/$name"
}

if (($# > 0)); then
    lane=$1 source=$(source_of "$2")
    shift
    is_in() { [[ $1 == *$'\n'"$source"$'\n'* ]]; }
    if is_in "$computes$waits"; then
        [[ $lane == beside ]] || { echo "$source runs beside the others, and is shown after them" && exit; }
        # Where a container refuses this, it has the least priority that it may have.
        ! is_in "$computes" || chrt --idle --pid 0 $$ 2>/dev/null || renice 19 $$ >/dev/null
    elif [[ $lane == beside ]]; then
        exit
    fi
    # One that hangs is ended with its children, so that the others run.
    minutes=20
    ! is_in "$computes" || minutes=60
    set -m    # In a process group of its own, in which Ctrl-C can be caught. It reads nothing, so the terminal does not stop it.
    timeout --kill-after=10 "${minutes}m" "$@" </dev/null &
    set +m
    trap 'kill -- "-$!" 2>/dev/null || true' HUP INT QUIT TERM
    status=0
    wait "$!" || status=$?
    if ((SECONDS >= minutes * 60)); then
        sleep 5    # Programs that end in order have ended by then.
        kill -KILL -- "-$!" 2>/dev/null || true
        echo "tests: $source did not end within $minutes min" >&2
    fi
    exit "$status"
fi

cd "$here"
# cargo_test LANE [OPTION...]
cargo_test() {
    cargo --config "target.'cfg(all())'.runner = ['$here/tests/all.sh', '$1']" \
        test --locked --no-fail-fast --workspace "${@:2}"
}

cargo test --locked --workspace --no-run
# Clusters reserve the space of their volumes, and several run at once.
needed=10
free=$(($(df --output=avail --block-size=1G "${TMPDIR:-/tmp}" | tail -1)))
if ((free < needed)); then
    echo "tests: ${TMPDIR:-/tmp} has $free GiB free, and clusters of the tests need $needed GiB: make room, or set TMPDIR" >&2
    exit 2
fi
mapfile -t names < <(xargs -n1 basename <<<"$computes$waits" | sort -u)
shown=$(mktemp)
set -m    # In a process group of its own, so that it ends with this script.
cargo_test beside "${names[@]/#/--test=}" >"$shown" 2>&1 &
beside=$!
set +m
trap '[[ -z $beside ]] || kill -- "-$beside" 2>/dev/null || true; rm -f "$shown"' EXIT
trap 'exit 130' HUP INT QUIT TERM

status=0
cargo_test others || status=$?
wait "$beside" || status=$?
beside=
echo
echo "The programs that ran beside the others:"
cat "$shown"
exit "$status"
