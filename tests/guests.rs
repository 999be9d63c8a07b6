//! Volumes that are reached by memory that both sides see (vhost-user-blk): by the generator, and by virtual machines.

mod nodes;

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::machine::{Image, Machine};

fn bench(cluster: &Cluster, more: &[&str]) -> (i32, String) {
    let target = format!("vhost-user:{}", cluster.vhost_socket(1, "d").display());
    cluster.try_loadline(&[&["bench", &target, "--warm-up", "0s", "--seed", "7"], more].concat())
}

#[test]
fn a_generator_reads_what_it_wrote_and_a_second_one_is_refused() {
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "1"]);
    let attached = cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let socket = cluster.vhost_socket(1, "d");
    assert!(attached.contains(&format!("path={}", socket.display())), "it says how: {attached}");
    let write = ["--destroy-data", "--verify"];
    for profile in ["B4-T2-O16-W50-PR", "B128-T1-O4-W50-PS", "B1-T1-O8-W50-PR"] {
        let (code, said) = bench(&cluster, &[&["-p", profile, "--for", "1s"], &write[..]].concat());
        // Findings (3) are of the machine's speed.
        assert!(code == 0 || code == 3, "{profile}: {code}: {said}");
        assert!(
            said.contains(" 0 errors") && said.contains(" 0 lost, 0 corrupt, 0 foreign"),
            "{profile}: {said}"
        );
    }
    // What it writes to is to be said.
    let (code, said) = bench(&cluster, &["-p", "B4-T1-O1-W100-PR", "--for", "1s"]);
    assert!(code == 2 && said.contains("--destroy-data"), "{code}: {said}");
    // Another one comes meanwhile.
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| bench(&cluster, &["-p", "B4-T1-O4-W0-PR", "--for", "9s"]));
        std::thread::sleep(Duration::from_millis(1500));
        let (code, said) = bench(&cluster, &["-p", "B4-T1-O1-W0-PR", "--for", "1s"]);
        assert!(code == 1 && said.contains("one front end at a time"), "{code}: {said}");
        first.join().expect("it ends")
    });
    assert!(first.0 == 0 || first.0 == 3, "nothing happened to the first: {}", first.1);
    // When the client has gone and the volume is detached, the socket is removed.
    cluster.loadline(&["volume", "detach", "d"]);
    let begun = Instant::now();
    while UnixStream::connect(&socket).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(5), "its socket goes");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (code, said) = bench(&cluster, &["-p", "B4-T1-O1-W0-PR", "--for", "1s"]);
    assert!(code == 2 && said.contains("no socket"), "{code}: {said}");
}

#[test]
fn a_generator_whose_server_dies_says_so_and_one_that_dies_harms_nobody() {
    let mut cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    // It dies in the middle, again and again.
    let target = format!("vhost-user:{}", cluster.vhost_socket(1, "d").display());
    for _ in 0..5 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_loadline"))
            .args([
                "bench",
                &target,
                "-p",
                "B64-T1-O32-W50-PR",
                "--destroy-data",
                "--warm-up",
                "0s",
                "--for",
                "9s",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program is there");
        std::thread::sleep(Duration::from_millis(300));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }
    let (code, said) =
        bench(&cluster, &["-p", "B4-T1-O16-W50-PR", "--for", "1s", "--destroy-data", "--verify"]);
    assert!(code == 0 || code == 3, "{said}");
    assert!(said.contains(" 0 lost, 0 corrupt, 0 foreign"), "{said}");
    let bytes: Vec<u8> = (0..300).map(|n| n as u8).collect();
    let mut stream = UnixStream::connect(cluster.vhost_socket(1, "d")).expect("it listens");
    std::io::Write::write_all(&mut stream, &bytes).expect("it listens");
    let said = std::thread::scope(|scope| {
        let client = scope.spawn(|| bench(&cluster, &["-p", "B4-T1-O4-W0-PR", "--for", "9s"]));
        std::thread::sleep(Duration::from_millis(2500));
        cluster.signal(1, "KILL");
        client.join().expect("it ends")
    });
    assert!(said.0 != 0 && said.1.contains("closed the connection"), "{}: {}", said.0, said.1);
    cluster.kill(1);
}

#[test]
fn copies_are_equal_that_were_written_by_memory_while_a_node_died() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "2", "--stripes", "2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let (code, said) = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            bench(
                &cluster,
                &["-p", "B8-T1-O16-W70-PR", "--for", "4s", "--destroy-data", "--verify", "--drain", "10s"],
            )
        });
        std::thread::sleep(Duration::from_millis(1500));
        cluster.signal(2, "KILL");
        client.join().expect("it ends")
    });
    assert!(code == 0 || code == 3, "{code}: {said}");
    assert!(said.contains(" 0 errors") && said.contains(" 0 lost, 0 corrupt, 0 foreign"), "{said}");
    cluster.kill(2);
    cluster.start_node(2);
    cluster.wait_until("d", "healthy", Duration::from_secs(60));
}

