//! Real machines: they boot, and whatever ends them is named, and leaves nothing behind.

mod machine;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use loadline_guest::{Contents, Devices, Image, MachineDisk, MachineOrder, OpenFile, probe};
use machine::{LIMIT, Script, disk_of, kernel, opened, run, start, wait_until_gone, within_limit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const MIB: usize = 1 << 20;

/// A machine that reaches no controller, and asks nothing.
fn no_controller() -> io::Result<TcpStream> {
    Err(io::ErrorKind::ConnectionRefused.into())
}

fn no_answer(question: Value, _: &mut Devices) -> Value {
    panic!("the machine asks {question}")
}

/// What went wrong when a machine of these lines booted and ran.
fn error_of(lines: &str) -> String {
    let script = Script::new(lines);
    let (error, process) = within_limit(move || {
        let keeper = script.start();
        let process = keeper.process();
        (run(keeper, no_controller, no_answer).unwrap_err().message, process)
    });
    wait_until_gone(process);
    error
}

#[test]
fn a_worker_reaches_its_controller_and_a_connection_that_cannot_be_is_hung_up() {
    let script = Script::new(
        r#"
        say '"hello"'
        receive >/dev/null
        say '{"dial":1}'
        [ "$(receive)" = '{"hung_up":1}' ]
        say '{"dial":2}'
        pass 2 'from the machine'
        [ "$(receive)" = 'from outside' ]
        [ "$(receive)" = '{"hung_up":2}' ]
        ended 7 'that was all'
        sleep 60"#,
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (heard, hears) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = [0; 16];
        stream.read_exact(&mut text).unwrap();
        stream.write_all(b"from outside").unwrap();
        heard.send(String::from_utf8(text.to_vec()).unwrap()).unwrap();
    });
    let ended = within_limit(move || {
        let dials = std::cell::Cell::new(0);
        let dial = || {
            dials.set(dials.get() + 1);
            if dials.get() == 1 { no_controller() } else { TcpStream::connect(address) }
        };
        let keeper = script.start();
        let process = keeper.process();
        let ended = run(keeper, dial, no_answer).unwrap();
        wait_until_gone(process);
        script.holds_only(&[]);
        ended
    });
    assert_eq!(hears.recv_timeout(LIMIT).unwrap(), "from the machine");
    assert_eq!((ended.code, ended.signal, ended.words.as_str()), (Some(7), None, "that was all"));
}

#[test]
fn disks_come_and_go_while_a_machine_runs() {
    let script = Script::new(
        r#"
        say '"hello"'
        receive >/dev/null
        at=$(ask attach) && disk=$(disk_at $at)
        [ "$(head -c 7 /dev/$disk)" = outside ]
        printf inside | dd of=/dev/$disk bs=4096 seek=1 conv=sync,fsync 2>/dev/null
        only_read=$(ask 'attach to read') && other=$(disk_at $only_read)
        [ "$other" != "$disk" ] && [ $(cat /sys/block/$other/ro) = 1 ]
        [ "$(ask "detach $at")" = gone ]
        [ ! -e /sys/block/$disk ]
        [ "$(ask attach)" = "$at" ]
        disk_at $at
        ended 0 "$(ask 'detach 0000:00:1f.0')""#,
    );
    let path = script.file("disk", &[b"outside".as_slice(), &vec![0; MIB - 7]].concat());
    let disk = disk_of(&path);
    let answer = move |question: Value, devices: &mut Devices| {
        let result = match question.as_str().unwrap().split_once("detach ") {
            Some((_, address)) => devices.detach(address).map(|()| "gone".to_string()),
            None => devices.attach(&disk, question == "attach"),
        };
        result.unwrap_or_else(|e| e.message).into()
    };
    let ended = within_limit(move || {
        let ended = run(script.start(), no_controller, answer).unwrap();
        assert_eq!(&fs::read(&path).unwrap()[4096..4102], b"inside");
        script.holds_only(&["disk"]);
        ended
    });
    assert_eq!(ended.words, "the virtual machine has no device at 0000:00:1f.0 to take away");
}

#[test]
fn a_disk_that_cannot_be_attached_is_named_and_its_place_is_free_again() {
    let script = Script::new(
        r#"
        say '"hello"'
        receive >/dev/null
        first=$(ask folder)
        ended 0 "$first; $(ask there)""#,
    );
    let there = script.file("there", &vec![0; MIB]);
    let answer = move |question: Value, devices: &mut Devices| {
        let disk = match question.as_str().unwrap() {
            "there" => disk_of(&there),
            _ => {
                // A folder is no disk.
                let path = there.with_file_name("folder");
                fs::create_dir(&path).unwrap();
                let open = OpenFile::of(&fs::File::open(&path).unwrap()).unwrap();
                MachineDisk::File { path, open, direct: false }
            }
        };
        devices.attach(&disk, true).unwrap_or_else(|e| e.message).into()
    };
    let ended = within_limit(move || run(script.start(), no_controller, answer).unwrap());
    assert!(
        ended.words.contains("/folder cannot be attached to the virtual machine: blockdev-add"),
        "{ended:?}"
    );
    assert!(ended.words.ends_with("; 0000:00:08.0"), "{ended:?}");
}

