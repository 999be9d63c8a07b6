#!/usr/bin/env bash
# What a host with systemd runs in tests/service.rs: nodes as services, from the first command to the last.
set -euo pipefail
unit=loadline-node@node-1

trap 'echo "FAILED at line $LINENO"; systemctl status --no-pager --lines=40 "loadline-node@*" || true; journalctl --no-pager -n 60 || true' ERR
check() { echo "check: $1"; }
# until WHAT COMMAND...: waits until the command succeeds.
until_() {
    local what=$1 tries
    shift
    for ((tries = 0; tries < 600; tries++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "not within a minute: $what"
    return 1
}
property() { systemctl show --property="$2" --value "$1"; }
# refused CODE TEXT COMMAND...
refused() {
    local code=$1 text=$2 said got=0
    shift 2
    said=$("$@" 2>&1) || got=$?
    [[ $got == "$code" && $said == *"$text"* ]] || { echo "exit code $got of $*: $said"; return 1; }
}

check "join makes the folder, and the unit of the package starts the node; it is ready when the command ends"
mkdir -p /var/lib/loadline
loadline san init /var/lib/loadline/cluster.db
loadline san join /var/lib/loadline/cluster.db --name node-1 --service
systemctl is-active "$unit" && systemctl is-enabled "$unit"
[[ ! -e /etc/systemd/system/$unit.service ]]
[[ $(property "$unit" StatusText) == "node node-1 serves" ]]
loadline san status

check "a block device, a file, NBD and the socket of a virtual machine"
if [[ -e /run/script/device ]]; then
    disk=/dev/$(</run/script/device)
    # The node sees what the host mounts later.
    mkfs.ext4 -q "$disk" && mount "$disk" /mnt
    refused 2 "is mounted on /mnt" loadline device add "$disk" --overwrite
    umount /mnt && wipefs --quiet --all "$disk"
    loadline device add "$disk" --overwrite
fi
loadline device add /var/lib/loadline/node-1/device --create 600MiB
loadline volume create disk --size 16MiB --copies 1
loadline volume attach disk
loadline san status --probe
# 3: this machine does much else.
for target in nbd://127.0.0.1:10809/disk vhost-user:/var/lib/loadline/node-1/vhost/disk.sock; do
    loadline bench "$target" --profile B4-T1-O4-W50-PR --warm-up 0s --for 1s --fill --verify --destroy-data || [[ $? == 3 ]]
done
refused 2 "Read-only file system" loadline device add /srv/device --create 600MiB

check "what the node cannot do: capabilities, other devices, other files"
main=$(property "$unit" MainPID)
grep -E '^CapEff:\s+0+$' "/proc/$main/status"
grep -E '^NoNewPrivs:\s+1$' "/proc/$main/status"
grep -E '^Seccomp:\s+2$' "/proc/$main/status"
# A host that may not raise limits (CAP_SYS_RESOURCE) gives what it has.
! (ulimit -l unlimited) 2>/dev/null || grep -E '^Max locked memory +unlimited' "/proc/$main/limits"
! (ulimit -n 65536) 2>/dev/null || grep -E '^Max open files +65536' "/proc/$main/limits"

check "killed, the node is started again, and serves"
kill -9 "$main"
until_ "another process" bash -c "[[ \$(systemctl show -P MainPID $unit) != @(0|$main) ]] && systemctl is-active $unit"
until_ "it serves" loadline san status --probe
[[ $(property "$unit" NRestarts) == 1 ]]

check "a node that hangs is started again"
mkdir -p "/run/systemd/system/$unit.service.d"
printf '[Service]\nWatchdogSec=3\n' >"/run/systemd/system/$unit.service.d/test.conf"
systemctl daemon-reload
systemctl restart "$unit"
main=$(property "$unit" MainPID)
kill -STOP "$main"
until_ "another process" bash -c "[[ \$(systemctl show -P MainPID $unit) != @(0|$main) ]] && systemctl is-active $unit"
journalctl --no-pager -u "$unit" | grep "Watchdog timeout" >/dev/null

check "a stop"
begun=$SECONDS
systemctl stop "$unit"
((SECONDS - begun < 20))
[[ $(property "$unit" Result) == success && $(property "$unit" ExecMainStatus) == 0 ]]
systemctl start "$unit"

check "what drop-ins of the documentation do: a group for virtual machines, and named disks alone"
mkdir -p "/etc/systemd/system/$unit.service.d"
dropin=/etc/systemd/system/$unit.service.d/test.conf
# restart LINE...: the node with a drop-in that has these lines.
restart() {
    printf '%s\n' '[Service]' "$@" >"$dropin"
    systemctl daemon-reload
    systemctl restart "$unit"
}
restart Group=disk UMask=0007
until_ "it serves" loadline san status --probe
[[ $(stat -c '%a %G' /var/lib/loadline/node-1/vhost/disk.sock) == "770 disk" ]]
if [[ -e /run/script/device ]]; then
    restart DeviceAllow= "DeviceAllow=/dev/null rw"
    until_ "the disk is refused" bash -c "loadline san status | grep '$disk may not be written to'"
    restart DeviceAllow= "DeviceAllow=$disk rw"
    until_ "the disk is used" loadline san status
fi
rm "$dropin"
systemctl daemon-reload

check "a node whose etcd does not answer waits for it, longer than a start may take otherwise"
mkdir /var/lib/loadline/waits
printf '%s\n' 'name = "waits"' 'cluster = "etcd://localhost:1"' 'folder = "/var/lib/loadline/waits"' >/var/lib/loadline/waits/node.toml
mkdir -p /etc/systemd/system/loadline-node@waits.service.d
printf '[Service]\nTimeoutStartSec=2\n' >/etc/systemd/system/loadline-node@waits.service.d/test.conf
systemctl daemon-reload
systemctl start --no-block loadline-node@waits
until_ "it says so" bash -c "systemctl show -P StatusText loadline-node@waits | grep 'waits for the configuration store'"
property loadline-node@waits StatusText
sleep 4
[[ $(property loadline-node@waits ActiveState) == activating && $(property loadline-node@waits NRestarts) == 0 ]]
systemctl stop loadline-node@waits
[[ $(property loadline-node@waits Result) == success ]]

check "a folder elsewhere has a unit of its own, which systemd understands and which runs"
mkdir -p /srv/san
loadline san join /var/lib/loadline/cluster.db --name node-2 --folder "/srv/san/node 2" --address 127.0.0.2 --service
systemctl is-active loadline-node@node-2
[[ -z $(systemd-analyze verify --man=no /etc/systemd/system/loadline-node@node-2.service 2>&1) ]]
loadline device add "/srv/san/node 2/device" --create 600MiB --api 127.0.0.2:7400
loadline san service --config "/srv/san/node 2/node.toml"

check "a node that was removed is not started again"
loadline san join /var/lib/loadline/cluster.db --name node-5 --folder /var/lib/loadline/node-5 --address 127.0.0.5 --service
loadline node remove node-5
until_ "it ends" bash -c "[[ \$(systemctl show -P ActiveState loadline-node@node-5) == inactive ]]"
[[ $(property loadline-node@node-5 Result) == success && $(property loadline-node@node-5 NRestarts) == 0 ]]

check "units of others stay, and the node does not join"
echo "# of its administrator" >/etc/systemd/system/loadline-node@node-3.service
refused 2 "was not written by this command" loadline san join /var/lib/loadline/cluster.db --name node-3 \
    --folder /var/lib/loadline/node-3 --address 127.0.0.3 --service
[[ $(</etc/systemd/system/loadline-node@node-3.service) == "# of its administrator" && ! -e /var/lib/loadline/node-3 ]]
refused 2 "hidden from the service" loadline san join /var/lib/loadline/cluster.db --name node-4 --folder /home/node-4 \
    --address 127.0.0.4 --service
[[ ! $(loadline node list) =~ node-[34] ]]

check "an archive for people who help has the journal, also from before the last start"
cd /run/script
loadline san support --output support.tar.gz
tar -xzOf support.tar.gz loadline-support/journal.txt | grep "Watchdog timeout" >/dev/null

echo "all is well"
