//! `loadline guest shell`: real machines with a disk, which is a file or a volume of a real cluster that loses nodes.

mod nodes;
mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::Nbd;
use support::{Said, eventually, finish, folder, signal};

/// How long a machine may take for what is asked of it, on a busy host without hardware virtualisation.
const LIMIT: Duration = Duration::from_secs(120);

/// What machines of one test are started from, which tells them from those of others.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: folder() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `command` with what machines need.
    fn prepared(&self, mut command: Command) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_loadline"));
        let target = program.parent().and_then(Path::parent).expect("cargo's folder");
        command
            .env("LOADLINE_GUEST_KERNEL", target.join("guest"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// A session on a disk that is no volume.
    fn session(&self, disk: &Path, more: &[&str]) -> Command {
        let mut command = self.prepared(Command::new(env!("CARGO_BIN_EXE_loadline")));
        command.args(["guest", "shell"]).arg(disk).args(more);
        command
    }

    fn on(&self, disk: &Path, more: &[&str]) -> Said {
        finish(self.session(disk, more).spawn().unwrap(), LIMIT)
    }

    /// Processes that have a word of this place in their command line: QEMU, and what detaches a volume of a cluster in it.
    fn processes(&self, word: &str) -> Vec<u32> {
        let cache = self.path("cache").display().to_string();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        all.filter(|process| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            line.contains(word) && String::from_utf8_lossy(&environment).contains(&cache)
        })
        .collect()
    }

    fn machines(&self) -> Vec<u32> {
        self.processes("qemu-system")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = [self.machines(), self.processes("hold-attachment")].concat();
        if !std::thread::panicking() {
            assert!(left.is_empty(), "processes are left: {left:?}");
        }
        left.into_iter().for_each(|process| signal(process, "KILL"));
    }
}