#[test]
fn a_machine_gets_the_files_that_were_opened_also_if_others_have_their_names_by_then() {
    let script = Script::new(
        r#"
        say '"hello"'
        receive >/dev/null
        disk=$(disk_at $(ask disk))
        device=/sys/bus/pci/devices/$(ask memory)
        until_there $device/resource2 >/dev/null
        echo 1 >$device/enable
        start=$(sed -n 3p $device/resource | cut -d' ' -f1)
        printf written | dd of=/dev/$disk bs=4096 seek=1 conv=sync,fsync 2>/dev/null
        devmem $((start + 8)) 32 0x64636261
        ended 0 "$(head -c 7 /dev/$disk)""#,
    );
    let files = ["disk", "journal"]
        .map(|name| script.file(name, &[b"checked".as_slice(), &vec![0; MIB - 7]].concat()));
    let (disk, memory) = (disk_of(&files[0]), opened(&files[1]));
    let aside = files.clone().map(|path| path.with_extension("aside"));
    for (path, aside) in files.iter().zip(&aside) {
        fs::rename(path, aside).unwrap();
        fs::write(path, vec![b'x'; MIB]).unwrap();
    }
    let journal = files[1].clone();
    let answer = move |question: Value, devices: &mut Devices| {
        let result = match question.as_str().unwrap() {
            "disk" => devices.attach(&disk, true),
            _ => devices.share(&journal, memory.clone(), MIB as u64),
        };
        result.unwrap_or_else(|e| e.message).into()
    };
    let ended = within_limit(move || {
        let ended = run(script.start(), no_controller, answer).unwrap();
        assert_eq!(&fs::read(&aside[0]).unwrap()[4096..4103], b"written");
        assert_eq!(&fs::read(&aside[1]).unwrap()[..12], b"checked\0abcd");
        assert!(files.iter().all(|path| fs::read(path).unwrap() == vec![b'x'; MIB]));
        ended
    });
    assert_eq!((ended.code, ended.words.as_str()), (Some(0), "checked"));
}

#[test]
fn a_disk_whose_server_is_gone_is_refused_and_the_machine_of_one_that_says_nothing_is_ended() {
    let script = Script::new(
        r#"
        say '"hello"'
        receive >/dev/null
        case $(ask gone) in *"/gone cannot be attached to the virtual machine: its server is gone"*) ;; *) exit ;; esac
        [ "$(ask there)" = 0000:00:08.0 ]
        ask silent
        sleep 60"#,
    );
    let there = script.file("there", &vec![0; MIB]);
    drop(UnixListener::bind(there.with_file_name("gone")).unwrap());
    let silent = UnixListener::bind(there.with_file_name("silent")).unwrap();
    let accepts = std::thread::spawn(move || silent.accept());
    let answer = move |question: Value, devices: &mut Devices| {
        let result = match question.as_str().unwrap() {
            "there" => devices.attach(&disk_of(&there), true),
            name => {
                let began = Instant::now();
                let result = devices.attach(&MachineDisk::VhostUser(there.with_file_name(name)), true);
                assert!(began.elapsed() < Duration::from_secs(20), "{result:?}");
                result
            }
        };
        result.unwrap_or_else(|e| e.message).into()
    };
    let (error, process) = within_limit(move || {
        let keeper = script.start();
        let process = keeper.process();
        (run(keeper, no_controller, answer).unwrap_err().message, process)
    });
    assert!(accepts.join().unwrap().is_ok(), "QEMU had connected");
    assert!(error.contains("the virtual machine was ended: vhost-user:/"), "{error}");
    assert!(
        error.contains("/silent: QEMU does not answer") && error.contains("which says nothing"),
        "{error}"
    );
    wait_until_gone(process);
}

