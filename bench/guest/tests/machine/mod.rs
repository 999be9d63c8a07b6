//! A machine whose first process is a script of a test.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use loadline_guest::control::Ended;
use loadline_guest::{
    Acceleration, Contents, Devices, GuestError, Image, Keeper, Kernel, Machine, MachineDisk, OpenFile, Qemu,
};
use serde_json::{Value, json};

/// How long anything may take. Software boots a machine in two seconds, and beside other tests in ten times that.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The kernel that `./dev setup --tests` has fetched, or that [`loadline_guest::kernel::KERNEL_VARIABLE`] names.
pub(crate) fn kernel() -> Kernel {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target folder");
    match std::env::var_os(loadline_guest::kernel::KERNEL_VARIABLE) {
        Some(_) => Kernel::find(),
        None => Kernel::in_folder(&built.join("guest")),
    }
    .expect("./dev setup --tests fetches a kernel")
}

/// A folder of a test, with the image of a machine that runs these lines after `prelude.sh`.
pub(crate) struct Script {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) image: Image,
}

impl Script {
    pub(crate) fn new(lines: &str) -> Script {
        let folder = tempfile::tempdir().unwrap();
        let init = folder.path().join("init");
        fs::write(&init, format!("{}{lines}\n", include_str!("prelude.sh"))).unwrap();
        let files = [("bin/busybox".to_string(), busybox())];
        let contents = Contents::Shell { files: &files, links: &[] };
        let image = Image::build(&kernel(), &init, contents, &folder.path().join("cache")).unwrap();
        Script { folder, image }
    }

    /// A file of the test, with this content.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// A machine that was started.
    pub(crate) fn start(&self) -> Keeper {
        start(&self.image)
    }

    /// Nothing is in the folder but what the test put there, and the image.
    pub(crate) fn holds_only(&self, names: &[&str]) {
        let mut found: Vec<String> = [self.folder.path(), &self.folder.path().join("cache")]
            .iter()
            .flat_map(|folder| fs::read_dir(folder).unwrap())
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let image = self.image.archive.file_name().unwrap().to_str().unwrap();
        let mut wanted: Vec<&str> = ["cache", "init", image].iter().chain(names).copied().collect();
        found.sort();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
    }
}

/// A file that was opened for reading and writing.
pub(crate) fn opened(path: &Path) -> OpenFile {
    OpenFile::of(&fs::File::options().read(true).write(true).open(path).unwrap()).unwrap()
}

/// A file as a disk.
pub(crate) fn disk_of(path: &Path) -> MachineDisk {
    MachineDisk::File { path: path.into(), open: opened(path), direct: false }
}

pub(crate) fn start(image: &Image) -> Keeper {
    Keeper::start(&Qemu::find().unwrap(), &Machine::default(), image, Acceleration::Software).unwrap()
}

fn busybox() -> PathBuf {
    let path = std::env::var_os("PATH").expect("there is a PATH");
    let found = std::env::split_paths(&path).map(|folder| folder.join("busybox")).find(|path| path.is_file());
    found.expect("./dev setup --tests installs busybox")
}

/// Runs what starts a machine and waits for its end in a thread of its own, and fails if that lasts too long: the machine dies with the
/// thread.
pub(crate) fn within_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let thread = thread::spawn(move || done.send(work()));
    match result.recv_timeout(LIMIT) {
        Ok(result) => {
            let _ = thread.join();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the machine did not end within {LIMIT:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it sent nothing"))
        }
    }
}

/// Boots a machine and runs it until its worker has ended.
pub(crate) fn run(
    mut keeper: Keeper,
    dial: impl Fn() -> std::io::Result<TcpStream>,
    answer: impl FnMut(Value, &mut Devices) -> Value + Send + 'static,
) -> Result<Ended, GuestError> {
    let took = keeper.booted(LIMIT)?;
    println!("the machine has booted in {took:?}");
    keeper.run(json!({ "name": "worker-0" }), dial, answer)
}

/// Waits until a process is gone. One that has ended and that no parent has waited for is gone too.
pub(crate) fn wait_until_gone(process: u32) {
    let limit = Instant::now() + Duration::from_secs(10);
    let is_there = || {
        let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        status.rsplit(") ").next().is_some_and(|fields| !fields.is_empty() && !fields.starts_with(['Z', 'X']))
    };
    while is_there() {
        assert!(Instant::now() < limit, "process {process} is still there");
        thread::sleep(Duration::from_millis(10));
    }
}
