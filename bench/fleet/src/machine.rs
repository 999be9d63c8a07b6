//! The keeper of a worker that is a virtual machine: a process on the host that starts the machine, attaches the worker's disks when the
//! worker asks for them, and ends with the worker.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loadline_guest::{
    Acceleration, Contents, Devices, GuestError, Hypervisor, Image, Kernel, Machine, MachineDisk, Migrated,
    NbdServer, OpenFile, Qemu, Remote, Whither, probe, room, turns,
};
use loadline_load::nbd::uri::Server;
use loadline_load::{Disk, Lent, LoadError, Target, lend, memory, share_journal};
use nix::fcntl::Flock;
use nix::sys::stat::{SFlag, fstat};
use serde_json::{Value, json};

use crate::carried::unpacked;
use crate::cpus::CpuList;
use crate::elsewhere::Way;
use crate::error::{ErrorKind, FleetError};
use crate::join::WorkerOptions;
use crate::load_thread::{make_files, remove_files};
use crate::node::NodeSpec;
use crate::orders::{KeeperAnswer, KeeperOrder, NotMigrated, order_of};
use crate::outside::{Answer, Request};
use crate::token::check_token;
use crate::worker::confine;

/// The program of a machine's first process, beside `loadline` or where this variable says.
const INIT: &str = "guest-init";
const INIT_VARIABLE: &str = "LOADLINE_GUEST_INIT";
/// Where packages put it.
const INIT_FOLDER: &str = "/usr/lib/loadline";
/// How long a machine may take from its start to its report. Software takes some seconds, beside builds ten times that.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long a machine may wait until others have booted.
const TURN_LIMIT: Duration = Duration::from_secs(600);
/// How long the controller may take to answer a connection.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// What every machine of this host is started from.
#[derive(Debug, Clone)]
pub struct GuestFiles {
    /// QEMU.
    pub qemu: Qemu,
    /// The kernel and the first file system of a worker.
    pub image: Image,
    /// The folder of what is kept for further machines.
    pub cache: PathBuf,
}

impl GuestFiles {
    /// Finds QEMU, a kernel and the first program, and makes the image, or finds one that was made.
    pub fn find() -> Result<GuestFiles, FleetError> {
        let qemu = Qemu::find()?;
        let (image, cache) = find_image()?;
        Ok(GuestFiles { qemu, image, cache })
    }

    /// What runs the machines of this host: it is tried once after the host has booted, by booting one.
    pub fn acceleration(&self) -> Result<Acceleration, FleetError> {
        Ok(probe(&self.qemu, &self.image, &self.cache)?)
    }
}

/// Finds a kernel and the first program, and makes the image, or finds one that was made. Returns the folder of what is kept too.
pub(crate) fn find_image() -> Result<(Image, PathBuf), FleetError> {
    let (kernel, cache) = (Kernel::find()?, cache_folder()?);
    let image = Image::build(&kernel, &first_program(&cache)?, Contents::Worker, &cache)?;
    Ok((image, cache))
}

/// The folder in which images are kept: of the user's cache.
pub fn cache_folder() -> Result<PathBuf, FleetError> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    cache.map(|cache| cache.join("loadline/guests")).ok_or_else(|| {
        FleetError::usage(
            "the images of virtual machines have no place: set XDG_CACHE_HOME or HOME to a folder of yours",
        )
    })
}

/// The program of a machine's first process: where the variable says, beside this program, carried by it to this host, or where packages
/// put it. `cache` is the folder into which one that is carried is unpacked.
pub fn first_program(cache: &Path) -> Result<PathBuf, FleetError> {
    if let Some(path) = env::var_os(INIT_VARIABLE) {
        return Ok(path.into());
    }
    let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.join(INIT)));
    if let Some(beside) = beside.as_ref().filter(|path| path.is_file()) {
        return Ok(beside.clone());
    }
    let carried = unpacked(Path::new("/proc/self/exe"), cache).map_err(|e| {
        FleetError::usage(format!(
            "the first program of virtual machines cannot be unpacked to {}: {e}",
            cache.display()
        ))
    })?;
    if let Some(carried) = carried {
        return Ok(carried);
    }
    let places = [beside, Some(Path::new(INIT_FOLDER).join(INIT))];
    places.iter().flatten().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let names: Vec<String> = places.iter().flatten().map(|path| path.display().to_string()).collect();
        FleetError::usage(format!(
            "the first program of virtual machines, {INIT}, is not there: {}. It comes with loadline's package, or by ./dev build; \
             {INIT_VARIABLE} names another place",
            names.join(", ")
        ))
    })
}

