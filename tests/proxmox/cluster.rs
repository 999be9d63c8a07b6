//! The cluster behind the stand-in: machines that are cloned, started, stopped and deleted by tasks, and what may go wrong.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::contract::{Contract, Recorded};
use super::place::{Place, Running};
use super::stand_in::{Reply, Request, decoded};
use crate::netns::address;

/// The token that it accepts.
pub(crate) const TOKEN: &str = "bench@pve!load=11111111-2222-3333-4444-555555555555";
/// How long a task takes.
const TASK_TIME: Duration = Duration::from_millis(250);

/// A machine, or a template.
struct Vm {
    node: String,
    config: Map<String, Value>,
    running: Option<Running>,
    /// Questions to its agent.
    asked: u32,
}

/// What a task does when it has ended well.
enum Effect {
    Clone(Option<Complete>),
    /// It fails so by itself.
    Nothing(Option<String>),
    Configure,
    Start,
    Stop,
    Destroy,
}

/// What a clone does when it is complete.
struct Complete {
    /// The machine, if it has no configuration before.
    machine: Option<Vm>,
    /// The node to which it moves then.
    target: String,
    /// The pool that it joins last.
    pool: Option<String>,
}

struct TaskState {
    vmid: u32,
    effect: Effect,
    ends: Option<Instant>,
    exit: Option<String>,
    log: Vec<String>,
}