/// The node at which a volume is attached dies, and another takes the volume over. When the first is there again, a front-end that
/// connects there does not take it back.
#[test]
fn a_front_end_does_not_claim_a_volume_that_another_node_has_taken_over() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "3"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    cluster.kill(1);
    let begun = Instant::now();
    while cluster.owner("d") == 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "another takes it over");
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.start_node(1);
    cluster.wait_until("d", "healthy", Duration::from_secs(60));
    let owner = cluster.owner("d");
    assert!(UnixStream::connect(cluster.vhost_socket(1, "d")).is_err(), "nothing is served here");
    assert_eq!(cluster.owner("d"), owner, "it stays where it is");
    // If another one is prepared here, the machine that connects again does not get its place.
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1", "--when-started"]);
    assert!(UnixStream::connect(cluster.vhost_socket(1, "d")).is_err(), "the other one waits elsewhere");
    assert!(UnixStream::connect(cluster.second_vhost_socket(1, "d")).is_ok(), "it waits here");
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let _guest = UnixStream::connect(cluster.vhost_socket(1, "d")).expect("it listens");
}

/// Makes a file system, and writes to it until the power fails; then checks that everything that was flushed is there.
const SCRIPT: &str = r#"
echo BOOTED
write() {
    for n in $(seq $1 $2); do
        dd if=/dev/urandom of=/mnt/$n bs=4k count=$((n % 50 + 1)) 2>/dev/null
        md5sum /mnt/$n >> /mnt/sums
        [ $((n % 5)) != 0 ] || sync
    done
}
case $STEP in
make)
    /host/mke2fs -q -t ext4 /dev/vda && mount -t ext4 /dev/vda /mnt || exit 1
    write 1 20
    sync
    cp /mnt/sums /mnt/kept
    sync
    echo READY
    write 100 100000
    ;;
check)
    mount -t ext4 /dev/vda /mnt && md5sum -c /mnt/kept > /dev/null && echo WHOLE
    umount /mnt
    /host/e2fsck -f -n /dev/vda && echo CLEAN
    ;;
go)
    mount -t ext4 /dev/vda /mnt && rm -f /mnt/sums
    echo WRITES
    write 100 300
    umount /mnt && mount -t ext4 /dev/vda /mnt && md5sum -c /mnt/sums > /dev/null && echo WHOLE
    umount /mnt
    /host/e2fsck -f -n /dev/vda && echo CLEAN
    ;;
esac
"#;

/// Waits until the machine uses its volume, or has done all.
fn wait_until_it_connects(cluster: &Cluster, machine: &mut Machine) {
    let begun = Instant::now();
    while !cluster.http(1, "/metrics").contains("\nloadline_clients 1\n") && !machine.has_said("CLEAN") {
        assert!(begun.elapsed() < Duration::from_secs(60), "the machine connects: {}", machine.said);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_virtual_machine_finds_its_file_system_clean_after_a_kill_of_it_or_of_its_node() {
    let mut cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "d", "--size", "256MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let socket = cluster.vhost_socket(1, "d");
    let image = Image::new(cluster.folder(), SCRIPT, &["mke2fs", "e2fsck"]);
    let mut machine = image.boot(&socket, "make");
    machine.wait_for("READY");
    // In the middle of writing.
    std::thread::sleep(Duration::from_millis(700));
    machine.kill();
    let mut machine = image.boot(&socket, "check");
    machine.wait_for("CLEAN");
    assert!(machine.said.contains("WHOLE"), "{}", machine.said);
    drop(machine);
    // And the node dies, twice, while it writes: it goes on, with what was in flight.
    let mut machine = image.boot(&socket, "go");
    machine.wait_for("WRITES");
    for _ in 0..2 {
        // QEMU 7.2 does not connect again after a connection that ends before it was answered.
        wait_until_it_connects(&cluster, &mut machine);
        std::thread::sleep(Duration::from_millis(900));
        cluster.kill(1);
        std::thread::sleep(Duration::from_millis(500));
        cluster.start_node(1);
    }
    machine.wait_for("CLEAN");
    assert!(machine.said.contains("WHOLE"), "{}", machine.said);
    assert!(!machine.said.contains("I/O error"), "{}", machine.said);
}

/// The virtual machine cannot go elsewhere: the volume is not handed over, the other node does not take it over, and what the machine has
/// asked is carried out by the node's next process.
#[test]
fn a_virtual_machine_goes_on_writing_while_its_node_is_restarted() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "d", "--size", "256MiB", "--copies", "2", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let socket = cluster.vhost_socket(1, "d");
    let image = Image::new(cluster.folder(), SCRIPT, &["mke2fs", "e2fsck"]);
    let mut machine = image.boot(&socket, "make");
    machine.wait_for("READY");
    machine.kill();
    let mut machine = image.boot(&socket, "go");
    machine.wait_for("WRITES");
    std::thread::sleep(Duration::from_millis(500));
    cluster.loadline(&["node", "restart", "node-1"]);
    assert_eq!(cluster.owner("d"), 1);
    // Longer than the two leases after which the other node takes over a volume whose owner has ended.
    let longer = Duration::from_secs(3);
    cluster.signal(1, "TERM");
    cluster.wait_until_gone(1);
    machine.signal("STOP");
    std::thread::sleep(longer);
    cluster.start_node(1);
    // The same, if the machine does not connect again at once.
    std::thread::sleep(longer);
    machine.signal("CONT");
    machine.wait_for("CLEAN");
    assert!(machine.said.contains("WHOLE"), "{}", machine.said);
    assert!(!machine.said.contains("I/O error"), "{}", machine.said);
    let log = cluster.log(1);
    assert_eq!(log.matches("0 volumes were handed over").count(), 2, "{log}");
    assert!(!cluster.log(2).contains("this node serves it"), "{}", cluster.log(2));
}