/// How long a worker that is a machine may take to join, of so many on its host, which boot in turns.
pub(crate) fn machine_limit(machines: usize) -> Duration {
    const EACH: Duration = Duration::from_secs(10);
    BOOT_LIMIT + Duration::from_secs(30) + EACH * u32::try_from(machines).unwrap_or(u32::MAX)
}

/// Refuses nodes whose machines do not fit into this host's memory, so many on each, and says how many would.
pub(crate) fn check_room(nodes: &[NodeSpec], workers_per_node: u32) -> Result<(), FleetError> {
    let machines: Vec<&Machine> = nodes.iter().filter_map(|node| node.machine.as_ref()).collect();
    let Some(largest) = machines.iter().map(|machine| machine.memory).max() else { return Ok(()) };
    let count = u32::try_from(machines.len()).unwrap_or(u32::MAX).saturating_mul(workers_per_node);
    let (free, _) = memory::available();
    Ok(room::check(count, largest, loadline_base::units::ByteSize(free))?)
}

/// Runs a worker in a virtual machine of this host, until the worker has ended. As [`run_worker`](crate::run_worker) otherwise: to be
/// called by a process's first thread, before it starts any other.
pub fn run_worker_in_machine(
    options: WorkerOptions,
    machine: &Machine,
    tell: &mut dyn FnMut(&str),
) -> Result<(), FleetError> {
    check_token(&options.token)?;
    machine.check()?;
    let any_cpus =
        CpuList::of_this().map_err(|e| FleetError::failed(format!("the CPUs of this process: {e}")))?;
    confine(&options)?;
    let hypervisor = Hypervisor::of(machine)?;
    let (image, cache) = find_image()?;
    let acceleration = hypervisor.acceleration(&image, &cache)?;
    let name = options.name.clone().unwrap_or_else(|| format!("machine-{}", std::process::id()));
    let keeper = {
        let _turn = turns::wait(&cache, TURN_LIMIT)?;
        let mut keeper = hypervisor.start(&name, machine, &image, acceleration)?;
        let took = keeper.booted(BOOT_LIMIT)?;
        tell(&format!(
            "the virtual machine has booted in {:.1} s ({})",
            took.as_secs_f64(),
            acceleration.name()
        ));
        keeper
    };
    let remote = keeper.remote()?;
    let cpus = options.cpus.clone().unwrap_or_else(|| any_cpus.clone());
    let place = WorkerOptions { child: false, cpus: Some(cpus), ..options.clone() };
    std::thread::Builder::new()
        .name("orders".into())
        .spawn(move || take_orders(remote, place, &any_cpus))
        .map_err(|e| FleetError::failed(format!("cannot start a thread for orders: {e}")))?;
    let worker = json!({
        "join": options.join,
        "token": options.token,
        "node": options.node.clone().unwrap_or_else(|| name.clone()),
        "name": name,
        "acceleration": acceleration.name(),
        "libvirt": hypervisor.libvirt(),
    });
    let mut lender = Lender::default();
    let answer = move |question: Value, devices: &mut Devices| lender.answer(question, devices);
    let ended = keeper.run(worker, || dial(&options.join), answer)?;
    let words = ended.words.trim().trim_start_matches("loadline: ").to_string();
    match (ended.code, ended.signal) {
        (Some(0), _) => Ok(()),
        (Some(2), _) => Err(FleetError::usage(words)),
        (Some(130), _) => Err(FleetError::interrupted()),
        (Some(_), _) if !words.is_empty() => Err(FleetError::failed(words)),
        (code, signal) => Err(FleetError::failed(format!(
            "the worker in the virtual machine ended (exit code {code:?}, signal {signal:?}); its last words: {words}"
        ))),
    }
}