/// A session that goes on, with the lines that it has printed.
struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
        Running { child, input, lines, said: Vec::new() }
    }

    /// Waits until so many lines begin with a word.
    fn wait_for(&mut self, word: &str, count: usize) {
        let until = Instant::now() + LIMIT;
        while self.count(word) < count {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                // A key that was pressed before the machine has the terminal is shown by the terminal itself.
                Ok(line) => self.said.push(line.trim_start_matches("^]").to_owned()),
                Err(why) => panic!("{count} times {word}: {why}: {:?}", self.said),
            }
        }
    }

    /// How many of its lines begin with a word by now.
    fn count(&mut self, word: &str) -> usize {
        self.said.extend(self.lines.try_iter());
        self.said.iter().filter(|line| line.starts_with(word)).count()
    }

    /// Waits for more of them than there are by now.
    fn wait_for_more(&mut self, word: &str, more: usize) {
        let count = self.count(word);
        self.wait_for(word, count + more);
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes files until the machine ends: each is flushed, and then its checksum is printed.
const WRITES: &str = r#"
mount /dev/vda /mnt || exit 9
n=0
while true; do
    n=$((n + 1))
    dd if=/dev/urandom of=/mnt/$n bs=16k count=$((n % 8 + 1)) conv=fsync 2>/dev/null || { echo FAILED $n; exit 8; }
    echo "SYNCED $(md5sum /mnt/$n)"
done
"#;

/// A cluster on hosts of its own, with a volume of each file system that a machine writes to.
fn writing(cluster: &Cluster, place: &Place, kinds: [&'static str; 2]) -> Vec<(&'static str, Running)> {
    let session = |kind: &str| {
        let script = format!("mkfs.{kind} -q /dev/vda || exit 9\n{WRITES}");
        let command = cluster.command(&["guest", "shell", kind, "--", "sh", "-c", &script]);
        Running::start(place.prepared(command))
    };
    kinds.into_iter().map(|kind| (kind, session(kind))).collect()
}

#[test]
fn what_was_flushed_holds_and_file_systems_are_clean_after_the_loss_of_nodes_and_of_the_machine() {
    if !nodes::hosts::possible() {
        return;
    }
    let place = Place::new();
    let mut cluster = Cluster::start_on_hosts(3, &[], "");
    let kinds = ["ext4", "xfs"];
    for kind in kinds {
        cluster.loadline(&["volume", "create", kind, "--size", "320MiB", "--copies", "2", "--log", "64MiB"]);
    }
    for kind in kinds {
        cluster.loadline(&["volume", "attach", kind, "--node", "node-3"]);
    }
    let mut machines = writing(&cluster, &place, kinds);
    let go_on = |machines: &mut Vec<(&str, Running)>| {
        machines.iter_mut().for_each(|(_, machine)| machine.wait_for_more("SYNCED", 10));
    };
    go_on(&mut machines);
    // The node that serves both volumes is killed, and comes back.
    cluster.kill(3);
    go_on(&mut machines);
    cluster.start_node(3);
    for kind in kinds {
        cluster.wait_until(kind, "healthy", LIMIT);
        assert_ne!(cluster.owner(kind), 3, "another node has taken it over");
    }
    // The node that serves the first one is cut off from the others, in both directions, and not from the machines.
    let alone = cluster.owner(kinds[0]);
    let others: Vec<u8> = (1..=3).filter(|node| *node != alone).collect();
    for &other in &others {
        cluster.hosts().cut(alone, other);
        cluster.hosts().cut(other, alone);
    }
    cluster.wait_until_not(kinds[0], "healthy", LIMIT);
    go_on(&mut machines);
    for &other in &others {
        cluster.hosts().mend(alone, other);
        cluster.hosts().mend(other, alone);
    }
    go_on(&mut machines);
    // And the machines are lost too, while they write: with the process that keeps them, which leaves nothing.
    for (_, machine) in &mut machines {
        machine.kill();
        assert_eq!(machine.count("FAILED"), 0, "{:?}", machine.said);
    }
    eventually("no machine is left", LIMIT, || place.machines().is_empty());
    let checked = std::thread::scope(|scope| {
        let checks: Vec<_> = machines
            .iter_mut()
            .map(|(kind, machine)| {
                machine.count("SYNCED");
                let (cluster, place) = (&cluster, &place);
                scope.spawn(move || checked(cluster, place, kind, &machine.said))
            })
            .collect();
        checks.into_iter().map(|check| check.join().unwrap()).sum::<usize>()
    });
    assert!(checked >= 80, "{checked} files were flushed");
    for kind in kinds {
        let shown = cluster.loadline(&["volume", "show", kind]);
        assert!(shown.contains("attached  node-"), "it was attached before, and stays so: {shown}");
    }
}

/// Checks a volume's file system, and all files that a machine has flushed. Returns how many these are.
fn checked(cluster: &Cluster, place: &Place, kind: &str, said: &[String]) -> usize {
    // Its last connection ends within seconds.
    let begun = Instant::now();
    let said_of_check = loop {
        let command = cluster.command(&["guest", "shell", kind, "--check", "--json"]);
        let said = finish(place.prepared(command).spawn().unwrap(), LIMIT);
        if said.code != Some(2) || !said.err.contains("in use") || begun.elapsed() > LIMIT {
            break said;
        }
    };
    assert_eq!(said_of_check.code, Some(0), "{kind}: {}{}", said_of_check.out, said_of_check.err);
    let report = said_of_check.json();
    assert_eq!((&report["clean"], &report["journal_replayed"]), (&true.into(), &true.into()), "{report}");
    assert_eq!(report["file_system"], kind);
    // Given to the machine by its input.
    let sums: Vec<&str> = said.iter().filter_map(|line| line.strip_prefix("SYNCED ")).collect();
    let script =
        "mount -o ro /dev/vda /mnt && md5sum -c - > /tmp/sums; grep -v OK /tmp/sums; grep -c OK /tmp/sums";
    let command = cluster.command(&["guest", "shell", kind, "--read-only", "--", "sh", "-c", script]);
    let mut child = place.prepared(command).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{}\n", sums.join("\n")).as_bytes()).unwrap();
    let said = finish(child, LIMIT);
    assert_eq!(said.out, format!("{}\n", sums.len()), "{kind}: {}", said.err);
    sums.len()
}

#[test]
fn a_volume_is_attached_for_its_machine_only_and_a_second_writer_is_refused() {
    let place = Place::new();
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "1"]);
    let session = |more: &[&str]| place.prepared(cluster.command(&[&["guest", "shell"], more].concat()));
    let said = |more: &[&str]| finish(session(more).spawn().unwrap(), LIMIT);
    said(&["nowhere"]).refused(2, &["nowhere"]);
    said(&["d", "--json"]).refused(2, &["--json is for --check"]);
    said(&["d", "--node", "nowhere"]).refused(2, &["nowhere"]);
    let is_detached = || cluster.loadline(&["volume", "show", "d"]).contains("attached  -");
    assert!(is_detached());
    // In order: it is detached when the command returns.
    let first = said(&["d", "--", "sh", "-c", "echo content > /dev/vda; exit 5"]);
    assert_eq!(first.code, Some(5), "{}", first.err);
    assert!(first.err.contains("attached for this machine"), "{}", first.err);
    assert!(is_detached());
    // Another one beside a session, which is then killed, and so its keeper cannot do anything about what it had.
    let mut running =
        Running::start(session(&["d", "--", "sh", "-c", "head -n 1 /dev/vda; exec sleep 1000"]));
    running.wait_for("content", 1);
    said(&["d"]).refused(2, &["d is in use", "--read-only"]);
    let beside = said(&["d", "--read-only", "--", "head", "-n", "1", "/dev/vda"]);
    assert_eq!((beside.code, beside.out.as_str()), (Some(0), "content\n"), "{}", beside.err);
    assert!(!is_detached(), "the first one uses it");
    running.kill();
    eventually("no machine is left", LIMIT, || place.machines().is_empty());
    eventually("the volume is detached", LIMIT, is_detached);
    eventually("nothing waits to detach it", LIMIT, || place.processes("hold-attachment").is_empty());
}

