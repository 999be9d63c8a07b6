//! What the machine consists of: a kernel, and a first file system with programs of Debian's packages, their libraries and their
//! configuration.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::nodes::kernel;

/// Modules of the kernel. ext4 asks for a checksum without naming its module as a dependency.
const MODULES: [&str; 13] = [
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "sd_mod",
    "sg",
    "scsi_dh_alua",
    "iscsi_tcp",
    "dm_multipath",
    "dm_service_time",
    "dm_queue_length",
    "dm_round_robin",
    "crc32c_generic",
    "ext4",
];

/// Modules of the kernel's own target, which `lio` loads.
const TARGET_MODULES: [&str; 2] = ["target_core_mod", "iscsi_target_mod"];

/// Programs of the packages that `./dev setup --tests` has unpacked.
const UNPACKED: [&str; 16] = [
    "sbin/iscsid",
    "sbin/iscsiadm",
    "sbin/multipath",
    "sbin/multipathd",
    "sbin/mpathpersist",
    "sbin/kpartx",
    "sbin/dmsetup",
    "bin/udevadm",
    "lib/udev/scsi_id",
    "usr/bin/sg_inq",
    "usr/bin/sg_opcodes",
    "usr/bin/sg_persist",
    "usr/bin/sg_raw",
    "usr/bin/sg_rtpg",
    "usr/bin/sg_stpg",
    "usr/bin/sg_turs",
];
/// Programs of this host.
const INSTALLED: [&str; 4] = ["mkfs.ext4", "e2fsck", "busybox", "blkid"];
/// What a thread that is cancelled needs, and no program is linked with.
const LIBRARY: &str = "libgcc_s.so.1";
/// Rules of udev that concern disks. The others need programs that are not there.
const RULES: [&str; 12] = [
    "50-udev-default",
    "55-dm",
    "55-scsi-sg3_id",
    "56-dm-mpath",
    "56-dm-parts",
    "58-scsi-sg3_symlink",
    "60-block",
    "60-kpartx",
    "60-multipath",
    "60-persistent-storage",
    "60-persistent-storage-dm",
    "95-dm-notify",
];

/// What administrators are given for volumes of Loadline.
const VOLUMES: &str = include_str!("../../packaging/iscsi/multipath.conf");
/// What is theirs. The checks of paths are frequent, so that tests are short. Keys of reservations are those that `mpathpersist` registers.
const DEFAULTS: &str = "defaults {\n    find_multipaths yes\n    user_friendly_names yes\n    polling_interval 1\n    \
                        max_polling_interval 2\n    reservation_key file\n}\n";

/// A kernel and a first file system.
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) archive: PathBuf,
}

impl Image {
    /// Makes one in an existing folder. `devices` are entries of the section `devices` of the machine's multipath.conf. They add to the
    /// entry for volumes of Loadline, or override its settings.
    pub(crate) fn build(folder: &Path, devices: &str) -> Image {
        let root = Root { unpacked: unpacked().join("root"), folder: folder.join("root") };
        for name in
            ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "proc", "sys", "run", "mnt", "modules"]
        {
            fs::create_dir_all(root.folder.join(name)).expect("there is room");
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.folder.join(name)).expect("there is room");
        }
        symlink("run", root.folder.join("tmp")).expect("there is room");
        UNPACKED.iter().for_each(|name| root.program(&root.unpacked.join(name)));
        INSTALLED.iter().for_each(|name| root.program(&installed(name)));
        for folder in ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"] {
            let library = Path::new("/").join(folder).join(LIBRARY);
            if library.exists() {
                root.file(&library);
            }
        }
        root.folder("lib/multipath");
        root.link("lib/systemd/systemd-udevd", "/bin/udevadm");
        root.file(&root.unpacked.join("lib/udev/kpartx_id"));
        root.file(&root.unpacked.join("etc/udev/udev.conf"));
        for name in RULES {
            root.file(&root.unpacked.join(format!("lib/udev/rules.d/{name}.rules")));
        }
        for (folder, names) in [("modules", &MODULES[..]), ("target-modules", &TARGET_MODULES)] {
            for (number, module) in kernel::modules(&unpacked(), names).iter().enumerate() {
                root.write(&format!("{folder}/{number:02}.ko"), &kernel::plain(module));
            }
        }
        root.write("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n");
        root.write("etc/group", b"root:x:0:\ntty:x:5:\ndisk:x:6:\n");
        root.write("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files\n");
        root.write("etc/multipath.conf", DEFAULTS.as_bytes());
        root.write("etc/multipath/conf.d/loadline.conf", VOLUMES.as_bytes());
        root.write("etc/multipath/conf.d/test.conf", format!("devices {{\n{devices}\n}}\n").as_bytes());
        root.write("etc/iscsi/iscsid.conf", settings(&root.unpacked).as_bytes());
        root.script("init", include_str!("init.sh"));
        root.script("usr/bin/lio", include_str!("lio.sh"));
        root.script("usr/bin/load", include_str!("load.sh"));
        root.script("usr/bin/paths", include_str!("paths.sh"));
        let archive = folder.join("initramfs");
        let packed = File::create(&archive).expect("there is room");
        let mut packs = Command::new("sh");
        packs.args(["-c", "find . | busybox cpio -o -H newc"]).current_dir(&root.folder);
        packs.stdout(packed).stderr(Stdio::null());
        assert!(packs.status().expect("it runs").success(), "it is packed");
        fs::remove_dir_all(&root.folder).expect("it is ours");
        Image { kernel: unpacked().join("vmlinuz"), archive }
    }
}

