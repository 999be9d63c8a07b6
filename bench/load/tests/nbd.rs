//! Disks of NBD servers: a real one (nbdkit), and some that do not keep to the protocol.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_base::clock::Nanos;
use loadline_base::nbd::{
    INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, Request, info, option, reply, simple_reply, transmission,
};
use loadline_load::nbd::uri::{NbdUri, Server};
use loadline_load::{
    Disk, Job, LoadError, Outcome, Target, Verify, WritePermission, prepare, prepare_to_fill, prepare_to_scan,
};
use loadline_profile::Profile;

/// A server that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn uri(socket: &Path) -> NbdUri {
    NbdUri { server: Server::Unix(socket.into()), export: String::new() }
}

/// A real server, with a disk in memory.
fn nbdkit(socket: &Path, more: &[&str]) -> Running {
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--unix").arg(socket).args(more);
    let child = command.stderr(Stdio::null()).spawn().expect("nbdkit is installed: './dev setup' does that");
    let running = Running(child);
    let begun = Instant::now();
    while UnixStream::connect(socket).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it listens soon");
        std::thread::sleep(Duration::from_millis(10));
    }
    running
}

fn job(uri: NbdUri, profile: &str, writes: WritePermission) -> Job {
    let profile: Profile = profile.parse().unwrap();
    let mut job = Job::new(vec![Disk { target: Target::Nbd(uri), writes }], profile);
    (job.warm_up, job.measure) = ("0s".parse().unwrap(), "1s".parse().unwrap());
    job
}

fn run(job: &Job) -> Result<Outcome, LoadError> {
    prepare(job)?.run(Nanos::now(), &AtomicBool::new(false), &mut |_, _| {})
}

fn is_clean(outcome: &Outcome) -> bool {
    outcome.verify.as_ref().is_some_and(|found| found.bad() == 0 && found.checked > 0)
}

#[test]
fn a_disk_is_filled_loaded_by_several_threads_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    let _server = nbdkit(&socket, &["memory", "8M"]);
    let verify = Verify { journals: vec![folder.path().join("journal")] };
    let quiet = &mut |_, _| {};
    for profile in ["B4-T2-O8-W50-PR", "B64-T1-O4-W50-PR", "B1024-T1-O2-W50-PS"] {
        let mut job = job(uri(&socket), profile, WritePermission::Destroy);
        job.verify = Some(verify.clone());
        prepare_to_fill(&job).unwrap().fill(&AtomicBool::new(false), quiet).unwrap();
        let outcome = run(&job).unwrap();
        let window = &outcome.window;
        assert!(window.read.completed() > 0 && window.write.completed() > 0, "{profile}");
        assert_eq!((window.errors(), window.censored()), (0, 0), "{profile}");
        assert!(is_clean(&outcome), "{profile}: {:?}", outcome.verify);
        let scan = prepare_to_scan(&job).unwrap().scan(&AtomicBool::new(false), quiet);
        assert!(
            scan.incomplete.is_none() && scan.report.bad() == 0 && scan.report.checked > 0,
            "{profile}: {:?}",
            scan.report
        );
    }
}

#[test]
fn a_disk_that_changes_behind_the_load_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    let mut job = job(uri(&socket), "B4-T1-O4-W0-PR", WritePermission::Destroy);
    job.verify = Some(Verify { journals: vec![folder.path().join("journal")] });
    let server = nbdkit(&socket, &["memory", "1M"]);
    prepare_to_fill(&job).unwrap().fill(&AtomicBool::new(false), &mut |_, _| {}).unwrap();
    drop(server);
    let _ = std::fs::remove_file(&socket);
    // Another server, which knows nothing of what was written.
    let _server = nbdkit(&socket, &["memory", "1M"]);
    assert!(!is_clean(&run(&job).unwrap()));
}

