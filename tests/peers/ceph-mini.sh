#!/usr/bin/env bash
# A small Ceph cluster on this machine, for tests and comparison: a monitor, a manager, OSDs on files, a pool and an image.
#
#   up FOLDER OSDS COPIES MIB           starts it, with an image bench/disk0
#   image FOLDER NAME MIB               makes another image in the pool
#   user FOLDER NAME CAPS...            makes a user with these rights, and FOLDER/NAME.keyring
#   stop-osd FOLDER N [SIGNAL]          sends an OSD a signal, KILL if none is named
#   start-osd FOLDER N                  starts it again
#   down FOLDER                         stops everything
#
# Clients need FOLDER/ceph.conf, which says where the administrator's key is. Needs root, and the packages ceph-mon, ceph-mgr, ceph-osd and ceph-common.
set -Eeuo pipefail
verb=$1 folder=$2
conf=$folder/ceph.conf

# What failed, since Ceph's programs do not always say it.
failed() {
    local status=$? file
    echo "ceph-mini.sh: line $1 ended with $status: $2" >&2
    for file in "$folder"/log/*; do
        [[ ! -e $file ]] || tail -n 5 "$file" >&2
    done
}
trap 'failed "$LINENO" "$BASH_COMMAND"' ERR

# Nothing of it is kept, so it need not end in order. Another cluster would talk to what is left of this one: all are waited for.
stop_all() {
    local file pid tries pids=()
    for file in "$folder"/run/*.pid; do
        [[ -e $file ]] || continue
        pid=$(<"$file")
        if kill -9 "$pid" 2>/dev/null; then pids+=("$pid"); fi
    done
    for pid in "${pids[@]}"; do
        for ((tries = 0; tries < 100; tries++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
    done
}

# The first port from this number on at which no process listens.
free_port() {
    local port
    for ((port = 6795; port < 6895; port += 1)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

write_conf() {
    local osds=$1 copies=$2 mib=$3 port=$4
    cat >"$conf" <<CONF
[global]
fsid = $fsid
mon host = v1:127.0.0.1:$port
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
cephx sign messages = false
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
bluestore block size = $(((mib * copies / osds + 8192) << 20))
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail warn = 1
mon data avail crit = 0
mon osd min down reporters = 1
mgr stats period = 1
paxos propose interval = 0.05
paxos min wait = 0.01
osd recovery sleep hdd = 0
[client]
keyring = $folder/keyring
CONF
}

start_all() {
    local osds=$1 copies=$2 mib=$3 number id made port making=()
    mkdir -p "$folder"/{mon,mgr/a,run,log}
    fsid=$(</proc/sys/kernel/random/uuid)
    port=$(free_port)
    write_conf "$osds" "$copies" "$mib" "$port"
    ceph-authtool --create-keyring "$folder/keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$folder/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap mgr 'allow *' --cap osd 'allow *'
    monmaptool --create --clobber --fsid "$fsid" --addv a "[v1:127.0.0.1:$port]" "$folder/monmap"
    ceph-mon --conf "$conf" --mkfs -i a --monmap "$folder/monmap" --keyring "$folder/keyring"
    ceph-mon --conf "$conf" -i a
    ask auth get-or-create mgr.a mon 'allow profile mgr' osd 'allow *' -o "$folder/mgr/a/keyring"
    ceph-mgr --conf "$conf" -i a
    for ((made = 0; made < osds; made++)); do
        id=$(</proc/sys/kernel/random/uuid)
        number=$(ask osd new "$id")
        mkdir -p "$folder/osd.$number"
        ask auth get-or-create "osd.$number" mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' \
            -o "$folder/osd.$number/keyring"
        { ceph-osd --conf "$conf" -i "$number" --mkfs --osd-uuid "$id" && ceph-osd --conf "$conf" -i "$number"; } &
        making+=($!)
    done
    for made in "${making[@]}"; do
        wait "$made"
    done
    ask osd pool create bench 32
    ask osd pool set bench size "$copies"
    client rbd --conf "$conf" pool init bench
    client make_image disk0 "$mib"
}

# client PROGRAM [ARGUMENT...]: does it again if a signal ended it. At a client's end its exit handlers free what its threads may
# still use.
client() {
    local tries status
    for tries in 1 2 3; do
        status=0
        "$@" || status=$?
        ((status == 0)) || echo "ceph-mini.sh: $* ended with $status" >&2
        ((status > 128 && tries < 3)) || return "$status"
    done
}

ask() {
    client ceph --conf "$conf" --connect-timeout 20 "$@"
}

# Makes an image of so many MiB, unless an earlier try has made it.
make_image() {
    rbd --conf "$conf" info "bench/$1" >/dev/null 2>&1 || rbd --conf "$conf" create --size "${2}M" "bench/$1"
}

case $verb in
up) start_all "${@:3}" ;;
image) client make_image "$3" "$4" ;;
user) ask auth get-or-create "client.$3" "${@:4}" -o "$folder/$3.keyring" ;;
stop-osd) kill "-${4:-KILL}" "$(<"$folder/run/osd.$3.pid")" ;;
start-osd) ceph-osd --conf "$conf" -i "$3" ;;
down) stop_all ;;
*)
    echo "ceph-mini.sh: there is no verb $verb" >&2
    exit 2
    ;;
esac
