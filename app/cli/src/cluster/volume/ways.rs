//! How programs reach a volume that is attached, as lines for people to copy.

use loadline_san_node::node::manage::{Use, WaysView};

use crate::output::print_line;

/// Prints the ways to a volume: the fastest first.
pub(super) fn print_all(how: &Use) {
    let requires_tls = how.requires_tls;
    let of =
        |protocol: &str| how.ways.get(protocol).cloned().unwrap_or(WaysView { network: None, local: None });
    if let Some(socket) = of("vhost-user-blk").local {
        print_line!("QEMU, on that node's machine, with its memory shared (the fastest):");
        print_line!(
            "  -object memory-backend-memfd,id=mem,size=4G,share=on -machine memory-backend=mem -m 4G"
        );
        print_line!(
            "  -chardev socket,id=volume,path={socket},reconnect=1 -device vhost-user-blk-pci,chardev=volume"
        );
    }
    if let Some(uri) = of("iscsi").network {
        if !how.lets_initiators_in {
            print_line!(
                "by iSCSI only the machine of each node reaches it; to let another host in, by the name of its initiator:"
            );
            print_line!("  loadline volume access {} --initiator IQN", how.volume);
        }
        print_line!("iSCSI, on each host, as root (see 'Reach a volume by iSCSI'):");
        let (portal, target) = uri.trim_start_matches("iscsi://").split_once('/').unwrap_or((&uri, ""));
        print_line!("  iscsiadm -m discovery -t sendtargets -p {portal}");
        print_line!("  iscsiadm -m node -T {} --login", target.trim_end_matches("/0"));
    }
    let nbd = of("nbd");
    if let Some(uri) = nbd.local {
        print_line!("QEMU, on that node's machine:");
        print_line!("  -drive file='{uri}',format=raw,if=virtio,cache=none,discard=unmap");
    }
    let address = nbd.network.as_ref().and_then(|uri| uri.strip_prefix("nbd://")).filter(|_| requires_tls);
    if let Some(address) = address {
        print_line!("NBD tools, from elsewhere, with a certificate:");
        print_line!("  loadline san access add CLIENT --role client --out FOLDER --config NODE.TOML");
        print_line!("  nbdinfo 'nbds://{address}?tls-certificates=FOLDER'");
        print_line!("QEMU, from elsewhere, with that certificate:");
        let (host, name) = address.split_once('/').unwrap_or((address, ""));
        let (host, port) = host.rsplit_once(':').unwrap_or((host, "10809"));
        print_line!("  -object tls-creds-x509,id=tls,dir=FOLDER,endpoint=client");
        print_line!(
            "  -drive driver=nbd,host={host},port={port},export={name},tls-creds=tls,if=virtio,cache=none,discard=unmap"
        );
        return;
    }
    if let Some(uri) = nbd.network {
        print_line!("QEMU, from elsewhere:");
        print_line!("  -drive file='{uri}',format=raw,if=virtio,cache=none,discard=unmap");
        print_line!("NBD tools:");
        print_line!("  nbdinfo '{uri}'");
        print_line!("  qemu-img convert -n -p -O raw IMAGE '{uri}'");
        let (address, name) = uri.trim_start_matches("nbd://").split_once('/').unwrap_or(("", ""));
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "10809"));
        print_line!("the kernel's block device, as root:");
        print_line!("  nbd-client -N {name} {host} {port} /dev/nbd0");
    }
}
