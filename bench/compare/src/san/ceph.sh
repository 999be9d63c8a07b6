#!/usr/bin/env bash
# A small Ceph cluster on this machine, for comparison: a monitor, a manager, OSDs on files, a pool and an image.
#
#   up FOLDER OSDS COPIES MIB      down FOLDER
#
# Needs root, and the packages ceph-mon, ceph-mgr, ceph-osd and ceph-common.
set -euo pipefail
verb=$1 folder=$2
conf=$folder/ceph.conf

# Another cluster would talk to what is left of this one: all are waited for, and killed in the end.
stop_all() {
    local file pid tries
    for file in "$folder"/run/*.pid; do
        [[ -e $file ]] || continue
        pid=$(<"$file")
        kill "$pid" 2>/dev/null || continue
        for ((tries = 0; tries < 100; tries++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
}

write_conf() {
    local osds=$1 copies=$2 mib=$3
    cat >"$conf" <<CONF
[global]
fsid = $fsid
mon host = v1:127.0.0.1:6795
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms bind msgr2 = false
run dir = $folder/run
admin socket = $folder/run/\$name.\$pid.asok
pid file = $folder/run/\$name.pid
log file = $folder/log/\$name.log
mon data = $folder/mon/a
mgr data = $folder/mgr/a
osd data = $folder/osd.\$id
osd pool default size = $copies
osd pool default min size = 1
osd crush chooseleaf type = 0
osd memory target = 939524096
bluestore block size = $(((mib * copies / osds + 2048) << 20))
mon allow pool size one = true
mon warn on pool no redundancy = false
CONF
}

start_all() {
    local osds=$1 copies=$2 mib=$3 number id made
    mkdir -p "$folder"/{mon,mgr/a,run,log}
    fsid=$(</proc/sys/kernel/random/uuid)
    write_conf "$osds" "$copies" "$mib"
    monmaptool --create --clobber --fsid "$fsid" --addv a "[v1:127.0.0.1:6795]" "$folder/monmap"
    ceph-mon --conf "$conf" --mkfs -i a --monmap "$folder/monmap"
    ceph-mon --conf "$conf" -i a
    ceph-mgr --conf "$conf" -i a
    for ((made = 0; made < osds; made++)); do
        id=$(</proc/sys/kernel/random/uuid)
        number=$(ceph --conf "$conf" --connect-timeout 20 osd new "$id")
        mkdir -p "$folder/osd.$number"
        ceph-osd --conf "$conf" -i "$number" --mkfs --osd-uuid "$id"
        ceph-osd --conf "$conf" -i "$number"
    done
    ceph --conf "$conf" osd pool create bench 32
    ceph --conf "$conf" osd pool set bench size "$copies"
    rbd --conf "$conf" pool init bench
    rbd --conf "$conf" create --size "${mib}M" bench/disk0
}

case $verb in
up) start_all "$3" "$4" "$5" ;;
down) stop_all ;;
esac