#[test]
fn a_file_that_is_memory_of_a_machine_has_what_a_killed_machine_wrote() {
    // The second resource of the device is the third line of its list: start, end, flags.
    let script = Script::new(
        r#"
        say '"hello"'
        receive >/dev/null
        device=/sys/bus/pci/devices/$(ask share)
        until_there $device/resource2 >/dev/null
        echo 1 >$device/enable
        start=$(sed -n 3p $device/resource | cut -d' ' -f1)
        [ $(($(devmem $start 32))) = 1684234849 ]
        devmem $((start + 8)) 32 0x64636261
        ask killed
        sleep 60"#,
    );
    let path = script.file("journal", &[b"abcd".as_slice(), &vec![0; MIB - 4]].concat());
    let shared = path.clone();
    let error = within_limit(move || {
        let keeper = script.start();
        let process = Pid::from_raw(keeper.process() as i32);
        let answer = move |question: Value, devices: &mut Devices| {
            if question == "killed" {
                kill(process, Signal::SIGKILL).unwrap();
            }
            devices.share(&shared, opened(&shared), MIB as u64).unwrap_or_else(|e| e.message).into()
        };
        let error = run(keeper, no_controller, answer).unwrap_err();
        assert_eq!(&fs::read(&path).unwrap()[..12], b"abcd\0\0\0\0abcd");
        script.holds_only(&["journal"]);
        error
    });
    assert!(error.message.contains("QEMU has ended (signal: 9"), "{error}");
}

#[test]
fn a_kernel_that_panics_is_named_with_what_it_and_its_first_process_said_last() {
    let error = error_of("echo 'no way on' >/dev/console; exit 3");
    for words in ["QEMU has ended", "no way on", "Kernel panic - not syncing: Attempted to kill init"] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_machine_stands_still_and_crashes_by_order() {
    let script = Script::new(
        r#"
        say '"hello"'
        receive >/dev/null
        ask ready
        sleep 600"#,
    );
    let error = within_limit(move || {
        let keeper = script.start();
        let mut remote = keeper.remote().unwrap();
        let answer = move |_: Value, _: &mut Devices| {
            let began = Instant::now();
            remote.carry_out(MachineOrder::Pause { ms: 300 }).unwrap();
            assert!(began.elapsed() >= Duration::from_millis(300));
            remote.carry_out(MachineOrder::Crash).unwrap();
            Value::Null
        };
        run(keeper, no_controller, answer).unwrap_err().message
    });
    assert!(error.contains("Kernel panic") && error.contains("NMI"), "{error}");
}

#[test]
fn a_machine_that_lies_about_a_frame_is_ended_and_named() {
    let error = error_of("say '\"hello\"'; head_of 9 0; sleep 60");
    assert!(error.contains("a frame of kind 9"), "{error}");
}

#[test]
fn a_machine_that_does_not_report_in_time_is_given_up() {
    let script = Script::new("sleep 60");
    within_limit(move || {
        let mut keeper = script.start();
        let began = Instant::now();
        let error = keeper.booted(Duration::from_millis(200)).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!(error.message.contains("did not report within 200ms of its start"), "{error}");
        let process = keeper.process();
        drop(keeper);
        wait_until_gone(process);
    });
}

/// Not a test of its own: the keeper that the next one kills.
#[test]
#[ignore = "a process of another test"]
fn keeper_process() {
    let script = Script::new("sleep 600");
    let keeper = script.start();
    println!("keeps {}", keeper.process());
    std::thread::sleep(LIMIT);
}

#[test]
fn a_keeper_that_is_killed_leaves_no_machine() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "keeper_process", "--ignored", "--nocapture"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let process = lines.filter_map(|line| line.split_once("keeps ")?.1.parse().ok()).next().unwrap();
    assert!(fs::exists(format!("/proc/{process}")).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_gone(process);
}

#[test]
fn what_runs_machines_is_found_once_and_kept() {
    let script = Script::new("say '\"hello\"'; sleep 60");
    within_limit(move || {
        let qemu = loadline_guest::Qemu::find().unwrap();
        let cache = script.folder.path().join("cache");
        let found = probe(&qemu, &script.image, &cache).unwrap();
        let began = Instant::now();
        assert_eq!(probe(&qemu, &script.image, &cache).unwrap(), found);
        assert!(began.elapsed() < Duration::from_millis(500), "it was tried again");
    });
}

#[test]
fn the_first_program_of_a_worker_reports_how_the_worker_ended() {
    let beside = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("guest-init");
    let init = std::env::var_os("LOADLINE_GUEST_INIT").map_or(beside, Into::into);
    assert!(init.is_file(), "./dev build makes {}", init.display());
    let cache = tempfile::tempdir().unwrap();
    let image = Image::build(&kernel(), &init, Contents::Worker, cache.path()).unwrap();
    assert!(image.bytes - image.module_bytes < 8 * MIB as u64, "{image:?}");
    let ended = within_limit(move || run(start(&image), no_controller, no_answer).unwrap());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.words.contains("did not say join"), "{ended:?}");
}