#[test]
fn a_session_ends_its_own_attachment_whenever_it_is_killed_and_no_other() {
    let place = Place::new();
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "1"]);
    let session =
        || place.prepared(cluster.command(&["guest", "shell", "d", "--", "sh", "-c", "echo BEGUN; read x"]));
    let is_detached = || cluster.loadline(&["volume", "show", "d"]).contains("attached  -");
    let nothing_waits = || place.processes("hold-attachment").is_empty();
    // Another attach was ordered while the session went on.
    let mut running = Running::start(session());
    running.wait_for("BEGUN", 1);
    assert!(!is_detached());
    cluster.loadline(&["volume", "attach", "d"]);
    running.input.write_all(b"x\n").unwrap();
    eventually("the session ends", LIMIT, || running.child.try_wait().unwrap().is_some());
    eventually("nothing waits to detach it", LIMIT, nothing_waits);
    assert!(!is_detached(), "it is attached by another order");
    cluster.loadline(&["volume", "detach", "d"]);
    for after in [0, 10, 20, 40, 80, 150, 300, 600, 1200] {
        let mut running = Running::start(session());
        std::thread::sleep(Duration::from_millis(after));
        running.kill();
        eventually("no machine is left", LIMIT, || place.machines().is_empty());
        eventually("nothing waits to detach it", LIMIT, nothing_waits);
        assert!(is_detached(), "killed after {after} ms");
    }
}

#[test]
fn a_volume_whose_client_may_connect_again_is_waited_for_and_refused_when_it_does() {
    let place = Place::new();
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "d"]);
    let address = cluster.addresses()[0];
    let session = || place.prepared(cluster.command(&["guest", "shell", "d", "--", "true"]));
    let said = || finish(session().spawn().unwrap(), LIMIT);
    // After one that has announced its end, and after another machine, nothing is waited for.
    Nbd::connect(address, "d").unwrap().leave();
    for _ in 0..2 {
        let said = said();
        assert_eq!(said.code, Some(0), "{}", said.err);
        assert!(!said.err.contains("may connect again"), "{}", said.err);
    }
    let mut lost = Nbd::connect(address, "d").unwrap();
    lost.read(0).unwrap();
    drop(lost);
    // The node notices that.
    std::thread::sleep(Duration::from_secs(2));
    let mut child = session().spawn().unwrap();
    let mut words = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    words.read_line(&mut line).unwrap();
    assert!(line.contains("may connect again: waiting"), "{line}");
    let back = Nbd::connect(address, "d").unwrap();
    line.clear();
    words.read_line(&mut line).unwrap();
    assert!(line.contains("d is in use") && line.contains("--read-only"), "{line}");
    assert_eq!(finish(child, LIMIT).code, Some(2));
    back.leave();
    let begun = Instant::now();
    let said = said();
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(begun.elapsed() > Duration::from_secs(15), "{:?}: {}", begun.elapsed(), said.err);
}

