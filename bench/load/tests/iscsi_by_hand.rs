//! iSCSI targets made by hand: some with unusual limits, and some that do not keep to the protocol.

#[path = "by_hand/target.rs"]
mod target;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadline_base::clock::Nanos;
use loadline_base::iscsi::{Header, NO_TAG, field, flag, opcode};
use loadline_base::scsi::operation;
use loadline_load::{
    Disk, Job, LoadError, Outcome, Target, Verify, WritePermission, prepare, prepare_to_fill, prepare_to_scan,
};
use loadline_profile::Profile;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use target::{Limits, Peer, SIZE, serve_disk};

const NAME: &str = "iqn.2003-01.org.example:by-hand";

fn uri(address: SocketAddr) -> String {
    format!("iscsi://{address}/{NAME}/0")
}

fn job(uri: &str, profile: &str, writes: WritePermission) -> Job {
    let profile: Profile = profile.parse().unwrap();
    let target: Target = uri.parse().unwrap();
    let mut job = Job::new(vec![Disk { target, writes }], profile);
    (job.warm_up, job.measure) = ("0s".parse().unwrap(), "1s".parse().unwrap());
    job
}

fn run(job: &Job) -> Result<Outcome, LoadError> {
    prepare(job)?.run(Nanos::now(), &AtomicBool::new(false), &mut |_, _| {})
}

/// Serves every connection so, each in a thread.
fn serve(with: impl Fn(TcpStream) -> io::Result<()> + Send + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let with = with.clone();
            std::thread::spawn(move || {
                stream.set_nodelay(true)?;
                with(stream)
            });
        }
    });
    address
}

/// Serves commands so, which follow the questions of what the unit is.
fn serve_commands(with: impl Fn(&mut Peer, Header) -> io::Result<()> + Send + Clone + 'static) -> SocketAddr {
    serve(move |stream| {
        let mut peer = Peer::new(stream);
        peer.let_in("")?;
        let mut command = peer.describe()?;
        loop {
            with(&mut peer, command)?;
            command = loop {
                let (header, _) = peer.read()?;
                if header.opcode() == opcode::SCSI_COMMAND {
                    break header;
                }
            };
        }
    })
}

#[test]
fn data_arrive_whole_within_whatever_limits_a_target_has() {
    let seed = std::env::var("LOADLINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| Nanos::now().0);
    println!("LOADLINE_SEED={seed}");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    for round in 0..6 {
        let limits = Limits::random(&mut rng, round % 2 == 1);
        println!("{limits:?}");
        let disk = Arc::new(Mutex::new(vec![0; SIZE]));
        let (served, of) = (limits.clone(), Arc::clone(&disk));
        let address = serve(move |stream| serve_disk(Peer::new(stream), &served, &of));
        let options = if limits.digest { "?digest=crc32c" } else { "" };
        let folder = tempfile::tempdir().unwrap();
        let profile = ["B4-T2-O8-W50-PR", "B64-T1-O4-W50-PR"][rng.next_u32() as usize % 2];
        let mut job = job(&format!("{}{options}", uri(address)), profile, WritePermission::Destroy);
        job.verify = Some(Verify { journals: vec![folder.path().join("journal")] });
        let quiet = &mut |_, _| {};
        prepare_to_fill(&job).unwrap().fill(&AtomicBool::new(false), quiet).unwrap();
        let outcome = run(&job).unwrap();
        let window = &outcome.window;
        assert!(window.read.completed() > 0 && window.write.completed() > 0, "{limits:?}");
        assert_eq!((window.errors(), window.censored()), (0, 0), "{limits:?}");
        let found = outcome.verify.unwrap();
        assert!(found.bad() == 0 && found.checked > 0, "{limits:?}: {found:?}");
        let scan = prepare_to_scan(&job).unwrap().scan(&AtomicBool::new(false), quiet);
        assert!(scan.incomplete.is_none() && scan.report.bad() == 0, "{limits:?}: {:?}", scan.report);
    }
}

#[test]
fn a_target_that_is_none_or_lets_nobody_in_is_said_to_be_so() {
    let error =
        |address| prepare(&job(&uri(address), "B4-T1-O1-W0-PR", WritePermission::Refused)).err().unwrap();
    let http = serve(|mut stream| {
        stream.write_all(&[b'x'; 200])?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    });
    assert!(error(http).message.contains("not a target of this protocol"), "{}", error(http));
    let gone = serve(|_| Ok(()));
    assert!(error(gone).message.contains("closed the connection"), "{}", error(gone));
    for (class, detail, words) in [
        (2, 1, "requires CHAP"),
        (2, 2, "does not let this initiator in"),
        (2, 3, "no target"),
        (2, 6, "no more sessions"),
        (3, 1, "active path"),
        (3, 2, "no more sessions"),
        (2, 0x42, "does not take this login (login status 02/42)"),
        (9, 9, "refused the login"),
    ] {
        let address = serve(move |stream| Peer::new(stream).turn_away(class, detail, b""));
        let said = error(address).message;
        assert!(said.contains(words) && said.contains("login status"), "{class}/{detail}: {said}");
    }
    for (text, words) in [
        ("ErrorRecoveryLevel=2\0", "ErrorRecoveryLevel=2"),
        ("MaxBurstLength=0\0", "MaxBurstLength=0"),
        ("no key\0", "no keys"),
        ("HeaderDigest=CRC32C\0", "without digests"),
    ] {
        let address = serve(move |stream| Peer::new(stream).let_in(text).map(drop));
        assert!(error(address).message.contains(words), "{text:?}: {}", error(address));
    }
}

#[test]
fn a_target_without_digests_is_not_used_with_digests() {
    let address = serve(|stream| Peer::new(stream).let_in("HeaderDigest=None\0DataDigest=None\0").map(drop));
    let with = format!("{}?digest=crc32c", uri(address));
    let error = prepare(&job(&with, "B4-T1-O1-W0-PR", WritePermission::Refused)).err().unwrap().message;
    assert!(error.contains("refuses digests"), "{error}");
}

#[test]
fn a_target_that_asks_for_no_secret_is_not_used_as_if_the_secret_were_right() {
    let address = serve(|stream| Peer::new(stream).let_in(""));
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "sesame-opens-it").unwrap();
    let with = uri(address).replace("iscsi://", "iscsi://bench@");
    let with = format!("{with}?secret={}&initiator=iqn.a", secret.path().display());
    let error = prepare(&job(&with, "B4-T1-O1-W0-PR", WritePermission::Refused)).err().unwrap().message;
    assert!(
        error.contains("lets initiator iqn.a in without CHAP") && error.contains("leave out bench@"),
        "{error}"
    );
    assert!(!error.contains("sesame"), "{error}");
}

