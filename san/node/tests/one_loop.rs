//! Real clients of NBD, on one event loop.

mod common;

use std::process::Command;
use std::time::Duration;

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it is installed: ./dev setup --tests");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

#[test]
fn fio_reads_what_it_wrote() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    common::serve(folder.path(), 16 << 10, Duration::ZERO, &common::Serves::default());
    let uri = format!("nbd+unix:///vol?socket={}", folder.path().join("nbd.sock").display());
    if std::env::var_os("SERVE").is_some() {
        println!("{uri}");
        std::thread::sleep(Duration::from_secs(200));
    }
    let text = run(Command::new("nbdinfo").arg(&uri));
    assert!(text.contains("export-size: 67108864"), "{text}");
    for (rw, sizes) in [("randwrite", "512-64k"), ("randrw", "4k"), ("write", "1m")] {
        run(Command::new("fio")
            .args([
                "--name=x",
                "--ioengine=nbd",
                "--verify=crc32c",
                "--verify_state_save=0",
                "--iodepth=16",
                "--size=64m",
            ])
            .arg(format!("--uri={uri}"))
            .arg(format!("--rw={rw}"))
            .arg(format!("--bsrange={sizes}-{sizes}").replace("512-64k-512-64k", "512-64k")));
    }
}
