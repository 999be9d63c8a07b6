//! Virtual machines that are migrated while they write to a volume: the volume goes with the machine, at the instant at which the machine
//! starts at its destination (rules H1 to H3).

mod nodes;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::machine::{Image, Machine};
use nodes::qmp::Qmp;
use serde_json::json;

/// How long what is not the machine's own may take.
const SOON: Duration = Duration::from_secs(30);

/// Writes 16 pieces of the disk in turn, each round with other content, and reads all of them in each round. `check` reads what the last
/// run has left: a piece that was being written when the machine ended may be torn, and no other.
const SCRIPT: &str = r#"
echo BOOTED
content() { yes "piece $1 round $2 0123456789abcdef" | head -c 131072; }
piece() { dd if=/dev/vda bs=64k skip=$(($1 * 2)) count=2 iflag=direct 2>/dev/null; }
case $STEP in
go)
    n=0
    while true; do
        n=$((n + 1)); k=$((n % 16))
        content $k $n > /data
        dd if=/data of=/dev/vda bs=64k seek=$((k * 2)) oflag=direct conv=fsync 2>/dev/null || echo FAILED to write
        eval of_$k=$n
        for k in $(seq 0 15); do
            eval r=\$of_$k
            [ -n "$r" ] || continue
            content $k $r > /data
            piece $k > /got || echo FAILED to read
            cmp -s /data /got || echo CORRUPT $k $r: $(head -n 1 /got)
        done
        echo ROUND $n
    done
    ;;
check)
    torn=0; newest=0
    for k in $(seq 0 15); do
        piece $k > /got
        set -- $(head -n 1 /got)
        content $k $4 > /data
        cmp -s /data /got || torn=$((torn + 1))
        [ "$4" -le $newest ] || newest=$4
    done
    echo TORN $torn
    echo NEWEST $newest
    ;;
esac
"#;

/// A machine that runs at a node, and the cluster.
struct Running {
    machine: Machine,
    qmp: Qmp,
}

/// A cluster with a volume, and what starts machines.
struct Scene {
    cluster: Cluster,
    image: Image,
    controls: u32,
}

impl Scene {
    fn new() -> Scene {
        Scene::with("64MiB", SCRIPT, &[])
    }

    /// A volume of this size, and machines that run this script, with these programs of the host.
    fn with(size: &str, script: &str, programs: &[&str]) -> Scene {
        let cluster = Cluster::start(3);
        cluster.loadline(&["volume", "create", "d", "--size", size, "--copies", "2"]);
        cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
        let image = Image::new(cluster.folder(), script, programs);
        Scene { cluster, image, controls: 0 }
    }

    fn start(&mut self, socket: &Path, step: &str, is_destination: bool) -> Running {
        self.controls += 1;
        let control = self.cluster.folder().join(format!("control-{}", self.controls));
        let machine = self.image.migratable(socket, step, &control, is_destination);
        Running { machine, qmp: Qmp::connect(&control) }
    }

    /// A machine that writes, at node 1.
    fn writing(&mut self) -> Running {
        let mut running = self.start(&self.cluster.vhost_socket(1, "d"), "go", false);
        running.machine.wait_for_number("ROUND", 17);
        running
    }

    /// A destination at this node, whose machine waits for what comes from the source.
    fn destination(&mut self, node: u8, socket: &Path) -> (Running, PathBuf) {
        self.destination_of(node, socket, "go")
    }

    /// The same, for a machine of this step.
    fn destination_of(&mut self, node: u8, socket: &Path, step: &str) -> (Running, PathBuf) {
        let name = format!("node-{node}");
        let said = self.cluster.loadline(&["volume", "attach", "d", "--node", &name, "--when-started"]);
        assert!(said.contains(&format!("path={}", socket.display())), "it says how: {said}");
        let mut destination = self.start(socket, step, true);
        let stream = self.cluster.folder().join(format!("stream-{}", self.controls));
        destination.qmp.run("migrate-incoming", json!({"uri": format!("unix:{}", stream.display())}));
        (destination, stream)
    }

    /// Migrates a machine to this socket of a node. Returns the machine there.
    fn migrate(&mut self, source: Running, node: u8, socket: &Path) -> Running {
        self.migrate_step(source, node, socket, "go")
    }

    /// The same, of a machine of this step.
    fn migrate_step(&mut self, mut source: Running, node: u8, socket: &Path, step: &str) -> Running {
        let (mut destination, stream) = self.destination_of(node, socket, step);
        let before = source.machine.newest("ROUND").expect("it writes");
        source.qmp.run("migrate", json!({"uri": format!("unix:{}", stream.display())}));
        assert_eq!(source.qmp.migration_becomes("completed"), "completed");
        let newest = source.machine.newest("ROUND").expect("it wrote");
        assert!(newest >= before);
        // Two rounds have begun there: each has read everything.
        destination.machine.wait_for_number("ROUND", newest + 3);
        assert_whole(&source.machine);
        assert_whole(&destination.machine);
        assert_eq!(self.cluster.owner("d"), node, "the volume has come with the machine");
        destination
    }

