//! A virtual machine: QEMU, with a kernel of the distribution and a program of a few lines.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::kernel;

/// How long it may take to boot.
const BOOTS: Duration = Duration::from_secs(120);
/// The same, with the host's help: it takes a few seconds, or does not end.
const HELPED: Duration = Duration::from_secs(20);

/// Its memory: not a multiple of 256 KiB. QEMU 7.2 takes the pages that a machine has written from aligned ranges of that length at once, and
/// then TCG notes no further writes to some of them. A migrated machine finds parts of its memory old. That is so without any vhost-user
/// device, too: of 40 migrations of a machine with a disk of QEMU's own 9 ended so, and of 40 with this length none.
const MEMORY: &str = "262152K";

/// What the machine runs: a kernel, and its first file system, packed.
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
}

/// A running one. It is killed by dropping it.
pub(crate) struct Machine {
    child: Child,
    lines: Receiver<String>,
    /// All that it has said.
    pub(crate) said: String,
}

/// Where `./dev setup --tests` has put the kernel.
fn guest() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target folder").join("guest")
}

impl Image {
    /// A machine that runs this script of busybox's shell, with these programs of the host in /host.
    pub(crate) fn new(folder: &Path, script: &str, programs: &[&str]) -> Image {
        let root = folder.join("root");
        for name in ["bin", "host", "dev", "proc", "sys", "mnt", "modules"] {
            fs::create_dir_all(root.join(name)).expect("there is room");
        }
        let which = |name: &str| {
            let found = ["/bin", "/usr/bin", "/sbin", "/usr/sbin"].map(|folder| Path::new(folder).join(name));
            found.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is installed"))
        };
        fs::copy(which("busybox"), root.join("bin/busybox")).expect("there is room");
        for name in programs {
            let program = which(name);
            fs::copy(&program, root.join("host").join(name)).expect("there is room");
            let needs = Command::new("ldd").arg(&program).output().expect("it is part of the C library");
            let needs = String::from_utf8(needs.stdout).expect("it is text");
            for library in needs.split_whitespace().filter(|word| word.starts_with('/')) {
                let to = root.join(&library[1..]);
                fs::create_dir_all(to.parent().expect("it is in a folder")).expect("there is room");
                fs::copy(library, to).expect("there is room");
            }
        }
        let names = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "xfs"];
        for (number, module) in kernel::modules(&guest(), &names).iter().enumerate() {
            fs::write(root.join(format!("modules/{number:02}.ko")), kernel::plain(module))
                .expect("there is room");
        }
        let begin = "#!/bin/busybox sh\n/bin/busybox --install -s /bin\nexport PATH=/bin\n\
                     mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev\n\
                     for module in /modules/*; do insmod $module; done\n\
                     for n in 1 2 3 4 5 6 7 8 9; do [ -e /dev/vda ] || sleep 1; done\n\
                     STEP=$(sed -n 's/.*step=\\([a-z]*\\).*/\\1/p' /proc/cmdline)\n";
        let end = "\nsync\npoweroff -f\nsleep 100\n";
        let init = root.join("init");
        fs::write(&init, format!("{begin}{script}{end}")).expect("there is room");
        let mut permissions = fs::metadata(&init).expect("it is there").permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        fs::set_permissions(&init, permissions).expect("it can be");
        let initramfs = folder.join("initramfs");
        let pack = "find . | busybox cpio -o -H newc";
        let packed = File::create(&initramfs).expect("there is room");
        let mut packs = Command::new("sh");
        packs.args(["-c", pack]).current_dir(&root).stdout(packed).stderr(Stdio::null());
        assert!(packs.status().expect("it runs").success(), "it is packed");
        Image { kernel: guest().join("vmlinuz"), initramfs }
    }

    /// Boots one with this disk, for a step of the script.
    pub(crate) fn boot(&self, socket: &Path, step: &str) -> Machine {
        Machine::boot(|accelerator| self.start_with(socket, step, accelerator, &[]))
    }

    /// Starts one that can be migrated, with a socket for its control connection. One that is a destination waits for what is migrated.
    pub(crate) fn migratable(
        &self,
        socket: &Path,
        step: &str,
        control: &Path,
        is_destination: bool,
    ) -> Machine {
        let mut more: Vec<String> =
            vec!["-qmp".into(), format!("unix:{},server=on,wait=off", control.display())];
        if is_destination {
            more.extend(["-incoming".into(), "defer".into()]);
        }
        self.start_with(socket, step, "tcg", &more)
    }

    fn start_with(&self, socket: &Path, step: &str, accelerator: &str, more: &[String]) -> Machine {
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-M", "q35,memory-backend=memory", "-accel", accelerator, "-m", MEMORY])
            .arg("-object")
            .arg(format!("memory-backend-memfd,id=memory,size={MEMORY},share=on"))
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initramfs)
            .arg("-append")
            .arg(format!("console=ttyS0 quiet panic=-1 step={step}"))
            .arg("-chardev")
            .arg(format!("socket,id=volume,path={},reconnect=1", socket.display()))
            .args(["-device", "vhost-user-blk-pci,chardev=volume,num-queues=2"])
            .args(more);
        Machine::start(command)
    }
}