/// What goes wrong.
#[derive(Default)]
pub(crate) struct Troubles {
    /// A privilege that the token does not have on machines.
    pub(crate) lacks: Option<String>,
    /// Answers to the next calls of these names.
    pub(crate) answers: VecDeque<(&'static str, Reply)>,
    /// How tasks of the calls of this name end, and what their log says.
    pub(crate) task_end: Option<(&'static str, &'static str)>,
    /// Tasks of the calls of this name do not end.
    pub(crate) endless: Option<&'static str>,
    /// Nobody knows tasks of the calls of this name.
    pub(crate) lost: Option<&'static str>,
    /// So many VMIDs are taken by another user a moment before the clone.
    pub(crate) taken: u32,
    /// The same, on another node: the task of the clone finds it.
    pub(crate) taken_elsewhere: u32,
    /// So many questions to each agent are too early.
    pub(crate) agent_after: u32,
    /// The same, for one machine.
    pub(crate) slow_agent: Option<(u32, u32)>,
    /// Tasks of the calls of this name take so long.
    pub(crate) slow: Option<(&'static str, Duration)>,
    /// The configuration of this machine cannot be read.
    pub(crate) unreadable: Option<u32>,
    /// Calls of this name are carried out, and their answer does not come.
    pub(crate) unanswered: Option<&'static str>,
    /// A clone has no configuration before it is complete.
    pub(crate) late: bool,
    /// The token has its rights on the machines of the pool `load` only.
    pub(crate) pool_only: bool,
}

pub(crate) struct Cluster {
    place: Arc<Place>,
    contract: Contract,
    machines: BTreeMap<u32, Vm>,
    tasks: BTreeMap<String, TaskState>,
    /// The pool of a machine.
    pools: BTreeMap<u32, String>,
    pub(crate) troubles: Troubles,
    /// All requests, in their order.
    pub(crate) requests: Vec<Request>,
    folder: PathBuf,
    /// What `/cluster/resources` says of nodes and storages.
    pub(crate) resources: Value,
}

impl Cluster {
    pub(crate) fn new(place: Arc<Place>) -> Cluster {
        let contract = Contract::read();
        let folder = place.folder.join(place.name("cluster"));
        fs::create_dir(&folder).unwrap();
        let config = contract.answer("config")["data"].as_object().unwrap().clone();
        let template = Vm { node: "pve1".into(), config: config.clone(), running: None, asked: 0 };
        let mut server = template.config.clone();
        server.remove("template");
        server.insert("name".into(), "loadline-server".into());
        server.insert("tags".into(), "loadline".into());
        let other = Vm { node: "pve2".into(), config: server, running: None, asked: 0 };
        Cluster {
            resources: contract.answer("resources"),
            machines: BTreeMap::from([(9000, template), (100, other)]),
            tasks: BTreeMap::new(),
            pools: BTreeMap::from([(9000, "load".into())]),
            troubles: Troubles { agent_after: 1, ..Troubles::default() },
            requests: Vec::new(),
            place,
            contract,
            folder,
        }
    }

    /// The names of all machines, by their VMIDs.
    pub(crate) fn names(&self) -> Vec<(u32, String)> {
        let name = |vm: &Vm| vm.config.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
        self.machines.iter().map(|(vmid, vm)| (*vmid, name(vm))).collect()
    }

    /// Machines that run now.
    pub(crate) fn running(&self) -> usize {
        self.machines.values().filter(|vm| vm.running.is_some()).count()
    }

    /// The calls of this method whose path contains a part.
    pub(crate) fn calls(&self, method: &str, part: &str) -> Vec<&Request> {
        self.requests
            .iter()
            .filter(|request| request.method == method && request.path.contains(part))
            .collect()
    }

    /// Another user renames a machine.
    pub(crate) fn rename(&mut self, vmid: u32, name: &str) {
        self.machines.get_mut(&vmid).unwrap().config.insert("name".into(), name.into());
    }

    /// Another program locks a machine, or lets it go.
    pub(crate) fn lock(&mut self, vmid: u32, lock: Option<&str>) {
        let config = &mut self.machines.get_mut(&vmid).unwrap().config;
        match lock {
            Some(lock) => drop(config.insert("lock".into(), lock.into())),
            None => drop(config.remove("lock")),
        }
    }

    /// A run of another host has a machine of this name.
    pub(crate) fn add(&mut self, vmid: u32, name: &str) {
        let mut config = self.machines[&100].config.clone();
        config.insert("name".into(), name.into());
        self.machines.insert(vmid, Vm { node: "pve2".into(), config, running: None, asked: 0 });
    }

    /// A person deletes a machine that does not run.
    pub(crate) fn delete(&mut self, vmid: u32) {
        self.machines.remove(&vmid);
    }

    /// A machine loses its power.
    pub(crate) fn power_off(&mut self, vmid: u32) {
        self.machines.get_mut(&vmid).unwrap().running = None;
    }

    /// Ends all machines.
    pub(crate) fn end(&mut self) {
        self.machines.clear();
    }

    pub(crate) fn answer(&mut self, request: Request) -> Reply {
        self.settle();
        let recorded = self.contract.find(&request.method, &request.path);
        let is_unanswered =
            recorded.is_some_and(|(recorded, _)| self.troubles.unanswered == Some(&recorded.name));
        match (self.answer_at_once(request), is_unanswered) {
            (Reply::Whole(200, ..), true) => Reply::Slow(Duration::from_secs(50)),
            (reply, _) => reply,
        }
    }

    fn answer_at_once(&mut self, request: Request) -> Reply {
        self.requests.push(request.clone());
        if request.authorization != format!("PVEAPIToken={TOKEN}") {
            return Reply::error(401, "invalid token value!");
        }
        let Some((recorded, names)) = self.contract.find(&request.method, &request.path) else {
            return Reply::error(
                501,
                &format!("Method '{} {}' not implemented", request.method, request.path),
            );
        };
        let recorded = recorded.clone();
        if let Some(wrong) = recorded.wrong(&request.parameters) {
            let body = json!({"data": null, "errors": wrong}).to_string();
            return Reply::Whole(400, "Parameter verification failed.".into(), body);
        }
        if self.troubles.answers.front().is_some_and(|(name, _)| *name == recorded.name) {
            return self.troubles.answers.pop_front().unwrap().1;
        }
        let vmid: u32 = names.get("vmid").and_then(|vmid| vmid.parse().ok()).unwrap_or(0);
        if let Some(refused) = self.refused(&recorded, &request, vmid) {
            return Reply::error(403, &format!("Permission check failed ({refused})"));
        }
        let node = names.get("node").cloned().unwrap_or_default();
        if vmid > 0 && self.machines.get(&vmid).is_none_or(|vm| vm.node != node) {
            let reason = format!("Configuration file 'nodes/{node}/qemu-server/{vmid}.conf' does not exist");
            return Reply::error(500, &reason);
        }
        let upid = names.get("upid").cloned().unwrap_or_default();
        match recorded.name.as_str() {
            "version" => Reply::data(&recorded.answer),
            "nextid" if request.parameters.contains_key("vmid") => {
                let vmid = &request.parameters["vmid"];
                match self.machines.contains_key(&vmid.parse().unwrap()) {
                    true => {
                        let wrong = json!({"vmid": format!("VM {vmid} already exists")});
                        let body = json!({"data": null, "errors": wrong}).to_string();
                        Reply::Whole(400, "Parameter verification failed.".into(), body)
                    }
                    false => Reply::data(&json!({"data": vmid})),
                }
            }
            "nextid" => {
                let free = (100..).find(|vmid| !self.machines.contains_key(vmid)).unwrap();
                Reply::data(&json!({"data": free.to_string()}))
            }
            "resources" => Reply::data(&self.resources(request.parameters.get("type").map(String::as_str))),
            "config" if self.troubles.unreadable == Some(vmid) => {
                Reply::error(500, "unable to read the configuration")
            }
            "config" => Reply::data(&json!({"data": self.machines[&vmid].config})),
            "clone" => self.clone_vm(&recorded, &request.parameters, vmid, &node),
            "configure" => self.configure(&recorded, &request.parameters, vmid, &node),
            "start" => self.begin(&recorded, Effect::Start, (vmid, vmid), &node, Vec::new()),
            "stop" => self.begin(&recorded, Effect::Stop, (vmid, vmid), &node, Vec::new()),
            "destroy" => match (&self.machines[&vmid].running, self.machines[&vmid].config.get("lock")) {
                (Some(_), _) => Reply::error(500, &format!("VM {vmid} is running - destroy failed")),
                (None, Some(lock)) => {
                    Reply::error(500, &format!("VM is locked ({})", lock.as_str().unwrap()))
                }
                (None, None) => self.begin(&recorded, Effect::Destroy, (vmid, vmid), &node, Vec::new()),
            },
            "current" => {
                let mut answer = recorded.answer;
                let state = if self.machines[&vmid].running.is_some() { "running" } else { "stopped" };
                answer["data"]["vmid"] = vmid.into();
                answer["data"]["status"] = state.into();
                Reply::data(&answer)
            }
            "task-status" | "task-log" | "task-stop" => self.task(&recorded, &upid),
            "interfaces" | "file-read" => self.agent(&recorded, vmid),
            other => panic!("{other} is in the contract, and the stand-in does not know it"),
        }
    }

    /// The path and the privilege that the token lacks for a call.
    fn refused(&self, recorded: &Recorded, request: &Request, vmid: u32) -> Option<String> {
        // A missing right is reported before a missing machine.
        let is_outside = self.troubles.pool_only && vmid > 0 && !self.pools.contains_key(&vmid);
        if let Some(privilege) = recorded.privilege.as_deref().filter(|_| is_outside) {
            return Some(format!("/vms/{vmid}, {privilege}"));
        }
        let lacks = self.troubles.lacks.as_deref()?;
        let mut needed: Vec<(String, &str)> = Vec::new();
        needed.extend(recorded.privilege.as_deref().map(|privilege| (format!("/vms/{vmid}"), privilege)));
        if recorded.name == "clone" {
            needed.push((format!("/vms/{}", request.parameters["newid"]), "VM.Allocate"));
            needed.push(("/storage/ceph".into(), "Datastore.AllocateSpace"));
        }
        for option in request.parameters.keys().filter(|_| recorded.name == "configure") {
            let privilege = match option.as_str() {
                "cores" | "sockets" => "VM.Config.CPU",
                "memory" | "balloon" => "VM.Config.Memory",
                "ciuser" | "sshkeys" => "VM.Config.Cloudinit",
                option if option.starts_with("scsi") && option != "scsihw" => "VM.Config.Disk",
                _ => "VM.Config.Options",
            };
            needed.push((format!("/vms/{vmid}"), privilege));
        }
        let found = needed.into_iter().find(|(_, privilege)| *privilege == lacks);
        found.map(|(path, privilege)| format!("{path}, {privilege}"))
    }

    fn resources(&self, only: Option<&str>) -> Value {
        let mut entries: Vec<Value> = self.resources["data"].as_array().unwrap().clone();
        let shape = entries.iter().find(|entry| entry["type"] == "qemu").unwrap().clone();
        entries.retain(|entry| entry["type"] != "qemu");
        let is_seen = |vmid: &u32| !self.troubles.pool_only || self.pools.contains_key(vmid);
        for (vmid, vm) in self.machines.iter().filter(|(vmid, _)| is_seen(vmid)) {
            let mut entry = shape.clone();
            entry["id"] = format!("qemu/{vmid}").into();
            entry["vmid"] = (*vmid).into();
            entry["node"] = vm.node.as_str().into();
            entry["name"] = vm.config.get("name").cloned().unwrap_or(Value::Null);
            entry["tags"] = vm.config.get("tags").cloned().unwrap_or(Value::Null);
            entry["template"] = vm.config.get("template").cloned().unwrap_or(json!(0));
            entry["status"] = if vm.running.is_some() { "running" } else { "stopped" }.into();
            entries.push(entry);
        }
        if only == Some("vm") {
            entries.retain(|entry| entry["type"] == "qemu");
        }
        json!({"data": entries})
    }

    fn clone_vm(
        &mut self,
        recorded: &Recorded,
        form: &BTreeMap<String, String>,
        vmid: u32,
        node: &str,
    ) -> Reply {
        let id: u32 = form["newid"].parse().unwrap();
        let mut config = self.machines[&vmid].config.clone();
        if config.get("template") != Some(&json!(1)) {
            return Reply::error(500, "the tests clone templates only");
        }
        config.remove("template");
        let (target, mut named) = (form.get("target").map_or(node, String::as_str), config.clone());
        let is_elsewhere = self.troubles.taken == 0 && self.troubles.taken_elsewhere > 0;
        if is_elsewhere || self.troubles.taken > 0 {
            named.insert("name".into(), "somebody-elses".into());
            let node = if is_elsewhere { "pve2" } else { target };
            self.machines.insert(id, Vm { node: node.into(), config: named, running: None, asked: 0 });
        }
        self.troubles.taken = self.troubles.taken.saturating_sub(1);
        if is_elsewhere {
            self.troubles.taken_elsewhere -= 1;
            let end = format!(
                "clone failed: unable to open file '/etc/pve/nodes/{node}/qemu-server/{id}.conf.tmp.4711' - File exists"
            );
            return self.begin(recorded, Effect::Nothing(Some(end)), (vmid, id), node, Vec::new());
        }
        if self.machines.contains_key(&id) {
            return Reply::error(500, &format!("unable to create VM {id}: config file already exists"));
        }
        config.insert("name".into(), form["name"].clone().into());
        // As a file of Proxmox VE gives it back.
        config.insert("description".into(), format!("{}\n", form["description"]).into());
        config.insert("lock".into(), "clone".into());
        config.insert(
            "net0".into(),
            format!("virtio=BC:24:11:00:{:02X}:{:02X},bridge=vmbr0", id / 256, id % 256).into(),
        );
        // It is on the node of its template until it is complete.
        let machine = Vm { node: node.into(), config, running: None, asked: 0 };
        let machine = match self.troubles.late {
            true => Some(machine),
            false => {
                self.machines.insert(id, machine);
                None
            }
        };
        let complete = Complete { machine, target: target.into(), pool: form.get("pool").cloned() };
        let log = vec!["create linked clone of drive scsi0 (ceph:base-9000-disk-0)".to_string()];
        // The task is named after the template, and is about the clone.
        self.begin(recorded, Effect::Clone(Some(complete)), (vmid, id), node, log)
    }

    fn configure(
        &mut self,
        recorded: &Recorded,
        form: &BTreeMap<String, String>,
        vmid: u32,
        node: &str,
    ) -> Reply {
        let vm = self.machines.get_mut(&vmid).unwrap();
        if vm.config.contains_key("lock") {
            return Reply::error(500, &format!("VM is locked ({})", vm.config["lock"].as_str().unwrap()));
        }
        for (option, value) in form {
            vm.config.insert(option.clone(), value.as_str().into());
        }
        self.begin(recorded, Effect::Configure, (vmid, vmid), node, Vec::new())
    }

    /// Begins a task that is named after one machine and is about another, or the same.
    fn begin(
        &mut self,
        recorded: &Recorded,
        mut effect: Effect,
        (named, about): (u32, u32),
        node: &str,
        mut log: Vec<String>,
    ) -> Reply {
        let upid = recorded.answer["data"].as_str().unwrap();
        let upid = upid
            .replace("{node}", node)
            .replace("{pid}", &format!("{:08X}", 4096 + self.tasks.len()))
            .replace("{vmid}", &named.to_string())
            .replace("{user}", TOKEN.split('=').next().unwrap());
        let own_end = match &mut effect {
            Effect::Nothing(end) => end.take(),
            _ => None,
        };
        let end = self.troubles.task_end.filter(|(name, _)| *name == recorded.name);
        let end = own_end.or_else(|| end.map(|(_, end)| end.to_string()));
        let is_endless = self.troubles.endless == Some(recorded.name.as_str());
        let slow = self.troubles.slow.filter(|(name, _)| *name == recorded.name);
        let time = slow.map_or(TASK_TIME, |(_, time)| time);
        log.extend(end.iter().map(|end| format!("TASK ERROR: {end}")));
        let state = TaskState {
            vmid: about,
            effect,
            ends: (!is_endless).then(|| Instant::now() + time),
            exit: end,
            log,
        };
        self.tasks.insert(upid.clone(), state);
        Reply::data(&json!({"data": upid}))
    }

    /// Does what tasks do that have ended meanwhile.
    fn settle(&mut self) {
        for task in self.tasks.values_mut() {
            if task.ends.is_none_or(|ends| ends > Instant::now()) {
                continue;
            }
            let is_well = task.exit.is_none();
            task.exit.get_or_insert_with(|| "OK".into());
            task.ends = None;
            let folder = self.folder.join(task.vmid.to_string());
            if let (Effect::Clone(complete), true) = (&mut task.effect, is_well) {
                let Some(Complete { machine, target, pool }) = complete.take() else { continue };
                if let Some(machine) = machine {
                    self.machines.insert(task.vmid, machine);
                }
                let Some(vm) = self.machines.get_mut(&task.vmid) else { continue };
                vm.config.remove("lock");
                vm.node = target;
                self.pools.extend(pool.map(|pool| (task.vmid, pool)));
                continue;
            }
            let Some(vm) = self.machines.get_mut(&task.vmid) else { continue };
            match (&task.effect, is_well) {
                // Proxmox VE removes what it has not cloned to its end.
                (Effect::Clone(_), false) | (Effect::Destroy, true) => {
                    self.machines.remove(&task.vmid);
                    self.pools.remove(&task.vmid);
                    let _ = fs::remove_dir_all(&folder);
                }
                (Effect::Start, true) => {
                    vm.running = Some(boot(&self.place, &vm.config, folder));
                    vm.asked = 0;
                }
                (Effect::Stop, true) => vm.running = None,
                (Effect::Clone(_) | Effect::Nothing(_) | Effect::Configure, _) | (_, false) => {}
            }
        }
    }

    fn task(&mut self, recorded: &Recorded, upid: &str) -> Reply {
        let lost = self.troubles.lost.map(|name| format!(":qm{name}:"));
        let Some(task) = self.tasks.get_mut(upid).filter(|_| lost.is_none_or(|kind| !upid.contains(&kind)))
        else {
            return Reply::error(500, &format!("unable to parse worker upid or no such task '{upid}'"));
        };
        let mut answer = recorded.answer.clone();
        match recorded.name.as_str() {
            "task-status" => {
                answer["data"]["upid"] = upid.into();
                match &task.exit {
                    Some(exit) if task.ends.is_none() => answer["data"]["exitstatus"] = exit.as_str().into(),
                    _ => {
                        answer["data"]["status"] = "running".into();
                        answer["data"].as_object_mut().unwrap().remove("exitstatus");
                    }
                }
            }
            "task-log" => {
                let lines = task.log.iter().enumerate().map(|(n, line)| json!({"n": n + 1, "t": line}));
                answer["data"] = lines.collect();
            }
            _ => {
                if task.exit.is_none() {
                    (task.exit, task.ends) = (Some("interrupted by signal".into()), Some(Instant::now()));
                }
            }
        }
        Reply::data(&answer)
    }

    fn agent(&mut self, recorded: &Recorded, vmid: u32) -> Reply {
        let slow = self.troubles.slow_agent.filter(|(slow, _)| *slow == vmid);
        let after = slow.map_or(self.troubles.agent_after, |(_, after)| after);
        let vm = self.machines.get_mut(&vmid).unwrap();
        let Some(running) = &vm.running else {
            return Reply::error(500, &format!("VM {vmid} is not running"));
        };
        vm.asked += 1;
        if vm.asked <= after {
            let body = json!({"data": null, "message": "QEMU guest agent is not running\n"});
            return Reply::Whole(500, "QEMU guest agent is not running".into(), body.to_string());
        }
        let card = vm.config["net0"].as_str().unwrap().split(['=', ',']).nth(1).unwrap().to_lowercase();
        let text = recorded
            .answer
            .to_string()
            .replace("{card}", &card)
            .replace("{address}", &address(running.host).to_string())
            .replace("{host_key}", self.place.public_host_key(running.host).trim());
        Reply::Whole(200, "OK".into(), text)
    }
}

/// Boots a machine as its configuration says: its key, its disks by their world wide names.
fn boot(place: &Arc<Place>, config: &Map<String, Value>, folder: PathBuf) -> Running {
    fs::create_dir_all(folder.join("disks")).unwrap();
    let text = |option: &str| config.get(option).and_then(Value::as_str).unwrap_or_default();
    fs::write(folder.join("authorized_keys"), decoded(text("sshkeys")) + "\n").unwrap();
    for (slot, drive) in config.iter().filter(|(slot, _)| slot.starts_with("scsi")) {
        let drive = drive.as_str().unwrap();
        let Some(wwn) = drive.split(',').find_map(|part| part.strip_prefix("wwn=")) else { continue };
        let gib: f64 = drive.split([':', ',']).nth(1).unwrap().parse().unwrap();
        let disk = folder.join(slot);
        let file = fs::File::create(&disk).unwrap();
        file.set_len((gib * f64::from(1 << 30)) as u64).unwrap();
        let link = folder.join(format!("disks/wwn-{wwn}"));
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&disk, link).unwrap();
    }
    Running::boot(place, text("name"), &folder)
}
