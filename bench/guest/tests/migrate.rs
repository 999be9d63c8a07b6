//! Machines that are migrated to another QEMU while they work.

mod machine;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use loadline_guest::control::Ended;
use loadline_guest::{Devices, MachineDisk, Migrated, Remote, Whither};
use machine::{LIMIT, Script, disk_of, opened, run, wait_until_gone, within_limit};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// A machine that counts: it writes each number to its disk and to its memory of a file, tells it to its controller, and goes on when the
/// controller has said the same number. A number that is not on the disk, or that is not answered, ends it. It counts how often its keeper
/// told it that it stood still.
const COUNTS: &str = r#"
    say '"hello"'
    receive >/dev/null
    disk=/dev/$(disk_at "$(ask disk)")
    device=/sys/bus/pci/devices/$(ask memory)
    until_there $device/resource2 >/dev/null
    echo 1 >$device/enable
    start=$(sed -n 3p $device/resource | cut -d' ' -f1)
    say '{"dial":1}'
    number=0 stood=0
    while true; do
        number=$((number + 1))
        devmem $start 32 $number
        printf '%08d' $number | dd of=$disk bs=4096 seek=$((number % 16)) conv=sync,fsync oflag=direct 2>/dev/null
        pass 1 "$number
"
        while true; do
            said=$(receive)
            case $said in
                '{"stood_still":'*) stood=$((stood + 1)) ;;
                *) break ;;
            esac
        done
        [ "$said" != stop ] || { ended 0 "$number $stood"; sleep 60; }
        [ "$said" = $number ] || { ended 1 "$said in answer to $number"; sleep 60; }
        [ "$(dd if=$disk bs=4096 skip=$((number % 16)) count=1 iflag=direct 2>/dev/null | head -c 8)" = "$(printf '%08d' $number)" ]
        [ $(($(devmem $start 32))) = $number ]
    done"#;

/// A controller that says each number again, and tells it; once `is_over` it says stop.
fn controller(heard: impl Fn(u64) -> bool + Send + 'static) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut stream = &stream;
        let mut last = 0;
        while let Some(Ok(line)) = lines.next() {
            let number: u64 = line.parse().unwrap();
            assert_eq!(number, last + 1, "no byte is lost and none comes twice");
            last = number;
            let is_over = heard(number);
            stream.write_all(if is_over { "stop".into() } else { number.to_string() }.as_bytes()).unwrap();
        }
    });
    address
}

/// A machine that counts, and what `order` does to it at each number, until that is true. Returns how it ended, and the files' content.
fn counted(order: impl FnMut(u64, &mut Remote, &Path) -> bool + Send + 'static) -> (Ended, u32, Script) {
    let script = Script::new(COUNTS);
    let disk = script.file("disk", &vec![0; MIB]);
    let memory = script.file("journal", &vec![0; MIB]);
    let (counted, memory_of) = (disk, memory.clone());
    let answer = move |question: Value, devices: &mut Devices| {
        let result = match question.as_str().unwrap() {
            "disk" => devices.attach(&disk_of(&counted), true),
            _ => devices.share(&memory_of, opened(&memory_of), MIB as u64),
        };
        result.unwrap_or_else(|e| e.message).into()
    };
    within_limit(move || {
        let keeper = script.start();
        let process = keeper.process();
        let mut remote = keeper.remote().unwrap();
        let mut order = order;
        let (tell, told) = std::sync::mpsc::channel();
        let (done, is_done) = std::sync::mpsc::channel();
        // What dies with the thread that starts it must not die before the machine.
        thread::spawn(move || {
            for number in told {
                done.send(order(number, &mut remote, &memory)).unwrap();
            }
        });
        let address = controller(move |number| {
            tell.send(number).unwrap();
            is_done.recv().unwrap()
        });
        let ended = run(keeper, move || TcpStream::connect(address), answer).unwrap();
        wait_until_gone(process);
        (ended, process, script)
    })
}

fn migrate(remote: &mut Remote) -> Migrated {
    let migrated = remote.migrate(Whither::Here, &[]).unwrap();
    println!("migrated in {:?}; it stood still for {:?}", migrated.took, migrated.downtime);
    assert!(migrated.downtime <= migrated.took && migrated.took < LIMIT);
    migrated
}

#[test]
fn a_machine_that_is_migrated_goes_on_with_its_disks_its_memory_and_its_connection() {
    let (ended, _, script) = counted(|number, remote, _| {
        if number % 3 == 0 {
            migrate(remote);
        }
        number == 20
    });
    assert_eq!((ended.code, ended.words.as_str()), (Some(0), "20 6"), "it was told of each stop");
    let journal = fs::read(script.folder.path().join("journal")).unwrap();
    assert_eq!(u32::from_le_bytes(journal[..4].try_into().unwrap()), 20);
    script.holds_only(&["disk", "journal"]);
}

#[test]
fn a_migration_that_fails_leaves_the_machine_where_it_was() {
    let (ended, _, script) = counted(|number, remote, memory| {
        let copy = memory.with_extension("migrated");
        match number {
            5 => {
                fs::create_dir(&copy).unwrap();
                let error = remote.migrate(Whither::Here, &[]).unwrap_err();
                assert!(error.message.contains("cannot be copied for the migration"), "{error}");
                fs::remove_dir(&copy).unwrap();
            }
            7 => {
                migrate(remote);
            }
            _ => {}
        }
        number == 10
    });
    assert_eq!((ended.code, ended.words.as_str()), (Some(0), "10 1"));
    script.holds_only(&["disk", "journal"]);
}

