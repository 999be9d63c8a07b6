#!/bin/busybox sh
# The first process of a test's machine: what it needs to speak to its keeper (bench/guest/src/control.rs). A test adds what its machine
# does. If a step fails, the process ends, and so the kernel panics.
set -e
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*virtio*.ko; do
    insmod "$module" 2>/dev/null || true
done

# until_there PATTERN: the first path that matches, once there is one; half a minute at most.
until_there() {
    for _ in $(seq 300); do
        for path in $1; do
            [ ! -e "$path" ] || { echo "$path" && return; }
        done
        sleep 0.1
    done
    echo "test: there is no $1" >/dev/console
    return 1
}

# head_of KIND LENGTH: the head of a frame.
head_of() {
    printf "\\$(printf %03o "$1")\\$(printf %03o $(($2 & 255)))\\$(printf %03o $(($2 >> 8)))\\0\\0" >&3
}
say() {
    head_of 1 ${#1}
    printf %s "$1" >&3
}
# pass NUMBER TEXT: bytes of a connection.
pass() {
    head_of 2 $((4 + ${#2}))
    printf "\\$(printf %03o "$1")\\0\\0\\0%s" "$2" >&3
}
exactly() { dd bs=1 count="$1" <&3 2>/dev/null; }
# Prints the content of the next frame, without the number of a connection.
receive() {
    set -- $(exactly 5 | od -An -tu1)
    [ "$1" = 1 ] || exactly 4 >/dev/null
    exactly $(($2 + $3 * 256 - ($1 - 1) * 4))
}
# ask TEXT: the answer, a text too.
ask() {
    say "{\"ask\":\"$1\"}"
    answer=$(receive)
    answer=${answer#'{"answer":"'}
    echo "${answer%'"}'}"
}
disk_at() { basename "$(until_there "/sys/bus/pci/devices/$1/virtio*/block/*")"; }
ended() { say "{\"ended\":{\"code\":$1,\"signal\":null,\"words\":\"$2\"}}"; }

until_there '/sys/class/virtio-ports/*/name' >/dev/null
port=$(grep -l '^loadline$' /sys/class/virtio-ports/*/name)
exec 3<>"$(until_there "/dev/$(basename "$(dirname "$port")")")"
