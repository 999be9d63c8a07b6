#!/usr/bin/env bash
# In place of systemd on a host of a test: runs ExecStart of a unit as its user, in the background, and again when it ends if the unit
# says so. As systemd, it uses a unit as it was when it was loaded, and starts with the host only what was enabled.
set -euo pipefail
loaded=/run/systemd/loaded wanted=/etc/systemd/system/multi-user.target.wants
mkdir -p "$loaded"

load() {
    rm -f "$loaded"/*
    for file in /etc/systemd/packages/*.service /etc/systemd/system/*.service; do
        [[ ! -f $file ]] || cp "$file" "$loaded"
    done
}
# value UNIT KEY DEFAULT
value() {
    local found
    found=$(sed -n "s/^$2=//p" "$loaded/$1.service" | tail -n 1)
    echo "${found:-$3}"
}
known() {
    [[ -e $loaded/$1.service ]] || load
    [[ -e $loaded/$1.service ]] || { echo "systemctl: there is no unit $1" >&2; exit 5; }
}
runs() { [[ -e /run/$1.unit ]] && kill -0 "$(<"/run/$1.unit")" 2>/dev/null; }

# supervise UNIT: what systemd does for a service.
supervise() {
    local user program
    user=$(value "$1" User root)
    read -ra program <<<"$(value "$1" ExecStart false)"
    # A container may not raise its limit.
    ulimit -n "$(value "$1" LimitNOFILE 1024)" 2>/dev/null || ulimit -Sn hard
    trap 'kill -TERM "$child"; stopped=1' TERM
    while [[ ! ${stopped:-} ]]; do
        setpriv --reuid "$user" --regid "$user" --init-groups "${program[@]}" &
        child=$!
        wait "$child" || true
        # The first wait ends with the signal, the second with the program.
        wait "$child" || true
        [[ $(value "$1" Restart no) = always ]] || break
        [[ ${stopped:-} ]] || sleep "$(value "$1" RestartSec 0.1)"
    done
}
start() {
    known "$1"
    runs "$1" && return
    setsid "$0" supervise "$1" </dev/null >>"/run/host/log/$1" 2>&1 &
    echo "$!" >"/run/$1.unit"
}
stop() {
    known "$1"
    runs "$1" || return 0
    kill -TERM "$(<"/run/$1.unit")"
    for ((tries = 0; tries < 900; tries++)); do
        runs "$1" || return 0
        sleep 0.1
    done
    echo "systemctl: $1 does not end" >&2
    exit 1
}

command=$1 now=
shift
[[ ${1:-} != --now ]] || { now=1 && shift; }
case $command in
boot)
    load
    for unit in "$wanted"/*.service; do
        [[ ! -e $unit ]] || start "$(basename "$unit" .service)"
    done
    ;;
daemon-reload) load ;;
supervise) supervise "$1" ;;
*)
    for unit in "${@%.service}"; do
        case $command in
        enable)
            known "$unit"
            mkdir -p "$wanted" && ln -sf "/etc/systemd/system/$unit.service" "$wanted/"
            [[ ! $now ]] || start "$unit"
            ;;
        disable)
            rm -f "$wanted/$unit.service"
            [[ ! $now ]] || stop "$unit"
            ;;
        start) start "$unit" ;;
        stop) stop "$unit" ;;
        restart) stop "$unit" && start "$unit" ;;
        *) echo "systemctl: a host of a test has no '$command'" >&2 && exit 1 ;;
        esac
    done
    ;;
esac