/// The file that is its memory is away for a moment, so that it cannot be copied once the machine stands still.
#[test]
fn a_machine_that_stood_still_in_vain_goes_on_where_it_was_and_learns_for_how_long() {
    let (ended, _, script) = counted(|number, remote, memory| {
        if number == 4 {
            let (memory, away) = (memory.to_path_buf(), memory.with_extension("away"));
            let copy = memory.with_extension("migrated");
            let mover = thread::spawn(move || {
                let limit = Instant::now() + LIMIT;
                while !copy.exists() {
                    assert!(Instant::now() < limit, "a copy is made");
                }
                fs::rename(&memory, &away).unwrap();
                (memory, away)
            });
            let error = remote.migrate(Whither::Here, &[]).unwrap_err();
            let (memory, away) = mover.join().unwrap();
            fs::rename(away, memory).unwrap();
            assert!(error.message.contains("cannot be copied for the migration"), "{error}");
        }
        if number == 6 {
            // What is left of the first attempt is not taken for this one.
            let migrated = migrate(remote);
            assert!(migrated.downtime < Duration::from_secs(5), "{migrated:?}");
        }
        number == 10
    });
    assert_eq!((ended.code, ended.words.as_str()), (Some(0), "10 2"), "it was told of both stops");
    script.holds_only(&["disk", "journal"]);
}

#[test]
fn a_destination_that_is_killed_leaves_the_machine_where_it_was() {
    let (ended, _, script) = counted(|number, remote, memory| {
        if number == 4 {
            let folder = memory.parent().unwrap().display().to_string();
            let killer = thread::spawn(move || kill_a_destination(&folder));
            let migrated = remote.migrate(Whither::Here, &[]);
            let killed = killer.join().unwrap();
            assert_eq!(migrated.is_err(), killed, "{migrated:?}");
            let error = migrated.unwrap_err().message;
            assert!(error.contains("was not migrated"), "{error}");
        }
        if number == 6 {
            migrate(remote);
        }
        number == 10
    });
    assert_eq!((ended.code, ended.words.as_str()), (Some(0), "10 1"));
    script.holds_only(&["disk", "journal"]);
}

/// Kills a QEMU that waits for a machine with an image of that folder, as soon as there is one.
fn kill_a_destination(folder: &str) -> bool {
    let limit = Instant::now() + Duration::from_secs(20);
    while Instant::now() < limit {
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            if line.contains(folder) && line.contains("-incoming") {
                let id: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
                return nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(id),
                    nix::sys::signal::Signal::SIGKILL,
                )
                .is_ok();
            }
        }
    }
    false
}

/// A vhost-user server that is not ours, which dies with it.
struct Server(std::process::Child);

impl Server {
    fn start(disk: &Path, socket: &Path) -> Server {
        let mut command = std::process::Command::new("qemu-storage-daemon");
        command
            .arg("--blockdev")
            .arg(format!("driver=file,node-name=disk,filename={},locking=off", disk.display()))
            .arg("--export")
            .arg(format!(
                "vhost-user-blk,id=export,node-name=disk,writable=on,addr.type=unix,addr.path={}",
                socket.display()
            ));
        let server = Server(command.spawn().expect("./dev setup --tests installs qemu-storage-daemon"));
        let limit = Instant::now() + LIMIT;
        while !socket.exists() {
            assert!(Instant::now() < limit, "it listens");
            thread::sleep(Duration::from_millis(5));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Which of its requests were carried out is not known.
#[test]
fn a_machine_whose_disk_has_lost_its_server_is_not_migrated() {
    let script = Script::new(COUNTS);
    let (disk, memory) = (script.file("disk", &vec![0; MIB]), script.file("journal", &vec![0; MIB]));
    let served = script.file("served", &vec![0; MIB]);
    let [first, second] = ["first.sock", "second.sock"].map(|name| script.folder.path().join(name));
    let servers = [Server::start(&served, &first), Server::start(&served, &second)];
    let disks = [(MachineDisk::VhostUser(first), MachineDisk::VhostUser(second))];
    let lost = disks[0].0.clone();
    let answer = move |question: Value, devices: &mut Devices| {
        let result = match question.as_str().unwrap() {
            "disk" => {
                let counted = devices.attach(&disk_of(&disk), true);
                devices.attach(&lost, true).and(counted)
            }
            _ => devices.share(&memory, opened(&memory), MIB as u64),
        };
        result.unwrap_or_else(|e| e.message).into()
    };
    let [mut server, _other] = servers;
    let error = within_limit(move || {
        let keeper = script.start();
        let mut remote = keeper.remote().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (done, is_done) = std::sync::mpsc::channel();
        let mover = thread::spawn(move || {
            let mut error = None;
            for number in told {
                if number == 4 {
                    server.0.kill().unwrap();
                    server.0.wait().unwrap();
                    error = Some(remote.migrate(Whither::Here, &disks).unwrap_err().message);
                }
                done.send(number == 8).unwrap();
            }
            error.unwrap()
        });
        let address = controller(move |number| {
            tell.send(number).unwrap();
            is_done.recv().unwrap()
        });
        let ended = run(keeper, move || TcpStream::connect(address), answer).unwrap();
        assert_eq!(
            (ended.code, ended.words.split(' ').next()),
            (Some(0), Some("8")),
            "it went on where it was"
        );
        mover.join().unwrap()
    });
    println!("{error}");
    assert!(error.contains("was not migrated"), "{error}");
}