#[test]
fn a_target_that_says_nothing_is_given_up() {
    let address = serve(|stream| {
        std::thread::sleep(Duration::from_secs(60));
        drop(stream);
        Ok(())
    });
    let begun = Instant::now();
    let error =
        prepare(&job(&uri(address), "B4-T1-O1-W0-PR", WritePermission::Refused)).err().unwrap().message;
    assert!(error.contains("does not answer within 10 s"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_redirection_is_followed_once() {
    let disk = Arc::new(Mutex::new(vec![0; SIZE]));
    let there = serve(move |stream| serve_disk(Peer::new(stream), &Limits::default(), &disk));
    let to = |address: String| {
        serve(move |stream| {
            let text = format!("TargetAddress={address}\0");
            Peer::new(stream).turn_away(1, 1, text.as_bytes())
        })
    };
    let once = to(format!("{there},1"));
    let reads = |address| run(&job(&uri(address), "B4-T1-O1-W0-PR", WritePermission::Refused));
    assert!(reads(once).unwrap().window.read.bytes > 0);
    let error = reads(to(once.to_string())).unwrap_err().message;
    assert!(error.contains("redirects it again"), "{error}");
    assert!(reads(to("a b".into())).unwrap_err().message.contains("no portal"));
}

#[test]
fn a_target_that_breaks_the_protocol_ends_the_load_at_once() {
    type Answer = fn(&mut Peer, Header) -> io::Result<()>;
    let cases: [(&str, &str, Answer, &str); 14] = [
        ("gone", "W0", |_, _| Err(io::ErrorKind::Other.into()), "closed the connection"),
        ("stranger", "W0", |to, of| to.answer(of.task_tag() ^ 0x40_0000, 0, &[]), "that was not sent"),
        (
            "twice",
            "W0",
            |to, of| {
                to.answer(of.task_tag(), 0x18, &[])?;
                to.answer(of.task_tag(), 0x18, &[])
            },
            "that was not sent",
        ),
        ("text", "W0", |to, _| to.stream.write_all(&[b'x'; 64]), "broken"),
        ("zeroes", "W0", |to, _| to.stream.write_all(&[0; 64]), "no answer to a request"),
        ("too much", "W0", |to, of| to.data(of.task_tag(), 0, &[0; 8192], true), "that was not asked for"),
        ("elsewhere", "W0", |to, of| to.data(of.task_tag(), 512, &[0; 512], true), "that was not asked for"),
        ("data for a write", "W100", |to, of| to.data(of.task_tag(), 0, &[0; 512], true), "not asked for"),
        ("huge", "W0", |to, _| to.announce(opcode::NOP_IN, 1 << 20), "announced"),
        ("huge read", "W0", |to, of| to.announce_data(of.task_tag(), 1 << 20), "not asked for"),
        ("beyond the end", "W100", |to, of| to.ask(of.task_tag(), 7, 4096, 4096), "may not ask for"),
        ("asks a read", "W0", |to, of| to.ask(of.task_tag(), 7, 0, 512), "may not ask for"),
        ("rejects", "W0", |to, _| to.reject(0x09), "rejects a request (reason 09)"),
        ("wants an end", "W0", |to, _| to.event(1), "asks its initiators to log out"),
    ];
    for (name, writes, answer, why) in cases {
        let address = serve_commands(answer);
        let profile = format!("B4-T1-O4-{writes}-PR");
        let mut job = job(&uri(address), &profile, WritePermission::Destroy);
        job.measure = "60s".parse().unwrap();
        let begun = Instant::now();
        let error = run(&job).err().unwrap_or_else(|| panic!("{name}: the load goes on")).message;
        assert!(error.contains(why), "{name}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}");
    }
}

#[test]
fn a_write_whose_data_the_target_did_not_take_is_an_error_whatever_it_says() {
    // It takes what comes with the command, and never asks for the rest.
    let address = serve_commands(|to, of| to.answer(of.task_tag(), 0, &[]));
    let outcome = run(&job(&uri(address), "B1024-T1-O1-W100-PR", WritePermission::Destroy)).unwrap();
    assert_eq!((outcome.window.write.completed(), outcome.window.write.bytes), (0, 0));
    assert!(outcome.window.write.errors > 0);
    // A read that is good without any data.
    let address = serve_commands(|to, of| to.answer(of.task_tag(), 0, &[]));
    let outcome = run(&job(&uri(address), "B4-T1-O1-W0-PR", WritePermission::Refused)).unwrap();
    assert!(outcome.window.read.errors > 0 && outcome.window.read.completed() == 0);
}

#[test]
fn errors_are_counted_and_what_is_never_answered_is_waited_for_no_longer_than_asked() {
    let number = Arc::new(AtomicU32::new(0));
    let address = serve_commands(move |to, of| {
        let tag = of.task_tag();
        match number.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            number if number % 2 == 0 => {
                to.answer(tag, 2, &[0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0])
            }
            _ => {
                // In PDUs that cut it anywhere, and with its status in the last of them.
                for (at, length, is_last) in [(0, 1000, false), (1000, 3, false), (1003, 31_765, true)] {
                    to.data(tag, at, &vec![7; length], is_last)?;
                }
                Ok(())
            }
        }
    });
    let mut job = job(&uri(address), "B32-T1-O4-W0-PR", WritePermission::Refused);
    job.drain = "200ms".parse().unwrap();
    let begun = Instant::now();
    let outcome = run(&job).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    let read = &outcome.window.read;
    assert!(read.errors > 0 && read.bytes > 0);
    assert_eq!(read.bytes, read.completed() * (32 << 10));
    assert_eq!(outcome.window.censored(), 1);
}

#[test]
fn a_busy_target_and_one_with_attentions_is_asked_again_and_pings_are_answered() {
    let number = Arc::new(AtomicU32::new(0));
    let pongs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&pongs);
    let address = serve_commands(move |to, of| {
        let tag = of.task_tag();
        let number = number.fetch_add(1, Ordering::Relaxed);
        counted.fetch_max(to.pongs, Ordering::Relaxed);
        match number % 8 {
            1 => to.answer(tag, 0x08, &[]),
            2 => to.answer(tag, 0x28, &[]),
            3 => to.answer(tag, 2, &[0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 0x06]),
            _ => {
                to.ping(number)?;
                to.data(tag, 0, &[7; 4096], true)
            }
        }
    });
    let outcome = run(&job(&uri(address), "B4-T1-O4-W0-PR", WritePermission::Refused)).unwrap();
    assert!(outcome.window.read.completed() > 100, "{}", outcome.window.read.completed());
    assert_eq!((outcome.window.errors(), outcome.window.censored()), (0, 0));
    assert!(pongs.load(Ordering::Relaxed) > 0);
}

#[test]
fn no_more_commands_are_sent_than_the_target_takes() {
    let most = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&most);
    let address = serve(move |stream| {
        let mut peer = Peer::new(stream);
        peer.window = 3;
        peer.let_in("")?;
        let mut waits = vec![peer.describe()?];
        loop {
            peer.stream.set_read_timeout(Some(Duration::from_millis(20)))?;
            match peer.read() {
                Ok((header, _)) if header.opcode() == opcode::SCSI_COMMAND => waits.push(header),
                Ok(_) => {}
                // Nothing more came: all that may come is there.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    seen.fetch_max(waits.len() as u32, Ordering::Relaxed);
                    for header in waits.drain(..) {
                        peer.data(header.task_tag(), 0, &[0; 4096], true)?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    });
    let outcome = run(&job(&uri(address), "B4-T1-O16-W0-PR", WritePermission::Refused)).unwrap();
    assert!(outcome.window.read.completed() > 0 && outcome.window.errors() == 0);
    assert_eq!(most.load(Ordering::Relaxed), 3);
}

#[test]
fn a_unit_that_is_not_ready_at_first_is_waited_for_and_one_on_standby_is_not() {
    let address = |qualifier: u8, times: u32| {
        let count = Arc::new(AtomicU32::new(0));
        serve(move |stream| {
            let mut peer = Peer::new(stream);
            peer.let_in("")?;
            loop {
                let (header, _) = peer.read()?;
                if header.cdb()[0] == operation::TEST_UNIT_READY
                    && count.fetch_add(1, Ordering::Relaxed) < times
                {
                    let sense = [0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, qualifier];
                    peer.answer(header.task_tag(), 2, &sense)?;
                } else if !peer.answer_question(&header)? {
                    peer.data(header.task_tag(), 0, &[0; 4096], true)?;
                }
            }
        })
    };
    let reads = |address| run(&job(&uri(address), "B4-T1-O1-W0-PR", WritePermission::Refused));
    assert!(reads(address(0x01, 3)).unwrap().window.read.completed() > 0);
    let error = reads(address(0x0b, u32::MAX)).unwrap_err().message;
    assert!(error.contains("standby path") && error.contains("'loadline volume show NAME'"), "{error}");
}

#[test]
fn a_unit_that_another_initiator_has_reserved_is_refused() {
    let address = serve(|stream| {
        let mut peer = Peer::new(stream);
        peer.let_in("")?;
        loop {
            let (header, _) = peer.read()?;
            peer.answer(header.task_tag(), 0x18, &[])?;
        }
    });
    let error = prepare(&job(&uri(address), "B4-T1-O1-W0-PR", WritePermission::Refused)).err().unwrap();
    assert!(error.message.contains("reserved by another initiator"), "{error}");
}

#[test]
fn a_read_whose_digest_is_wrong_ends_the_load() {
    let address = serve(|stream| {
        let mut peer = Peer::new(stream);
        peer.let_in("HeaderDigest=CRC32C\0DataDigest=CRC32C\0")?;
        let command = peer.describe()?;
        let mut header = Header::new(opcode::DATA_IN, flag::FINAL | flag::STATUS);
        header.set_u32(field::TASK_TAG, command.task_tag());
        header.set_u32(field::TRANSFER_TAG, NO_TAG);
        let mut bytes = peer.framed(header, &[7; 4096]);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        peer.stream.write_all(&bytes)?;
        std::thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    let with = format!("{}?digest=crc32c", uri(address));
    let error = run(&job(&with, "B4-T1-O1-W0-PR", WritePermission::Refused)).unwrap_err().message;
    assert!(error.contains("data whose digest is wrong"), "{error}");
}

#[test]
fn a_bit_that_is_wrong_in_a_login_or_in_what_a_unit_reports_is_no_panic_and_is_not_waited_for() {
    let seed = std::env::var("LOADLINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| Nanos::now().0);
    println!("LOADLINE_SEED={seed}");
    let rng = Arc::new(Mutex::new(Xoshiro256PlusPlus::seed_from_u64(seed)));
    let address = serve(move |stream| {
        let mut peer = Peer::new(stream);
        let flip = rng.lock().unwrap().next_u64();
        // All that it sends, up to the first I/O, is a little less.
        peer.flip = Some((flip as usize % 700, 1 << (flip >> 40 & 7)));
        peer.window = u32::MAX / 4;
        // An initiator that waits for what never comes has a limit of its own; the test does not wait for that.
        peer.stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        peer.let_in("MaxRecvDataSegmentLength=8192\0FirstBurstLength=65536\0ImmediateData=Yes\0")?;
        peer.describe().map(drop)
    });
    let (mut good, mut bad) = (0, 0);
    for _ in 0..150 {
        match prepare(&job(&uri(address), "B4-T1-O1-W0-PR", WritePermission::Refused)) {
            Ok(_) => good += 1,
            Err(error) => {
                assert!(error.message.contains("iscsi://"), "it says where: {error}");
                bad += 1;
            }
        }
    }
    assert!(good > 0 && bad > 0, "{good} logins, {bad} errors");
}
