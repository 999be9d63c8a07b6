#!/bin/busybox sh
# shellcheck shell=dash
# The first process of a virtual machine that is an iSCSI initiator. It starts what Debian starts, and then carries out the commands
# that come by a serial port. Each is one line, "NUMBER SECONDS COMMAND". The answer is a line "NUMBER EXIT-CODE BYTES", and then so many
# bytes of output. 124 is the exit code of a command that took longer than SECONDS.
export PATH=/usr/sbin:/usr/bin HOME=/
/bin/busybox --install -s /usr/bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mkdir -p /dev/shm /dev/pts /run/lock/iscsi
mount -t tmpfs shm /dev/shm
for module in /modules/*; do
    insmod "$module" || echo "init: $module cannot be loaded"
done

number=$(sed -n 's/.*guest=\([0-9]*\).*/\1/p' /proc/cmdline)
hostname "guest-$number"
ip link set lo up
ip addr add "10.78.$number.1/24" dev eth0
ip addr add "10.78.$number.2/24" dev eth0
ip link set eth0 up
ip route add default via "10.78.$number.254"
echo "InitiatorName=iqn.2026-01.org.example:guest-$number" >/etc/iscsi/initiatorname.iscsi

/usr/lib/systemd/systemd-udevd --daemon
iscsid
multipathd -d -s >/run/multipathd.log 2>&1 &
for _ in $(seq 100); do
    multipathd show daemon 2>/dev/null | grep -q -e running -e idle && break
    sleep 0.2
done

port=$(grep -l '^commands$' /sys/class/virtio-ports/*/name)
port=${port%/name}
exec 3<>"/dev/${port##*/}"
echo ready >&3
while read -r id limit command <&3; do
    timeout "$limit" sh -c "$command" >/run/answer 2>&1 </dev/null 3>&-
    code=$?
    # busybox's timeout ends a command by SIGTERM.
    [ $code -ne 143 ] || code=124
    echo "$id $code $(wc -c </run/answer)" >&3
    cat /run/answer >&3
done
echo "init: no commands any more"
poweroff -f
