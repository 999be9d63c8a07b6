#!/bin/busybox sh
# shellcheck shell=dash
# A load whose every write is checked.
#
#   load start FOLDER WORKERS     each worker overwrites the places of a file of its own, one write after another, each flushed
#   load writes                   how many writes were acknowledged since the start
#   load stop                     waits until the writes under way are acknowledged. Prints how many there were, and for how many
#                                 hundredths of a second no write of any worker was acknowledged at most
#   load check                    whether each place has what was acknowledged last. Prints how many were checked
#
# The content of a write says which worker made it, at which place, and as its how many-th. An older write that arrives late is found.
set -u
state=/run/load
size=32768 places=24

content() { yes "worker $1 place $2 write $3 ......................................" | head -c $size; }

# hundredths of a second since the machine began
now() {
    read -r uptime _ </proc/uptime
    echo "${uptime%.*}${uptime#*.}"
}

worker() {
    write=0
    while [ ! -e $state/stop ]; do
        write=$((write + 1))
        place=$((write * 7 % places))
        content "$1" $place $write >"$state/content.$1"
        dd if="$state/content.$1" of="$folder/load.$1" bs=$size seek=$place conv=notrunc,fsync 2>"$state/said.$1" || {
            echo "worker $1: write $write failed: $(cat "$state/said.$1")" >>$state/failed
            return
        }
        echo "$place $write $(now)" >>"$state/done.$1"
    done
}

case $1 in
start)
    folder=$2
    rm -rf $state
    mkdir $state
    echo "$folder" >$state/folder
    for number in $(seq "$3"); do
        : >"$state/done.$number"
        (worker "$number") </dev/null >/dev/null 2>&1 &
        echo $! >>$state/processes
    done
    ;;
writes) cat $state/done.* | wc -l ;;
stop)
    : >$state/stop
    while read -r process; do
        while [ -e "/proc/$process" ]; do sleep 0.1; done
    done <$state/processes
    [ ! -e $state/failed ] || { cat $state/failed; exit 1; }
    cat $state/done.* | sort -n -k 3 | awk '{ if (NR > 1 && $3 - last > most) most = $3 - last; last = $3 } END { print NR, most + 0 }'
    ;;
check)
    folder=$(cat $state/folder)
    checked=0 wrong=0
    for acknowledged in "$state"/done.*; do
        number=${acknowledged##*.}
        awk '{ last[$1] = $2 } END { for (place in last) print place, last[place] }' "$acknowledged" >$state/last
        while read -r place write; do
            content "$number" "$place" "$write" >$state/wanted
            dd if="$folder/load.$number" bs=$size skip="$place" count=1 2>/dev/null >$state/found
            checked=$((checked + 1))
            cmp -s $state/wanted $state/found || {
                wrong=$((wrong + 1))
                echo "worker $number place $place: write $write was acknowledged last, and there is: $(head -c 60 $state/found)"
            }
        done <$state/last
    done
    echo "checked $checked"
    [ $wrong -eq 0 ]
    ;;
esac
