//! A domain and its disks, in libvirt's language.

use std::fmt::Write;

use super::folder::MachineFolder;
use crate::control::PORT;
use crate::disk::{MachineDisk, NbdServer};
use crate::machine::Machine;
use crate::qemu::{Acceleration, board, kernel_line};

/// How long a server of a disk may be gone until that is an error for the machine, seconds: as with a QEMU of our own.
const RECONNECT: u32 = 30;
/// The place on the bus of the serial port to the keeper.
const PORT_PLACE: u8 = 4;

/// A text as a value of an attribute or as content.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '\'' => safe.push_str("&apos;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}

fn address(place: u8) -> String {
    format!("<address type='pci' domain='0' bus='0' slot='{place}' function='0'/>")
}

/// The name of a disk's device for libvirt, which the machine does not see.
pub(super) fn target(place: u8) -> String {
    format!("vd{}", char::from(b'a' + (place.saturating_sub(8)) % 26))
}

/// A machine without disks.
pub(super) fn domain(
    name: &str,
    worker: &str,
    machine: &Machine,
    folder: &MachineFolder,
    acceleration: Acceleration,
) -> String {
    let path = |path: &std::path::Path| escaped(&path.display().to_string());
    let (board, console) = board();
    let (kind, cpu) = match (acceleration, std::env::consts::ARCH) {
        (Acceleration::Hardware, _) => ("kvm", "<cpu mode='host-passthrough'/>"),
        // As a QEMU of our own has it: every feature more is one that the kernel probes for, in software.
        (Acceleration::Software, "x86_64") => (
            "qemu",
            "<cpu mode='custom' match='exact' check='none'><model fallback='allow'>qemu64</model></cpu>",
        ),
        (Acceleration::Software, _) => ("qemu", "<cpu mode='maximum'/>"),
    };
    let features = if std::env::consts::ARCH == "x86_64" { "<features><acpi/></features>" } else { "" };
    let mut text = format!(
        "<domain type='{kind}'>\n<name>{}</name>\n<title>Loadline worker {}</title>\n",
        escaped(name),
        escaped(worker)
    );
    let _ = write!(
        text,
        "<memory unit='MiB'>{}</memory>\n\
         <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>\n\
         <vcpu>{}</vcpu>\n\
         <os><type arch='{}' machine='{board}'>hvm</type><kernel>{}</kernel><initrd>{}</initrd><cmdline>{}</cmdline></os>\n\
         {features}{cpu}\n\
         <on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>\n\
         <devices>\n\
         <controller type='usb' model='none'/>\n\
         <controller type='virtio-serial' index='0'>{}</controller>\n\
         <serial type='unix'><source mode='connect' path='{}'/><target port='0'/></serial>\n\
         <channel type='unix'><source mode='connect' path='{}'/><target type='virtio' name='{PORT}'/></channel>\n\
         <memballoon model='none'/>\n\
         </devices>\n</domain>\n",
        machine.memory.0 >> 20,
        machine.cpus,
        std::env::consts::ARCH,
        path(&folder.kernel),
        path(&folder.image),
        escaped(&kernel_line(console)),
        address(PORT_PLACE),
        path(&folder.console),
        path(&folder.control),
    );
    text
}