#[test]
fn what_a_session_leaves_mounted_and_in_use_is_unmounted() {
    let place = Place::new();
    let disk = place.path("disk");
    File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let script = "mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt && mkdir /mnt/t /mnt/dev && mount -t tmpfs t /mnt/t && \
                  mount --bind /dev /mnt/dev && (sleep 1000 > /mnt/open & dd if=/dev/zero of=/mnt/big bs=1M count=20 2>/dev/null)";
    let said = place.on(&disk, &["--", "sh", "-c", script]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    // Its journal is empty.
    let said = place.on(&disk, &["--check", "--read-only"]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let said =
        place.on(&disk, &["--", "sh", "-c", "dumpe2fs -h /dev/vda 2>/dev/null | grep -c needs_recovery"]);
    assert_eq!(said.out, "0\n", "{}", said.err);
}

#[test]
fn a_first_partition_is_checked_and_not_what_is_left_of_an_older_file_system() {
    let place = Place::new();
    let disk = place.path("disk");
    File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let made = |device: &str| {
        let said = place.on(&disk, &["--", "mkfs.ext4", "-q", "-F", device]);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    };
    made("/dev/vda");
    let said = place.on(&disk, &["--check"]);
    assert!(
        said.out.starts_with(&format!("{}: the ext4 file system is clean", disk.display())),
        "{}",
        said.out
    );
    // A partition of Linux from 1 MiB on, of 62 MiB.
    let mut table = [0; 66];
    table[4] = 0x83;
    table[8..12].copy_from_slice(&2048u32.to_le_bytes());
    table[12..16].copy_from_slice(&(62u32 << 11).to_le_bytes());
    table[64..].copy_from_slice(&[0x55, 0xaa]);
    File::options().write(true).open(&disk).unwrap().write_all_at(&table, 446).unwrap();
    made("/dev/vda1");
    let said = place.on(&disk, &["--check"]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.out.contains(", partition 1: the ext4 file system is clean"), "{}", said.out);
    assert!(
        said.out.contains("The whole disk begins with the superblock of an ext4 file system"),
        "{}",
        said.out
    );
    let report = place.on(&disk, &["--check", "--json"]).json();
    assert_eq!((&report["partition"], &report["not_checked"]), (&1.into(), &"ext4".into()), "{report}");
}

/// A disk of so many MiB, on which a machine has made a file system and then, without the kernel, a mistake.
fn with_mistake(place: &Place, kind: &str, mib: u64, mistake: &str) -> PathBuf {
    let disk = place.path(kind);
    File::create(&disk).unwrap().set_len(mib << 20).unwrap();
    let script = format!(
        "mkfs.{kind} -q /dev/vda && mount /dev/vda /mnt && cp -r /bin /usr /mnt && umount /mnt && {mistake}"
    );
    let said = place.on(&disk, &["--", "sh", "-c", &script]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    disk
}

/// The disk's file system is not clean. What the check said.
fn not_clean(place: &Place, kind: &str, disk: &Path) -> String {
    let said = place.on(disk, &["--check"]);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains(&format!("the {kind} file system is not clean")), "{}", said.out);
    assert!(said.out.lines().count() > 5, "with the words of the tool: {}", said.out);
    said.out
}

#[test]
fn a_corrupt_file_system_is_not_clean_and_a_disk_without_one_is_refused() {
    let place = Place::new();
    std::thread::scope(|scope| {
        // Mistakes with which a file system can be mounted: a file's inode that is cleared, a count of free inodes that is wrong.
        scope.spawn(|| {
            let cleared = "debugfs -w -R 'clri /usr/sbin/e2fsck' /dev/vda";
            let disk = with_mistake(&place, "ext4", 64, cleared);
            let said = not_clean(&place, "ext4", &disk);
            assert!(!said.contains("cannot be mounted"), "{said}");
            let empty = place.path("empty");
            File::create(&empty).unwrap().set_len(32 << 20).unwrap();
            place.on(&empty, &["--check"]).refused(2, &["cannot be checked", "no file system"]);
        });
        let miscounted = "xfs_db -x -c 'agi 0' -c 'write -d freecount 5' /dev/vda";
        let disk = with_mistake(&place, "xfs", 320, miscounted);
        let said = not_clean(&place, "xfs", &disk);
        assert!(!said.contains("cannot be mounted"), "{said}");
        // And one with which it cannot: the headers behind the superblock.
        let file = File::options().write(true).open(&disk).unwrap();
        file.write_all_at(&[0x5a; 1024], 512).unwrap();
        file.sync_all().unwrap();
        let said = not_clean(&place, "xfs", &disk);
        assert!(said.contains("cannot be mounted"), "{said}");
    });
}

#[test]
fn a_session_that_is_interrupted_or_whose_machine_dies_leaves_nothing_and_its_disk_is_its_own() {
    let place = Place::new();
    let disk = place.path("disk");
    File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    let begin = || {
        let mut running =
            Running::start(place.session(&disk, &["--", "sh", "-c", "echo BEGUN; exec sleep 1000"]));
        running.wait_for("BEGUN", 1);
        running
    };
    let ended = |mut running: Running| {
        let begun = Instant::now();
        loop {
            if let Some(status) = running.child.try_wait().unwrap() {
                assert!(place.machines().is_empty());
                return status.code();
            }
            assert!(begun.elapsed() < LIMIT, "it ends");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let running = begin();
    place.on(&disk, &[]).refused(2, &["in use"]);
    signal(running.child.id(), "INT");
    assert_eq!(ended(running), Some(130));
    let running = begin();
    signal(place.machines()[0], "KILL");
    assert_eq!(ended(running), Some(1));
    place.on(&place.path("nowhere"), &[]).refused(2, &["does not exist"]);
    place.on(Path::new("null:1GiB"), &[]).refused(2, &["null target"]);
    place.on(&disk, &["--memory", "1MiB"]).refused(2, &["--memory", "96MiB"]);
    // Without a terminal and a command, the input has the commands; a program that the machine lacks has a shell's exit code.
    let mut child = place.session(&disk, &[]).stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"echo from the input >&2\nblockdev --getsize64 /dev/vda\nexit 7\n")
        .unwrap();
    let said = finish(child, LIMIT);
    assert_eq!((said.code, said.out.as_str()), (Some(7), "33554432\n"), "{}", said.err);
    assert!(said.err.contains("from the input"), "{}", said.err);
    place.on(&disk, &["--", "no-such-program"]).refused(127, &["no program no-such-program"]);
}

#[test]
fn a_terminal_is_the_machines_and_is_restored_and_one_key_ends_the_machine() {
    let place = Place::new();
    let disk = place.path("disk");
    File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    let session = place.session(&disk, &[]);
    let words: Vec<_> = session.get_args().map(|word| word.to_str().unwrap()).collect();
    let line = format!("{} {}; echo ENDED $?; stty -a", env!("CARGO_BIN_EXE_loadline"), words.join(" "));
    let terminal = || {
        let mut command = place.prepared(Command::new("script"));
        command.args(["-qec", &line, "/dev/null"]);
        Running::start(command)
    };
    for (keys, code) in [("tty\rexit 3\r", 3), ("\x1d", 130)] {
        let mut running = terminal();
        running.wait_for("it has booted in", 1);
        running.input.write_all(keys.as_bytes()).unwrap();
        running.wait_for("ENDED", 1);
        assert_eq!(
            running.said.iter().find(|line| line.starts_with("ENDED")).unwrap(),
            &format!("ENDED {code}")
        );
        running.wait_for("speed", 1);
        running.wait_for("isig", 1);
        if code == 3 {
            assert_eq!(running.count("/dev/pts/0"), 1, "{:?}", running.said);
        }
    }
}