impl Machine {
    /// Boots one that `start` starts with an accelerator of QEMU's. Returns when its script says BOOTED.
    pub(crate) fn boot(start: impl Fn(&str) -> Machine) -> Machine {
        // With the host's help where it gives some: known only by trying.
        for (accelerator, limit) in [("kvm", HELPED), ("tcg", BOOTS)] {
            let mut machine = start(accelerator);
            if machine.try_wait_for("BOOTED", limit) {
                return machine;
            }
            assert_eq!(accelerator, "kvm", "it boots: {}", machine.said);
        }
        unreachable!("the last one is asserted")
    }

    /// Starts QEMU by this command, which says what the machine consists of but for its processor and its serial port.
    pub(crate) fn start(mut command: Command) -> Machine {
        command
            .args(["-cpu", "max"])
            .args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot", "-nodefaults"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("./dev setup --tests installs it");
        let (send, lines) = channel();
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("it is a pipe")),
            Box::new(child.stderr.take().expect("it is a pipe")),
        ];
        for stream in streams {
            let send = send.clone();
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut line = Vec::new();
                while stream.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
        Machine { child, lines, said: String::new() }
    }

    /// Waits until it says this.
    pub(crate) fn wait_for(&mut self, what: &str) {
        assert!(self.try_wait_for(what, BOOTS), "it is to say {what}: {}", self.said);
    }

    fn try_wait_for(&mut self, what: &str, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            if self.said.contains(what) {
                return true;
            }
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push_str(&line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Whether it has said this.
    pub(crate) fn has_said(&mut self, what: &str) -> bool {
        self.lines.try_iter().for_each(|line| self.said.push_str(&line));
        self.said.contains(what)
    }

    /// Waits until a line begins with this word and a number that is at least this one. Returns the number.
    pub(crate) fn wait_for_number(&mut self, word: &str, least: u64) -> u64 {
        let until = Instant::now() + BOOTS;
        loop {
            let newest = self.newest(word);
            if newest.is_some_and(|newest| newest >= least) {
                return newest.expect("it is there");
            }
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push_str(&line),
                Err(why) => panic!("it is to say {word} {least}: {why}: {}", self.said),
            }
        }
    }

    /// The number of the last line that begins with this word, of what it has said so far.
    pub(crate) fn newest(&mut self, word: &str) -> Option<u64> {
        self.lines.try_iter().for_each(|line| self.said.push_str(&line));
        let number = |line: &str| line.trim().strip_prefix(word)?.trim().parse().ok();
        // The last line may not be whole.
        let whole = self.said.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().rev().find_map(number)
    }

    /// Waits until its process has ended.
    pub(crate) fn wait_until_ended(&mut self) {
        let until = Instant::now() + BOOTS;
        while self.child.try_wait().expect("it is ours").is_none() {
            assert!(Instant::now() < until, "it is to end: {}", self.said);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends its process a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill runs").success());
    }

    /// As if its power had failed.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::io::stdout().flush();
    }
}
