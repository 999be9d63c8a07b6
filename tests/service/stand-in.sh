#!/usr/bin/env bash
# `--service` beside a stand-in for systemctl, which only records how it is called. Run by tests/service.rs as root, in a mount namespace of
# its own: stand-in.sh PROGRAM
set -euo pipefail
program=$1
trap 'echo "FAILED at line $LINENO"' ERR
bin=/usr/local/bin units=/etc/systemd/system called=/run/called
work=$(mktemp -d) && mount -t tmpfs tmpfs "$work" && touch "$work/loadline" && mount --bind "$program" "$work/loadline"
for folder in "$bin" /run "$units" /var/lib; do mount -t tmpfs tmpfs "$folder"; done
# Reached by its own path, which is not hidden from services.
touch "$bin/loadline" && mount --bind "$work/loadline" "$bin/loadline"
cat >"$bin/systemctl" <<'STAND_IN'
#!/bin/sh
echo "$*" >>/run/called
[ ! -e /run/fails ]
STAND_IN
chmod 755 "$bin/systemctl"
PATH=$bin:$PATH
# refused CODE TEXT COMMAND...
refused() {
    local code=$1 text=$2 said got=0
    shift 2
    said=$("$@" 2>&1) || got=$?
    [[ $got == "$code" && $said == *"$text"* ]] || { echo "exit code $got of $*: $said"; return 1; }
}
join() { loadline san join /var/lib/cluster.db --name "$1" --folder "/var/lib/$1" --address "$2" --service; }
loadline san init /var/lib/cluster.db

# Without systemd nothing is written, and the node does not join.
refused 2 "systemd does not run on this host" join node-1 127.0.0.1
[[ ! -e /var/lib/node-1 && ! -e $called && -z $(ls -A "$units") ]]

mkdir -p /run/systemd/system
join node-1 127.0.0.1
[[ $(<"$called") == $'daemon-reload\nenable --now loadline-node@node-1.service' ]]
unit=$units/loadline-node@node-1.service
grep -qx "ExecStart=/usr/local/bin/loadline san serve --config /var/lib/node-1/node.toml" "$unit"
[[ -z $(systemd-analyze verify --man=no "$unit" 2>&1) ]]
systemd-analyze security --no-pager --offline=true --threshold=30 "$unit" >/dev/null

# One that this command has written is written again; another one stays.
echo "# changed" >>"$unit"
loadline san service --config /var/lib/node-1/node.toml
! grep -q "^# changed" "$unit" || false
echo "# of its administrator" >"$units/loadline-node@node-2.service"
refused 2 "was not written by this command" join node-2 127.0.0.2
[[ $(<"$units/loadline-node@node-2.service") == "# of its administrator" && ! -e /var/lib/node-2 ]]

# The node has joined, and the command says how to go on.
touch /run/fails
refused 1 "run 'loadline san service'" join node-3 127.0.0.3
[[ -e /var/lib/node-3/node.toml ]]
rm /run/fails
loadline san service --config /var/lib/node-3/node.toml

echo "all is well"