/// A disk of a machine; an error in words: libvirt has none like it.
pub(super) fn disk(
    place: u8,
    disk: &MachineDisk,
    writable: bool,
    machine: &Machine,
) -> Result<String, String> {
    let queues = machine.queues.unwrap_or(1);
    let cache =
        |direct: bool| if direct { " cache='none' io='threads'" } else { " cache='writeback' io='threads'" };
    let (kind, cache, source) = match disk {
        MachineDisk::File { path, direct, .. } => {
            ("file", cache(*direct), format!("<source file='{}'/>", escaped(&path.display().to_string())))
        }
        MachineDisk::Block { path, direct, .. } => {
            ("block", cache(*direct), format!("<source dev='{}'/>", escaped(&path.display().to_string())))
        }
        MachineDisk::Nbd { server: NbdServer::Relay(_), .. } => {
            return Err("libvirt knows no socket without a folder".into());
        }
        MachineDisk::Nbd { server, export } => {
            let host = match server {
                NbdServer::Tcp(host, port) => format!("<host name='{}' port='{port}'/>", escaped(host)),
                NbdServer::Unix(path) => {
                    format!("<host transport='unix' socket='{}'/>", escaped(&path.display().to_string()))
                }
                NbdServer::Relay(_) => String::new(),
            };
            let name = if export.is_empty() { String::new() } else { format!(" name='{}'", escaped(export)) };
            (
                "network",
                "",
                format!("<source protocol='nbd'{name}>{host}<reconnect delay='{RECONNECT}'/></source>"),
            )
        }
        MachineDisk::Iscsi { portal, target, lun } => {
            let (host, port) = portal.rsplit_once(':').unwrap_or((portal, "3260"));
            let (name, host) = (escaped(&format!("{target}/{lun}")), escaped(host.trim_matches(['[', ']'])));
            let host = format!("<host name='{host}' port='{}'/>", escaped(port));
            ("network", "", format!("<source protocol='iscsi' name='{name}'>{host}</source>"))
        }
        MachineDisk::VhostUser(path) => (
            "vhostuser",
            "",
            format!(
                "<source type='unix' path='{}'><reconnect enabled='yes' timeout='1'/></source>",
                escaped(&path.display().to_string())
            ),
        ),
        MachineDisk::Rbd { user, .. } if !user.is_empty() => {
            return Err(format!(
                "libvirt takes the key of a user of Ceph ({user}) from its own secrets only: name no user, so that the cluster's \
                 configuration decides, or use machines without libvirt"
            ));
        }
        MachineDisk::Rbd { pool, namespace, image, conf, .. } => {
            let parts = [pool, namespace, image].map(String::as_str);
            let name: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            let conf = conf
                .as_ref()
                .map(|path| format!("<config file='{}'/>", escaped(&path.display().to_string())));
            let name = escaped(&name.join("/"));
            (
                "network",
                "",
                format!("<source protocol='rbd' name='{name}'>{}</source>", conf.unwrap_or_default()),
            )
        }
    };
    let has_thread = machine.iothread && kind != "vhostuser";
    let thread = if has_thread { format!(" iothread='{place}'") } else { String::new() };
    // A server by vhost-user decides itself.
    let read_only = if writable || kind == "vhostuser" { "" } else { "<readonly/>" };
    let snapshot = if kind == "vhostuser" { " snapshot='no'" } else { "" };
    Ok(format!(
        "<disk type='{kind}' device='disk'{snapshot}><driver name='qemu' type='raw'{cache} queues='{queues}'{thread}/>{source}\
         <target dev='{}' bus='virtio'/>{read_only}{}</disk>\n",
        target(place),
        address(place)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OpenFile;

    fn of(disk_of: MachineDisk, writable: bool, machine: &Machine) -> String {
        disk(9, &disk_of, writable, machine).unwrap()
    }

    #[test]
    fn every_kind_of_disk_is_written_with_its_place_and_no_name_ends_an_attribute() {
        let machine = Machine { queues: Some(2), iothread: true, ..Machine::default() };
        let open = OpenFile::of(&std::fs::File::open("/dev/null").unwrap()).unwrap();
        let path = "/a'b<&".into();
        let file = of(MachineDisk::File { path, open: open.clone(), direct: true }, false, &machine);
        assert!(file.contains("<source file='/a&apos;b&lt;&amp;'/>"), "{file}");
        assert!(file.contains("cache='none'") && file.contains("queues='2' iothread='9'"), "{file}");
        assert!(
            file.contains("<readonly/>") && file.contains("slot='9'") && file.contains("dev='vdb'"),
            "{file}"
        );
        let block = of(MachineDisk::Block { path: "/dev/sdz".into(), open, direct: false }, true, &machine);
        assert!(block.contains("type='block'") && block.contains("cache='writeback'"), "{block}");
        assert!(!block.contains("readonly"), "{block}");
        let server = NbdServer::Tcp("host".into(), 10809);
        let nbd = of(MachineDisk::Nbd { server, export: String::new() }, true, &machine);
        assert!(
            nbd.contains("<source protocol='nbd'><host name='host' port='10809'/><reconnect delay='30'/>"),
            "{nbd}"
        );
        let server = NbdServer::Unix("/s".into());
        let nbd = of(MachineDisk::Nbd { server, export: "e".into() }, true, &machine);
        assert!(nbd.contains("name='e'><host transport='unix' socket='/s'/>"), "{nbd}");
        let vhost = of(MachineDisk::VhostUser("/v".into()), false, &machine);
        assert!(vhost.contains("<source type='unix' path='/v'>") && !vhost.contains("iothread"), "{vhost}");
        let rbd = |user: &str| MachineDisk::Rbd {
            pool: "p".into(),
            namespace: "n".into(),
            image: "i".into(),
            user: user.into(),
            conf: Some("/c".into()),
        };
        assert!(of(rbd(""), true, &machine).contains("name='p/n/i'><config file='/c'/>"));
        assert!(disk(9, &rbd("me"), true, &machine).unwrap_err().contains("secrets"));
    }
}