    /// Nothing waits at this socket any more.
    fn wait_until_closed(&self, socket: &Path) {
        let begun = Instant::now();
        while UnixStream::connect(socket).is_ok() {
            assert!(begun.elapsed() < SOON, "{} is removed", socket.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A machine goes on writing where it was, and its volume is where it was.
    fn assert_goes_on(&self, running: &mut Running) {
        let newest = running.machine.newest("ROUND").expect("it writes");
        running.machine.wait_for_number("ROUND", newest + 3);
        assert_whole(&running.machine);
        assert_eq!(self.cluster.owner("d"), 1);
        let log = self.cluster.log(1);
        assert!(!log.contains("is disconnected"), "nothing has happened to it: {log}");
    }
}

/// A machine has seen no error, and nothing that it did not write last.
fn assert_whole(machine: &Machine) {
    for word in ["FAILED", "CORRUPT", "I/O error", "panic"] {
        assert!(!machine.said.contains(word), "{}", machine.said);
    }
}

#[test]
fn a_machine_that_writes_is_migrated_back_and_forth_and_loses_nothing() {
    let mut scene = Scene::new();
    let mut running = scene.writing();
    for node in [2, 3, 1] {
        let socket = scene.cluster.vhost_socket(node, "d");
        running = scene.migrate(running, node, &socket);
    }
    // To another machine of the same host, and away from there.
    let second = scene.cluster.second_vhost_socket(1, "d");
    running = scene.migrate(running, 1, &second);
    let first = scene.cluster.vhost_socket(1, "d");
    scene.wait_until_closed(&first);
    // Its node starts again, and the machine finds its socket.
    scene.cluster.kill(1);
    scene.cluster.start_node(1);
    let newest = running.machine.newest("ROUND").expect("it writes");
    running.machine.wait_for_number("ROUND", newest + 3);
    running = scene.migrate(running, 1, &first);
    scene.wait_until_closed(&second);
    let socket = scene.cluster.vhost_socket(2, "d");
    running = scene.migrate(running, 2, &socket);
    scene.wait_until_closed(&first);
    assert_whole(&running.machine);
}

#[test]
fn a_migration_that_is_cancelled_leaves_no_trace() {
    let mut scene = Scene::new();
    let mut source = scene.writing();
    let socket = scene.cluster.vhost_socket(2, "d");
    let (mut destination, stream) = scene.destination(2, &socket);
    // So slow that it does not end.
    source.qmp.run("migrate-set-parameters", json!({"max-bandwidth": 1 << 18}));
    source.qmp.run("migrate", json!({"uri": format!("unix:{}", stream.display())}));
    assert_eq!(source.qmp.migration_becomes("active"), "active");
    let newest = source.machine.newest("ROUND").expect("it writes");
    source.machine.wait_for_number("ROUND", newest + 2);
    source.qmp.run("migrate_cancel", json!({}));
    assert_eq!(source.qmp.migration_becomes("cancelled"), "cancelled");
    destination.machine.wait_until_ended();
    scene.wait_until_closed(&socket);
    scene.assert_goes_on(&mut source);
    // And it can be tried again.
    source.qmp.run("migrate-set-parameters", json!({"max-bandwidth": 1_u64 << 33}));
    scene.migrate(source, 2, &socket);
}

#[test]
fn a_destination_that_is_killed_before_the_machine_starts_there_leaves_no_trace() {
    let mut scene = Scene::new();
    let mut source = scene.writing();
    let socket = scene.cluster.vhost_socket(2, "d");
    let (destination, stream) = scene.destination(2, &socket);
    source.qmp.run("migrate-set-parameters", json!({"max-bandwidth": 1 << 18}));
    source.qmp.run("migrate", json!({"uri": format!("unix:{}", stream.display())}));
    assert_eq!(source.qmp.migration_becomes("active"), "active");
    destination.machine.kill();
    assert_eq!(source.qmp.migration_becomes("failed"), "failed");
    scene.wait_until_closed(&socket);
    scene.assert_goes_on(&mut source);
}

#[test]
fn a_source_that_is_killed_before_the_machine_has_moved_loses_nothing_and_is_served_where_it_was() {
    let mut scene = Scene::new();
    let mut source = scene.writing();
    let socket = scene.cluster.vhost_socket(2, "d");
    let (mut destination, stream) = scene.destination(2, &socket);
    source.qmp.run("migrate-set-parameters", json!({"max-bandwidth": 1 << 18}));
    source.qmp.run("migrate", json!({"uri": format!("unix:{}", stream.display())}));
    assert_eq!(source.qmp.migration_becomes("active"), "active");
    let before = source.machine.newest("ROUND").expect("it writes");
    source.machine.wait_for_number("ROUND", before + 1);
    let written = source.machine.newest("ROUND").expect("it writes");
    assert_whole(&source.machine);
    source.machine.kill();
    destination.machine.wait_until_ended();
    assert_eq!(destination.machine.newest("ROUND"), None, "it never started");
    scene.wait_until_closed(&socket);
    assert_eq!(scene.cluster.owner("d"), 1);
    let mut check = scene.start(&scene.cluster.vhost_socket(1, "d"), "check", false);
    let newest = check.machine.wait_for_number("NEWEST", written);
    assert!(check.machine.newest("TORN").is_some_and(|torn| torn <= 1), "{}", check.machine.said);
    assert!(newest >= written);
}

/// Makes a file system, and writes files to it: each is flushed, and then its checksum is. `check` replays the journal and checks all.
const FILES: &str = r#"
echo BOOTED
case $STEP in
ext|xfs)
    case $STEP in
    ext) kind=ext4; /host/mke2fs -q -t ext4 /dev/vda || echo FAILED to make it ;;
    xfs) kind=xfs; /host/mkfs.xfs -q /dev/vda || echo FAILED to make it ;;
    esac
    mount -t $kind /dev/vda /mnt || echo FAILED to mount it
    n=0
    while true; do
        n=$((n + 1))
        dd if=/dev/urandom of=/mnt/$n bs=4k count=$((n % 50 + 1)) conv=fsync 2>/dev/null || echo FAILED to write
        md5sum /mnt/$n >> /mnt/sums && sync || echo FAILED to note it
        [ $n -le 40 ] || rm /mnt/$((n - 40)) || echo FAILED to remove
        echo ROUND $n
    done
    ;;
