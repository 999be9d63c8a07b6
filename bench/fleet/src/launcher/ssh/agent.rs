//! The agent: a process of this program on a host, which starts the workers of one node there (and those that come from other nodes)
//! as a controller starts its own, and ends them when its connection to the controller ends or is silent.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use loadline_load::examine;
use loadline_load::target::free_space;
use nix::sys::signal::SigSet;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::messages::{
    AgentOrder, DiskQuestion, FoundDisk, FromAgent, HostAnswer, HostQuestion, LONGEST_LINE, SILENCE_LIMIT,
    ToAgent,
};
use crate::error::FleetError;
use crate::identity::WorkerId;
use crate::launcher::local::LocalLauncher;
use crate::launcher::{LaunchContext, Launcher, LocalProcesses};
use crate::node::NodeSpec;
use crate::orders::{KeeperAnswer, Migration};

/// How often it is checked whether a worker has ended.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Messages of the controller that wait.
const MESSAGES_WAITING: usize = 256;

/// Carries out what the controller at the other end of standard input asks, until that ends, is silent for 15 s, or asks for the
/// end; then ends all workers. `marker` begins each line of its answers on standard output. To be called before the process starts any
/// thread.
pub fn run_host_agent(marker: &str) -> Result<(), FleetError> {
    // Workers inherit what is blocked.
    SigSet::all()
        .thread_unblock()
        .map_err(|e| FleetError::failed(format!("cannot unblock the agent's signals: {e}")))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| FleetError::failed(format!("cannot start the agent: {e}")))?;
    let (send, receive) = mpsc::channel(MESSAGES_WAITING);
    std::thread::Builder::new()
        .name("input".into())
        .spawn(move || read_messages(&send))
        .map_err(|e| FleetError::failed(format!("cannot start the agent: {e}")))?;
    let result = runtime.block_on(Agent::new(marker).obey(receive));
    runtime.shutdown_background();
    result
}

/// Reads messages until the input ends or makes no sense; then the channel ends.
fn read_messages(send: &mpsc::Sender<ToAgent>) {
    let mut input = BufReader::new(std::io::stdin());
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) || line.last() != Some(&b'\n') {
            return;
        }
        let Ok(message) = serde_json::from_slice(&line) else { return };
        if send.blocking_send(message).is_err() {
            return;
        }
    }
}

/// The answer to an order that took long.
struct Answered {
    number: u64,
    /// An error: the process that was to receive the machine of this worker has ended.
    answer: Result<KeeperAnswer, WorkerId>,
}

struct Agent<'a> {
    marker: &'a str,
    launcher: Option<LocalLauncher>,
    running: BTreeSet<WorkerId>,
    /// Where answers to orders come from that take long.
    answers: (mpsc::Sender<Answered>, mpsc::Receiver<Answered>),
}