/// Where `./dev setup --tests` has put kernel and programs.
fn unpacked() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target folder");
    let folder = target.join("initiator");
    assert!(folder.join("root").exists(), "./dev setup --tests makes it");
    folder
}

fn installed(name: &str) -> PathBuf {
    let found = ["/bin", "/usr/bin", "/sbin", "/usr/sbin"].map(|folder| Path::new(folder).join(name));
    found
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("./dev setup --tests installs {name}"))
}

/// The settings of open-iscsi. No service manager starts iscsid, and a path that does not answer is found early.
fn settings(unpacked: &Path) -> String {
    let packaged = fs::read_to_string(unpacked.join("etc/iscsi/iscsid.conf")).expect("it is in the package");
    let changed = [
        ("iscsid.startup", "/sbin/iscsid"),
        ("node.conn[0].timeo.login_timeout", "3"),
        ("node.conn[0].timeo.noop_out_interval", "1"),
        ("node.conn[0].timeo.noop_out_timeout", "2"),
    ];
    let is_kept = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        !changed.iter().any(|(name, _)| *name == key)
    };
    let kept = packaged.lines().filter(is_kept).map(str::to_owned);
    let lines: Vec<_> = kept.chain(changed.map(|(name, value)| format!("{name} = {value}"))).collect();
    lines.join("\n") + "\n"
}

/// The machine's first file system, in the making. /bin, /sbin and /lib are in /usr.
struct Root {
    unpacked: PathBuf,
    folder: PathBuf,
}

impl Root {
    /// Where a file of the host, or one that was unpacked, is in the machine.
    fn place(&self, file: &Path) -> PathBuf {
        let path = file.strip_prefix(&self.unpacked).or(file.strip_prefix("/")).expect("a path is absolute");
        let is_in_usr = ["bin", "sbin", "lib", "lib64"].iter().any(|folder| path.starts_with(folder));
        let path = if is_in_usr { Path::new("usr").join(path) } else { path.to_owned() };
        let place = self.folder.join(path);
        fs::create_dir_all(place.parent().expect("it is in a folder")).expect("there is room");
        place
    }

    fn file(&self, file: &Path) {
        fs::copy(file, self.place(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Adds a program, or a library, with the libraries that it needs.
    fn program(&self, program: &Path) {
        self.file(program);
        let places = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib"];
        let places: Vec<_> =
            places.iter().map(|folder| self.unpacked.join(folder).display().to_string()).collect();
        let needs = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", places.join(":")).output();
        let needs =
            String::from_utf8(needs.expect("it is part of the C library").stdout).expect("it is text");
        assert!(!needs.contains("not found"), "{} lacks libraries:\n{needs}", program.display());
        for library in needs.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':')) {
            self.file(Path::new(library));
        }
    }

    /// Adds all libraries of a folder that was unpacked.
    fn folder(&self, name: &str) {
        for entry in fs::read_dir(self.unpacked.join(name)).expect("it is in a package").flatten() {
            self.program(&entry.path());
        }
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.place(&Path::new("/").join(name)), content).expect("there is room");
    }

    fn script(&self, name: &str, text: &str) {
        self.write(name, text.as_bytes());
        let path = self.place(&Path::new("/").join(name));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    fn link(&self, name: &str, to: &str) {
        symlink(to, self.place(&Path::new("/").join(name))).expect("there is room");
    }
}
