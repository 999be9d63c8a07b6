#!/bin/busybox sh
# shellcheck shell=dash
# The paths of the machine, a line each, with | between: the address of the portal, the device, the state of the path in the kernel's multipath device,
# what its checker found, its priority, and the state of its session.
multipathd show paths raw format "%d|%t|%T|%p" >/run/paths 2>/dev/null
for connection in /sys/class/iscsi_connection/connection*; do
    number=${connection##*connection}
    session=/sys/class/iscsi_session/session${number%:*}
    for device in "$session"/device/target*/*/block/*; do
        device=${device##*/}
        line=$(grep "^$device|" /run/paths) || line="$device|none|none|0"
        echo "$(cat "$connection/persistent_address")|$line|$(cat "$session/state")"
    done
done 2>/dev/null