impl<'a> Agent<'a> {
    fn new(marker: &'a str) -> Agent<'a> {
        let answers = mpsc::channel(MESSAGES_WAITING);
        Agent { marker, launcher: None, running: BTreeSet::new(), answers }
    }

    async fn obey(mut self, mut messages: mpsc::Receiver<ToAgent>) -> Result<(), FleetError> {
        let mut result = self.send(&FromAgent::Ready {
            version: env!("CARGO_PKG_VERSION").into(),
            host: host_name(),
            boot: boot(),
            client: ssh_connection(0),
        });
        let mut tick = interval(POLL_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut deadline = Instant::now();
        let mut silent_at = Instant::now() + SILENCE_LIMIT;
        while result.is_ok() {
            result = tokio::select! {
                message = messages.recv() => {
                    silent_at = Instant::now() + SILENCE_LIMIT;
                    match message {
                        None => break,
                        Some(ToAgent::EndAll { wait }) => {
                            deadline = Instant::now() + wait.min(SILENCE_LIMIT);
                            break;
                        }
                        Some(message) => self.handle(message).await,
                    }
                }
                _ = tick.tick() => self.report_exits().await,
                Some(answer) = self.answers.1.recv() => self.answer(answer).await,
                () = sleep_until(silent_at) => Err(FleetError::failed("the controller is silent")),
            };
        }
        if let Some(launcher) = &mut self.launcher {
            launcher.end_all(deadline).await;
        }
        result.and_then(|()| self.send(&FromAgent::Ended))
    }

    async fn handle(&mut self, message: ToAgent) -> Result<(), FleetError> {
        match message {
            ToAgent::Begin { node, workers, controller, token, machine } => {
                let fleet = LocalProcesses { nodes: vec![*node], workers_per_node: workers };
                let context = LaunchContext {
                    controller,
                    token: token.into(),
                    program: PathBuf::from("/proc/self/exe"),
                    copies: watch::Sender::default(),
                    log_dir: None,
                    host_ip: ssh_connection(2).filter(|_| controller.ip().is_loopback()),
                    goes_on_without: false,
                    machine: machine.map(|machine| *machine),
                    notices: mpsc::channel(1).0,
                };
                let launcher = self.launcher.insert(LocalLauncher::new(&fleet));
                let answer = match launcher.prepare(context).await {
                    Ok(_) => FromAgent::Begun,
                    Err(error) => FromAgent::Refused(error.message),
                };
                self.send(&answer)
            }
            ToAgent::Launch(worker) => {
                let launched = match &mut self.launcher {
                    Some(launcher) => {
                        launcher.adopt(&worker);
                        launcher.launch(&worker).await
                    }
                    None => Err(FleetError::failed("the agent was not told of its node")),
                };
                match launched {
                    Ok(_) => {
                        self.running.insert(worker);
                        Ok(())
                    }
                    Err(error) => {
                        let message = error.message;
                        self.send(&FromAgent::Exited { worker, message, usage: false })
                    }
                }
            }
            ToAgent::End(workers) => {
                let workers: BTreeSet<WorkerId> = workers.into_iter().collect();
                self.running.retain(|worker| !workers.contains(worker));
                if let Some(launcher) = &mut self.launcher {
                    launcher.end(&workers).await;
                }
                self.send(&FromAgent::Ended)
            }
            ToAgent::Order { number, order } => match self.order(number, order).await {
                Ok(None) => Ok(()),
                Ok(Some(answer)) => self.send(&FromAgent::Answered { number, answer }),
                Err(error) => {
                    self.send(&FromAgent::Answered { number, answer: KeeperAnswer::Failed(error.message) })
                }
            },
            ToAgent::Inspect(question) => self.send(&FromAgent::Inspected(inspect(&question))),
            ToAgent::EndAll { .. } | ToAgent::KeepAlive => Ok(()),
        }
    }

    /// Carries out an order about a machine. `None`: the answer comes later.
    async fn order(&mut self, number: u64, order: AgentOrder) -> Result<Option<KeeperAnswer>, FleetError> {
        let launcher = self.launcher.as_mut();
        let launcher = launcher.ok_or_else(|| FleetError::failed("the agent was not told of its node"))?;
        let answered = match order {
            AgentOrder::Machine { worker, order } => {
                launcher.order(&worker, order).await?;
                return Ok(Some(KeeperAnswer::Done));
            }
            AgentOrder::Receive { worker, key } => {
                let ip = ssh_connection(2).ok_or_else(|| {
                    FleetError::failed(
                        "SSH does not say the address of this host, so no machine is received here",
                    )
                })?;
                let (address, answers) = (launcher.receive(&worker, ip, &key)?, self.answers.0.clone());
                tokio::spawn(async move {
                    let answer = address.await.map(KeeperAnswer::Receives).map_err(|_| worker);
                    let _ = answers.send(Answered { number, answer }).await;
                });
                return Ok(None);
            }
            AgentOrder::Migrate { worker, node, disks, to: None } => {
                launcher.migrate(&worker, Migration { node, disks }).await?
            }
            AgentOrder::Migrate { worker, node, disks, to: Some(receiver) } => {
                launcher.migrate_there(&worker, Migration { node, disks }, receiver).await?
            }
        };
        let answers = self.answers.0.clone();
        tokio::spawn(async move {
            let result = answered.await.unwrap_or_else(|_| Err("its keeper has ended".to_string().into()));
            let _ = answers.send(Answered { number, answer: Ok(KeeperAnswer::of(result)) }).await;
        });
        Ok(None)
    }

    async fn answer(&mut self, Answered { number, answer }: Answered) -> Result<(), FleetError> {
        let answer = match (answer, &mut self.launcher) {
            (Ok(answer), _) => answer,
            (Err(worker), Some(launcher)) => {
                let exit = launcher.receiver_exit(&worker).await;
                let why = exit.map_or_else(|| "its process ended".into(), |exit| exit.message);
                KeeperAnswer::Failed(format!("no machine is received: {why}"))
            }
            (Err(_), None) => KeeperAnswer::Failed("no machine is received".into()),
        };
        self.send(&FromAgent::Answered { number, answer })
    }

    async fn report_exits(&mut self) -> Result<(), FleetError> {
        let Some(launcher) = &mut self.launcher else { return Ok(()) };
        let mut exits = Vec::new();
        for worker in &self.running {
            if let Some(exit) = launcher.exit_of(worker).await {
                exits.push((worker.clone(), exit));
            }
        }
        for (worker, exit) in exits {
            self.running.remove(&worker);
            self.send(&FromAgent::Exited { worker, message: exit.message, usage: exit.usage })?;
        }
        Ok(())
    }

    fn send(&self, message: &FromAgent) -> Result<(), FleetError> {
        let gone = |e: &dyn std::fmt::Display| FleetError::failed(format!("the controller is gone ({e})"));
        let text = serde_json::to_string(message).map_err(|e| gone(&e))?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{} {text}", self.marker).and_then(|()| out.flush()).map_err(|e| gone(&e))
    }
}

fn inspect(question: &HostQuestion) -> HostAnswer {
    let folder = |path: &PathBuf| match path.is_dir() {
        true => free_space(path).map_err(|e| e.message),
        false => Err("it is not a folder: make it, or name another one".into()),
    };
    HostAnswer {
        host: host_name(),
        boot: boot(),
        disks: question.disks.iter().map(inspect_disk).collect(),
        folders: question.folders.iter().map(folder).collect(),
    }
}

fn inspect_disk(question: &DiskQuestion) -> Result<FoundDisk, String> {
    let mut found = Err("no profile uses it".to_string());
    for profile in &question.profiles {
        let examined = examine(&question.target, profile, question.writes).map_err(|e| e.message)?;
        found = Ok(FoundDisk { size: examined.size, identity: examined.identity });
    }
    found
}

/// An address of the connection by which `ssh` came: 0 of the other end, 2 of this host.
fn ssh_connection(field: usize) -> Option<IpAddr> {
    std::env::var("SSH_CONNECTION").ok()?.split(' ').nth(field)?.parse().ok()
}

fn host_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "unknown".into(), |h| h.to_string_lossy().into_owned())
}

/// The kernel's own identity of this start of the system.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

/// What an agent needs to know of a node.
pub(super) fn limits_of(node: &NodeSpec) -> NodeSpec {
    NodeSpec { ssh: None, ssh_key: None, disks: Vec::new(), ..node.clone() }
}