#[test]
fn what_a_server_does_not_offer_is_refused_before_any_io() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    let refused = |profile: &str, writes| prepare(&job(uri(&socket), profile, writes)).err().unwrap().message;
    assert!(refused("B4-T1-O1-W0-PR", WritePermission::Refused).contains("cannot be reached"));
    let server = nbdkit(&socket, &["-r", "memory", "1M"]);
    assert!(refused("B4-T1-O1-W100-PR", WritePermission::Destroy).contains("read-only"));
    drop(server);
    let _ = std::fs::remove_file(&socket);
    let _server = nbdkit(&socket, &["--filter=blocksize-policy", "memory", "1M", "blocksize-minimum=4096"]);
    assert!(refused("B4-T1-O1-W100-PR", WritePermission::Refused).contains("--destroy-data"));
    assert!(refused("B2-T1-O1-W0-PR", WritePermission::Refused).contains("does not fit"));
    let there = job(uri(&socket), "B4-T1-O1-W0-PR", WritePermission::Refused);
    let none = NbdUri { export: "none".into(), ..uri(&socket) };
    assert!(prepare(&there).is_ok());
    assert!(prepare(&job(none, "B4-T1-O1-W0-PR", WritePermission::Refused)).is_ok(), "nbdkit has any name");
}

#[test]
fn time_spent_polling_for_a_server_on_this_host_is_not_counted_as_work() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    // It answers after longer than a thread polls, so that it would be no work to wait for it.
    let _server = nbdkit(&socket, &["--filter=delay", "memory", "1M", "rdelay=1ms"]);
    let outcome = run(&job(uri(&socket), "B4-T1-O1-W0-PR", WritePermission::Refused)).unwrap();
    let cpu = outcome.cpu;
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert_eq!((cpu.polling_s, outcome.engine.as_str()), (0.0, "io_uring"), "there is no CPU for it");
        return;
    }
    assert!(cpu.polling_s > 0.0 && outcome.engine == "io_uring, polling before sleeping", "{outcome:?}");
    assert!(cpu.working_s() < cpu.used_s(), "{cpu:?}");
}

// ---- servers that are none ------------------------------------------------------------------------------

/// The answer of a server with a disk of one MiB and these flags.
fn hello(flags: u16) -> Vec<u8> {
    let mut said = Vec::new();
    let mut reply_with = |kind: u32, about: &[u8]| {
        said.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        said.extend(option::GO.to_be_bytes());
        said.extend(kind.to_be_bytes());
        said.extend((about.len() as u32).to_be_bytes());
        said.extend(about);
    };
    let mut export = info::EXPORT.to_be_bytes().to_vec();
    export.extend((1u64 << 20).to_be_bytes());
    export.extend(flags.to_be_bytes());
    reply_with(reply::INFO, &export);
    reply_with(reply::ACK, &[]);
    said
}

fn greeting() -> Vec<u8> {
    let mut said = INIT_MAGIC.to_be_bytes().to_vec();
    said.extend(OPTION_MAGIC.to_be_bytes());
    said.extend(3u16.to_be_bytes());
    said
}

/// Serves every connection so, each in a thread.
fn serve(socket: &Path, with: impl Fn(UnixStream) -> std::io::Result<()> + Send + Clone + 'static) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let with = with.clone();
            std::thread::spawn(move || with(stream));
        }
    });
}

/// Lets a client in.
fn let_in(stream: &mut UnixStream, flags: u16) -> std::io::Result<()> {
    stream.write_all(&greeting())?;
    // Its flags, one option without a name, one piece of information.
    stream.read_exact(&mut [0; 4 + 16 + 8])?;
    stream.write_all(&hello(flags))
}

fn request(stream: &mut UnixStream) -> std::io::Result<Request> {
    let mut bytes = [0; Request::BYTES];
    stream.read_exact(&mut bytes)?;
    Ok(Request::decode(&bytes).expect("a request"))
}

