//! Hosts that stand in for machines: network namespaces that have an SSH server while their machine runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::netns::{self, Network, address};
use crate::support::{Said, finish};

/// Machines that can run at the same time.
const HOSTS: usize = 8;
/// How long a command may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);
/// Where a system has its disks by their serial numbers.
const BY_ID: &str = "/dev/disk/by-id";

static SHARED: Mutex<Weak<Place>> = Mutex::new(Weak::new());

/// The hosts, and a folder in memory, which the tests of this process share.
pub(crate) struct Place {
    pub(crate) network: Network,
    pub(crate) folder: PathBuf,
    is_used: Mutex<[bool; HOSTS + 1]>,
    /// Machines that tests have asked for, and what wakes those that wait for them.
    asked: (Mutex<usize>, Condvar),
    next: AtomicUsize,
}

/// The right of a test to run so many machines at the same time.
pub(crate) struct Share(Arc<Place>, usize);

impl Drop for Share {
    fn drop(&mut self) {
        *self.0.asked.0.lock().unwrap_or_else(PoisonError::into_inner) -= self.1;
        self.0.asked.1.notify_all();
    }
}

/// A machine that runs. Dropping it ends all that runs on its host.
pub(crate) struct Running {
    place: Arc<Place>,
    pub(crate) host: usize,
    server: Child,
}

/// The hosts; `None` where there can be none.
pub(crate) fn place() -> Option<Arc<Place>> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("network namespaces need root: not tested");
        return None;
    }
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = shared.upgrade() {
        return Some(place);
    }
    netns::remove_leftovers();
    static SETS: AtomicUsize = AtomicUsize::new(1900);
    let number = SETS.fetch_add(1, Ordering::Relaxed);
    let place = Place {
        network: Network::new(number, HOSTS + 1),
        folder: netns::folder(number),
        is_used: Mutex::default(),
        asked: (Mutex::new(0), Condvar::new()),
        next: AtomicUsize::new(0),
    };
    let _ = fs::create_dir("/run/sshd");
    fs::create_dir_all(BY_ID).unwrap();
    let program = place.folder.join("loadline");
    fs::copy(env!("CARGO_BIN_EXE_loadline"), &program).unwrap();
    let _ = Command::new("strip").arg("-s").arg(&program).status();
    for host in 1..=HOSTS {
        let key = place.host_key(host);
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key).status();
        assert!(made.expect("./dev setup --tests installs it").success());
    }
    let place = Arc::new(place);
    *shared = Arc::downgrade(&place);
    Some(place)
}

impl Place {
    /// Waits until so many machines can run.
    pub(crate) fn share(self: &Arc<Place>, machines: usize) -> Share {
        let (asked, woken) = &self.asked;
        let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        while *asked + machines > HOSTS {
            asked = woken.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
        *asked += machines;
        Share(self.clone(), machines)
    }

    fn host_key(&self, host: usize) -> PathBuf {
        self.folder.join(format!("host-key-{host}"))
    }

    /// The public key of a host's SSH server.
    pub(crate) fn public_host_key(&self, host: usize) -> String {
        fs::read_to_string(self.host_key(host).with_extension("pub")).unwrap()
    }

    /// A name that no other test of this process uses.
    pub(crate) fn name(&self, what: &str) -> String {
        format!("{what}-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// `loadline` on the controller's machine, its output taken, its state in `state`.
    pub(crate) fn loadline(&self, state: &Path, words: &[&str]) -> Command {
        let mut command = self.network.command(0, &self.folder.join("loadline"));
        command.args(words).env("XDG_STATE_HOME", state).current_dir(state);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, state: &Path, words: &[&str]) -> Said {
        finish(self.loadline(state, words).spawn().unwrap(), LIMIT)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        // Only if nothing else is in them.
        let _ = fs::remove_dir(BY_ID).and_then(|()| fs::remove_dir("/dev/disk"));
    }
}

impl Running {
    /// Boots a machine on a free host: its SSH server lets in what `folder/authorized_keys` says, and its disks are those in `folder/disks`.
    pub(crate) fn boot(place: &Arc<Place>, name: &str, folder: &Path) -> Running {
        let host = {
            let mut is_used = place.is_used.lock().unwrap_or_else(PoisonError::into_inner);
            let host = (1..=HOSTS).find(|host| !is_used[*host]).expect("a host is free");
            is_used[host] = true;
            host
        };
        let config = format!(
            "ListenAddress {}:22\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nUseDNS no\nSetEnv XDG_CACHE_HOME={}\n",
            address(host),
            place.host_key(host).display(),
            folder.join("authorized_keys").display(),
            folder.join("cache").display(),
        );
        let path = folder.join("sshd.conf");
        fs::write(&path, config).unwrap();
        // Another process of these tests may have ended, and removed it.
        fs::create_dir_all(BY_ID).unwrap();
        // The file systems of each command in a namespace of the network are its own.
        let line = format!(
            "mount --bind {} {BY_ID} && hostname {name} && exec /usr/sbin/sshd -D -e -f {}",
            folder.join("disks").display(),
            path.display()
        );
        let log = fs::File::create(folder.join("sshd.log")).unwrap();
        let server = place
            .network
            .command(host, Path::new("unshare"))
            .args(["--uts", "sh", "-c", &line])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("unshare is part of util-linux");
        Running { place: place.clone(), host, server }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let output = Command::new("ip").args(["netns", "pids", &self.place.network.name(self.host)]).output();
        for id in output.iter().flat_map(|output| {
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(String::from).collect::<Vec<_>>()
        }) {
            // It is in a namespace that this program has made.
            let _ = Command::new("kill").args(["-9", &id]).stderr(Stdio::null()).status();
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
        self.place.is_used.lock().unwrap_or_else(PoisonError::into_inner)[self.host] = false;
    }
}