check)
    kind=ext4; check="/host/e2fsck -fn"
    [ "$(head -c 4 /dev/vda)" != XFSB ] || { kind=xfs; check="/host/xfs_repair -n"; }
    mount -t $kind /dev/vda /mnt || echo FAILED to mount it
    # Those that are there: the older ones were removed.
    tail -n 30 /mnt/sums | md5sum -c | grep -v OK && echo CORRUPT
    kept=$(wc -l < /mnt/sums)
    umount /mnt && $check /dev/vda && echo CLEAN
    echo KEPT $kept
    ;;
esac
"#;

/// A machine with a mounted file system is migrated while it writes, back and forth, and killed. What it had flushed is there.
fn file_system_is_clean_after_migrations(step: &str) {
    let mut scene = Scene::with("320MiB", FILES, &["mke2fs", "e2fsck", "mkfs.xfs", "xfs_repair"]);
    let mut running = scene.start(&scene.cluster.vhost_socket(1, "d"), step, false);
    running.machine.wait_for_number("ROUND", 10);
    for node in [2, 1] {
        let socket = scene.cluster.vhost_socket(node, "d");
        running = scene.migrate_step(running, node, &socket, step);
    }
    let newest = running.machine.newest("ROUND").expect("it writes");
    running.machine.wait_for_number("ROUND", newest + 20);
    let written = running.machine.newest("ROUND").expect("it writes");
    assert_whole(&running.machine);
    running.machine.kill();
    let mut check = scene.start(&scene.cluster.vhost_socket(1, "d"), "check", false);
    check.machine.wait_for_number("KEPT", written);
    assert_whole(&check.machine);
    assert!(check.machine.said.contains("CLEAN"), "{}", check.machine.said);
}

#[test]
fn an_ext4_file_system_is_clean_in_a_machine_that_was_migrated_while_it_wrote() {
    file_system_is_clean_after_migrations("ext");
}

#[test]
fn an_xfs_file_system_is_clean_in_a_machine_that_was_migrated_while_it_wrote() {
    file_system_is_clean_after_migrations("xfs");
}

/// A destination that was forgotten must not take the volume from a machine that was started elsewhere.
#[test]
fn an_attachment_that_waits_ends_with_the_present_one_and_with_its_client() {
    let scene = Scene::new();
    let wait =
        |node: &str| scene.cluster.loadline(&["volume", "attach", "d", "--node", node, "--when-started"]);
    let socket = scene.cluster.vhost_socket(2, "d");
    // Another attach, elsewhere and at the same node; a detach.
    for orders in
        [&["attach", "d", "--node", "node-3"][..], &["attach", "d", "--node", "node-3"], &["detach", "d"]]
    {
        wait("node-2");
        let mut client = UnixStream::connect(&socket).expect("it waits");
        scene.cluster.loadline(&[&["volume"], orders].concat());
        client.set_read_timeout(Some(SOON)).expect("it is not zero");
        let ended = std::io::Read::read(&mut client, &mut [0]).expect("it is disconnected");
        assert_eq!(ended, 0);
        scene.wait_until_closed(&socket);
    }
    let (code, said) =
        scene.cluster.try_loadline(&["volume", "attach", "d", "--node", "node-2", "--when-started"]);
    assert!(code != 0 && said.contains("is not attached"), "{code}: {said}");
    // A client that goes; and one more beside it, which is refused.
    scene.cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    wait("node-2");
    let client = UnixStream::connect(&socket).expect("it waits");
    let mut second = UnixStream::connect(&socket).expect("it listens");
    assert_eq!(std::io::Read::read(&mut second, &mut [0]).expect("it is disconnected"), 0);
    drop(client);
    scene.wait_until_closed(&socket);
    assert_eq!(scene.cluster.owner("d"), 1);
}