#[test]
fn a_server_that_is_none_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    type Says = (&'static str, Vec<u8>, &'static str);
    let old = {
        let mut said = INIT_MAGIC.to_be_bytes().to_vec();
        said.extend(0x0000_4202_8186_1253_u64.to_be_bytes());
        said.extend([0; 2]);
        said
    };
    let huge = {
        let mut said = greeting();
        said.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        said.extend(option::GO.to_be_bytes());
        said.extend(reply::INFO.to_be_bytes());
        said.extend(u32::MAX.to_be_bytes());
        said
    };
    let no_size = [greeting(), hello(1)[32..].to_vec()].concat();
    let says: [Says; 5] = [
        ("http", b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "not a server of this protocol"),
        ("old", old, "old form"),
        ("short", greeting()[..7].to_vec(), "closed the connection"),
        ("huge", huge, "not a server of this protocol"),
        ("sizeless", no_size, "how large"),
    ];
    for (name, said, why) in says {
        let socket = folder.path().join(name);
        serve(&socket, move |mut stream| {
            stream.write_all(&said)?;
            stream.shutdown(std::net::Shutdown::Write)?;
            stream.read_to_end(&mut Vec::new()).map(drop)
        });
        let error =
            prepare(&job(uri(&socket), "B4-T1-O1-W0-PR", WritePermission::Refused)).err().unwrap().message;
        assert!(error.contains(why), "{name}: {error}");
    }
}

#[test]
fn a_server_without_the_promise_is_not_written_to_by_several_connections() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    serve(&socket, |mut stream| let_in(&mut stream, transmission::HAS_FLAGS));
    let prepared = |profile: &str| prepare(&job(uri(&socket), profile, WritePermission::Destroy));
    assert!(prepared("B4-T2-O1-W50-PR").err().unwrap().message.contains("T1"));
    assert!(prepared("B4-T1-O1-W50-PR").is_ok());
    assert!(prepared("B4-T2-O1-W0-PR").is_ok(), "what is only read is the same for all");
}

#[test]
fn a_server_that_breaks_the_protocol_or_goes_ends_the_load_at_once() {
    let folder = tempfile::tempdir().unwrap();
    type Answer = fn(&mut UnixStream, Request) -> std::io::Result<()>;
    let cases: [(&str, Answer, &str); 4] = [
        ("gone", |_, _| Err(std::io::ErrorKind::Other.into()), "closed the connection"),
        ("stranger", |to, of| to.write_all(&simple_reply(0, of.cookie ^ 0xff_0000)), "that was not sent"),
        (
            "twice",
            |to, of| {
                let answer = [&simple_reply(5, of.cookie)[..], &simple_reply(5, of.cookie)].concat();
                to.write_all(&answer)
            },
            "that was not sent",
        ),
        ("text", |to, _| to.write_all(&[b'x'; 64]), "that was not sent"),
    ];
    for (name, answer, why) in cases {
        let socket = folder.path().join(name);
        serve(&socket, move |mut stream| {
            let_in(&mut stream, transmission::HAS_FLAGS)?;
            loop {
                let of = request(&mut stream)?;
                answer(&mut stream, of)?;
            }
        });
        let mut job = job(uri(&socket), "B4-T1-O4-W0-PR", WritePermission::Refused);
        job.measure = "60s".parse().unwrap();
        let begun = Instant::now();
        let error = run(&job).unwrap_err().message;
        assert!(error.contains(why), "{name}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}");
    }
}

#[test]
fn errors_of_the_server_are_counted_and_what_it_never_answers_is_waited_for_no_longer_than_asked() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    serve(&socket, |mut stream| {
        let_in(&mut stream, transmission::HAS_FLAGS)?;
        let mut number = 0;
        loop {
            let of = request(&mut stream)?;
            number += 1;
            match number {
                1 => {}
                _ if number % 2 == 0 => stream.write_all(&simple_reply(28, of.cookie))?,
                _ => {
                    let mut answer = simple_reply(0, of.cookie).to_vec();
                    answer.resize(16 + of.length as usize, 7);
                    // In pieces that cut its head and its data.
                    for piece in answer.chunks(1500) {
                        stream.write_all(piece)?;
                    }
                }
            }
        }
    });
    let mut job = job(uri(&socket), "B32-T1-O4-W0-PR", WritePermission::Refused);
    job.drain = "200ms".parse().unwrap();
    let begun = Instant::now();
    let outcome = run(&job).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    let read = &outcome.window.read;
    assert!(read.errors > 0 && read.bytes > 0);
    assert_eq!(read.bytes, read.completed() * (32 << 10));
    assert_eq!(outcome.window.censored(), 1);
}
