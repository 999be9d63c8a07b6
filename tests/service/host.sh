#!/usr/bin/env bash
# A host of its own, whose first process is systemd: the files of this system, changed by nobody, and its own processes, mounts, network
# and name. It needs root. Run by tests/service.rs, by way of `unshare`, in new namespaces.
#
#   host.sh PROGRAM UNIT SCRIPT OUT [DEVICE]   the program and the unit as the package would install them; what the host runs when it
#                                              has started, after which it ends; the folder for what the script prints; a block device
#
# Exit code 77: this system lets no host be made.
set -euo pipefail
program=$1 unit=$2 script=$3 out=$4 device=${5:-}

[[ $$ == 1 ]] || { echo "host.sh: it is to be the first process of new namespaces" >&2; exit 2; }
work=$out/host
mkdir "$work"
mount -t tmpfs -o size=2g tmpfs "$work" || exit 77
mkdir "$work"/{upper,work,root}
root=$work/root
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$root" || exit 77
mount -t proc proc "$root/proc"
# What is there once for all hosts is read only.
mount --bind "$root/proc/sys" "$root/proc/sys" && mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys" || exit 77
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup" || exit 77
for folder in dev run tmp; do mount -t tmpfs tmpfs "$root/$folder"; done
mkdir "$root"/dev/{shm,pts} "$root/run/lock" "$root/run/script"
mount -t tmpfs tmpfs "$root/dev/shm"
cp -a /dev/{null,zero,full,random,urandom,tty} "$root/dev/"
[[ -z $device ]] || cp -a "$device" "$root/dev/"
ln -s /proc/self/fd "$root/dev/fd"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
rm -rf "$root"/etc/systemd/system/* "$root/var/lib/loadline"
for other in "$root"/usr/lib/systemd/system/loadline-node@* "$root"/etc/default/loadline-node; do rm -f "$other"; done
: >"$root/etc/fstab"
# Nothing starts but what nodes need.
cat >"$root/etc/systemd/system/script.target" <<'UNIT'
[Unit]
Requires=basic.target
After=basic.target
Wants=script.service
UNIT
cat >"$root/etc/systemd/system/script.service" <<'UNIT'
[Unit]
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/bash /run/script/script
StandardOutput=file:/run/script/printed
StandardError=inherit
UNIT
for none in systemd-{udevd,udev-trigger,logind,resolved,networkd,sysctl,modules-load,remount-fs,tmpfiles-setup-dev,timesyncd,binfmt}.service \
    systemd-udevd-{control,kernel}.socket proc-sys-fs-binfmt_misc.automount dev-{hugepages,mqueue}.mount sys-{kernel-debug,kernel-tracing,fs-fuse-connections}.mount; do
    ln -sf /dev/null "$root/etc/systemd/system/$none"
done
touch "$root/usr/bin/loadline" "$root/run/script/printed"
mount --bind "$program" "$root/usr/bin/loadline"
cp "$unit" "$root/usr/lib/systemd/system/loadline-node@.service"
cp "$script" "$root/run/script/script"
mount --bind "$out" "$root/run/script" && cp "$script" "$root/run/script/script"
# As on a host: what is mounted later is seen by services too. In what it takes for a container, systemd leaves that to others.
mount --make-rshared "$root"
ip link set lo up
cd "$root"
exec chroot . /usr/bin/env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=script.target --log-target=journal --show-status=no </dev/null
