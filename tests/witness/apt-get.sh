#!/usr/bin/env bash
# In place of apt-get on a host of a test: `apt-get install -y PACKAGE...` does what these packages of Debian do.
set -euo pipefail
[[ $1 = install && $2 = -y ]]
for package in "${@:3}"; do
    case $package in
    etcd-server)
        ln -sf /run/programs/etcd /usr/bin/etcd
        if ! getent passwd etcd >/dev/null; then
            echo "etcd:x:979:" >>/etc/group
            echo "etcd:x:979:979::/var/lib/etcd:/usr/sbin/nologin" >>/etc/passwd
        fi
        mkdir -p /var/lib/etcd && chown etcd:etcd /var/lib/etcd && chmod 700 /var/lib/etcd
        # It starts one member for this host alone.
        mkdir -p /etc/systemd/system /etc/systemd/packages
        printf '[Service]\nUser=etcd\nExecStart=/usr/bin/etcd --data-dir /var/lib/etcd/default\n' \
            >/etc/systemd/packages/etcd.service
        systemctl enable --now etcd
        ;;
    etcd-client) ln -sf /run/programs/etcdctl /usr/bin/etcdctl ;;
    libnbd-bin) command -v nbdinfo nbdcopy >/dev/null ;;
    openssl) command -v openssl >/dev/null ;;
    ./loadline_*.deb) [[ -e $package ]] && ln -sf /run/programs/loadline /usr/bin/loadline ;;
    *) echo "apt-get: a host of a test has no package $package" >&2 && exit 100 ;;
    esac
done