/// Carries out what the launcher orders on this process's input, one line of JSON for each order. `place` has the limits under which
/// this process and the machine are; `any_cpus` are those of a node that names none.
fn take_orders(mut remote: Remote, mut place: WorkerOptions, any_cpus: &CpuList) {
    for line in io::stdin().lines().map_while(Result::ok) {
        let done = match order_of(&line) {
            Ok(KeeperOrder::Machine(order)) => remote.carry_out(order).map_err(FleetError::from),
            Ok(KeeperOrder::Migrate { disks, to: Some(receiver), .. }) => {
                let there = Whither::There(&mut Way::to(receiver));
                answer(pairs_of(&disks).and_then(|disks| remote.migrate(there, &disks)));
                Ok(())
            }
            Ok(KeeperOrder::Migrate { disks, cpus, cgroups, to: None }) => {
                let there = |cpus| WorkerOptions { cpus: Some(cpus), cgroups, ..place.clone() };
                let cpus = cpus.map_or(Ok(any_cpus.clone()), |cpus| cpus.parse::<CpuList>());
                let there = cpus.map(there).map_err(|e| GuestError::failed(e.to_string()));
                let result = there.and_then(|there| migrate(&mut remote, &disks, &mut place, there));
                answer(result);
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            eprintln!("loadline: {error}");
        }
    }
    // A QEMU that this thread has started would die with it.
    loop {
        std::thread::park();
    }
}

/// Tells the launcher what came of a migration.
fn answer(result: Result<Migrated, GuestError>) {
    let answer = KeeperAnswer::of(result.map_err(NotMigrated::from));
    println!("{}", serde_json::to_string(&answer).expect("an answer is JSON"));
}

/// Disks of a worker, and what takes their places, as QEMU reaches them.
fn pairs_of(disks: &[(Target, Target)]) -> Result<Vec<(MachineDisk, MachineDisk)>, GuestError> {
    let served = |target: &Target| {
        served_disk(target).ok_or_else(|| {
            GuestError::failed(format!("{target} is of this host, and does not move with a machine"))
        })
    };
    disks.iter().map(|(before, after)| Ok((served(before)?, served(after)?))).collect()
}

/// Migrates the machine to a QEMU under the limits of another node. `place` is where it is afterwards.
fn migrate(
    remote: &mut Remote,
    disks: &[(Target, Target)],
    place: &mut WorkerOptions,
    there: WorkerOptions,
) -> Result<Migrated, GuestError> {
    let disks = pairs_of(disks)?;
    // What is started from now on is there.
    let migrated = leave(&place.cgroups, &there.cgroups)
        .and_then(|()| confine(&there))
        .map_err(|error| GuestError::failed(error.message))
        .and_then(|()| remote.migrate(Whither::Here, &disks));
    match migrated {
        Ok(_) => *place = there,
        // The error that is returned is that of the migration.
        Err(_) => drop(leave(&there.cgroups, &place.cgroups).and_then(|()| confine(place))),
    }
    migrated
}

/// Leaves control groups whose like the other node has not: for the group in which the node's group was made.
fn leave(groups: &[PathBuf], others: &[PathBuf]) -> Result<(), FleetError> {
    let stays = |group: &Path| others.iter().any(|other| other.parent() == group.parent());
    for above in groups.iter().filter(|group| !stays(group)).filter_map(|group| group.parent()) {
        let processes = above.join("cgroup.procs");
        // 0 stands for the process that writes it.
        std::fs::write(&processes, "0").map_err(|e| {
            FleetError::failed(format!("cannot move into the control group {}: {e}", processes.display()))
        })?;
    }
    Ok(())
}

fn dial(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, DIAL_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// What is lent to the machine, by its address there: locked until it is taken away.
#[derive(Default)]
struct Lender {
    disks: BTreeMap<String, Lent>,
    journals: BTreeMap<String, Flock<File>>,
}

impl Lender {
    /// Carries out what the worker asks for.
    fn answer(&mut self, question: Value, devices: &mut Devices) -> Value {
        let answer = match serde_json::from_value(question) {
            Ok(request) => self.carry_out(request, devices).unwrap_or_else(Answer::refused),
            Err(e) => Answer::refused(LoadError::failed(format!("the worker asks for what is unknown: {e}"))),
        };
        serde_json::to_value(answer).expect("an answer is JSON")
    }

    fn carry_out(&mut self, request: Request, devices: &mut Devices) -> Result<Answer, LoadError> {
        match request {
            Request::MakeFiles(files) => make_files(&files).map(Answer::Made),
            Request::RemoveFiles(files) => remove_files(&files).map(|()| Answer::Done),
            Request::Attach(disk) => {
                let lent = lend(&disk)?;
                let address = devices.attach(&machine_disk(&disk, &lent)?, lent.writable).map_err(of_load)?;
                let findings = lent.findings.clone();
                self.disks.insert(address.clone(), lent);
                Ok(Answer::Attached { address, findings })
            }
            Request::Journal { path, unit, size } => {
                let file = share_journal(&path, unit, size)?;
                let failed = |e: io::Error| LoadError::failed(format!("{}: {e}", path.display()));
                let length = file.metadata().map_err(failed)?.len();
                let open = OpenFile::of(&file).map_err(failed)?;
                let address = devices.share(&path, open, length).map_err(of_load)?;
                self.journals.insert(address.clone(), file);
                Ok(Answer::Attached { address, findings: Vec::new() })
            }
            Request::Detach { address } => {
                devices.detach(&address).map_err(of_load)?;
                self.disks.remove(&address);
                self.journals.remove(&address);
                Ok(Answer::Done)
            }
        }
    }
}

/// How QEMU reaches a disk that is lent.
pub fn machine_disk(disk: &Disk, lent: &Lent) -> Result<MachineDisk, LoadError> {
    if let Target::Rbd(uri) = &disk.target
        && uri.keyring.is_some()
    {
        return Err(LoadError::usage(format!(
            "{uri}: QEMU takes no keyring; name the key's file in the cluster's configuration (keyring = …), and give that by conf"
        )));
    }
    if let Target::Iscsi(uri) = &disk.target
        && (uri.user.is_some() || uri.digest || uri.initiator.is_some())
    {
        return Err(LoadError::usage(format!(
            "{uri}: the initiator of a virtual machine logs in without authentication and digests, by its own name: leave out user and \
             options, or use a fleet of processes"
        )));
    }
    if let Some(served) = served_disk(&disk.target) {
        return Ok(served);
    }
    match &disk.target {
        Target::Path(path) => {
            let file = lent.file.clone().ok_or_else(|| {
                LoadError::failed(format!("{} is not open, and cannot be attached", path.display()))
            })?;
            let is_block = fstat(file.as_fd())
                .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFBLK);
            let (path, open, direct) = (path.clone(), OpenFile::from(file), lent.direct);
            Ok(match is_block {
                true => MachineDisk::Block { path, open, direct },
                false => MachineDisk::File { path, open, direct },
            })
        }
        other => {
            Err(LoadError::failed(format!("{other} is nowhere, and cannot be attached to a virtual machine")))
        }
    }
}

/// How QEMU reaches a disk that a server has; `None` of any other.
fn served_disk(target: &Target) -> Option<MachineDisk> {
    Some(match target {
        Target::Nbd(uri) => {
            let server = match &uri.server {
                Server::Tcp(host, port) => NbdServer::Tcp(host.clone(), *port),
                Server::Unix(path) => NbdServer::Unix(path.clone()),
            };
            MachineDisk::Nbd { server, export: uri.export.clone() }
        }
        Target::Vhost(socket) => MachineDisk::VhostUser(socket.clone()),
        Target::Rbd(uri) => MachineDisk::Rbd {
            pool: uri.pool.clone(),
            namespace: uri.namespace.clone(),
            image: uri.image.clone(),
            user: uri.user.clone(),
            conf: uri.conf.clone(),
        },
        Target::Iscsi(uri) => MachineDisk::Iscsi {
            portal: format!("{}:{}", uri.host, uri.port),
            target: uri.target.clone(),
            lun: uri.lun,
        },
        Target::Path(_) | Target::Null(_) => return None,
    })
}

impl From<GuestError> for FleetError {
    fn from(error: GuestError) -> FleetError {
        FleetError { kind: kind_of(&error), message: error.message }
    }
}

fn of_load(error: GuestError) -> LoadError {
    LoadError { kind: kind_of(&error), message: error.message }
}

fn kind_of(error: &GuestError) -> ErrorKind {
    match error.kind {
        loadline_guest::ErrorKind::Usage => ErrorKind::Usage,
        loadline_guest::ErrorKind::Failed | loadline_guest::ErrorKind::Again => ErrorKind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_load::WritePermission;

    #[test]
    fn a_login_that_qemu_would_not_make_is_refused() {
        let attached = |uri: &str| {
            let disk = Disk { target: uri.parse().unwrap(), writes: WritePermission::Refused };
            machine_disk(&disk, &lend(&disk).unwrap())
        };
        assert!(attached("iscsi://h/iqn.a:b/0").is_ok());
        for options in ["digest=crc32c", "initiator=iqn.c"] {
            let error = attached(&format!("iscsi://h/iqn.a:b/0?{options}")).err().unwrap();
            assert!(error.message.contains("leave out user and options"), "{error}");
        }
        assert!(attached("iscsi://user@h/iqn.a:b/0").is_err());
    }
}
