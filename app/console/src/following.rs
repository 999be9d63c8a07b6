//! A cluster that is followed: a thread for the status, a thread for each node, and a second after the other for those who watch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use loadline_api_client::ApiAddress;
use loadline_san_node::node::manage::StatusView;
use tokio::sync::broadcast;

use crate::cluster::Cluster;
use crate::follower::{Follower, shown};
use crate::past::Past;
use crate::view::Now;

/// The time from one status to the next.
const STATUS: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
/// How long a status may take.
const LIMIT: Duration = Duration::from_secs(6);
/// Seconds that one who watches may be behind. It goes on with what is kept of the time before.
const BEHIND: usize = 16;

/// A second, for all who watch.
#[derive(Debug, Clone)]
pub struct Second {
    /// What there is to see.
    pub now: Arc<Now>,
    /// The same as JSON.
    pub json: Arc<str>,
}

/// A cluster that is followed, and what it did.
#[derive(Debug, Clone)]
pub struct Following(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    cluster: Mutex<Cluster>,
    past: Mutex<Past>,
    seconds: broadcast::Sender<Second>,
    latest: Mutex<Option<Second>>,
}

/// Where a cluster is.
#[derive(Debug, Clone)]
pub struct Place {
    /// What people call it.
    pub name: String,
    /// The API of one of its nodes: the others are known from it.
    pub api: ApiAddress,
    /// The file that proves the access.
    pub access: Option<PathBuf>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The console's clock: milliseconds since 1970.
fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl Following {
    /// Follows a cluster, until the process ends.
    ///
    /// # Errors
    /// The system starts no further thread.
    pub fn start(place: Place) -> std::io::Result<Following> {
        let following = Following(Arc::new(Inner {
            name: place.name.clone(),
            cluster: Mutex::default(),
            past: Mutex::default(),
            seconds: broadcast::Sender::new(BEHIND),
            latest: Mutex::default(),
        }));
        let statuses = following.clone();
        std::thread::Builder::new().name("status".into()).spawn(move || statuses.ask(&place))?;
        let seconds = following.clone();
        std::thread::Builder::new().name("seconds".into()).spawn(move || {
            let mut next = Instant::now();
            loop {
                seconds.tick();
                // Seconds in which the machine slept are a gap: they are not made up for.
                next = (next + SECOND).max(Instant::now());
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        })?;
        Ok(following)
    }

    /// What people call the cluster.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What is known of it at this moment.
    pub fn cluster(&self) -> MutexGuard<'_, Cluster> {
        lock(&self.0.cluster)
    }

    /// What it did.
    pub fn past(&self) -> MutexGuard<'_, Past> {
        lock(&self.0.past)
    }

    /// The last second, if there was one; and those that follow it.
    pub fn watch(&self) -> (Option<Second>, broadcast::Receiver<Second>) {
        let latest = lock(&self.0.latest);
        (latest.clone(), self.0.seconds.subscribe())
    }

    /// The last second, if there was one.
    pub fn latest(&self) -> Option<Second> {
        lock(&self.0.latest).clone()
    }

    fn tick(&self) {
        let now = self.cluster().tick(Instant::now(), wall_ms());
        self.past().add(&now);
        let json = serde_json::to_string(&now).expect("it is numbers and texts").into();
        let second = Second { now: Arc::new(now), json };
        let mut latest = lock(&self.0.latest);
        *latest = Some(second.clone());
        // An error says that no one watches.
        let _ = self.0.seconds.send(second);
    }

    /// Asks for the status again and again: of the node that has answered last, or of another one.
    fn ask(&self, place: &Place) {
        let mut known: Vec<ApiAddress> = vec![place.api.clone()];
        let mut followers: BTreeMap<String, (ApiAddress, Follower)> = BTreeMap::new();
        // Of the host of a node its own identity is an access to the other nodes too.
        let access = place.access.clone().or_else(|| place.api.own_access());
        loop {
            let begun = Instant::now();
            match status(&known[0], access.as_deref()) {
                Ok(status) => {
                    // First: what a node sends that is not known is not taken.
                    self.cluster().learn_status(Ok(status.clone()), Instant::now());
                    let apis: BTreeMap<&str, ApiAddress> = status
                        .nodes
                        .iter()
                        .filter_map(|node| {
                            Some((node.name.as_str(), place.api.of_other(node.api.parse().ok()?)))
                        })
                        .collect();
                    followers.retain(|name, (api, _)| apis.get(name.as_str()) == Some(api));
                    for (name, api) in &apis {
                        if !followers.contains_key(*name) {
                            self.follow(&mut followers, name, api, access.clone());
                        }
                    }
                    let first = known.swap_remove(0);
                    known = std::iter::once(first.clone())
                        .chain([place.api.clone()])
                        .chain(apis.into_values())
                        .collect();
                    let mut seen = Vec::new();
                    known.retain(|api| {
                        !seen.contains(api) && {
                            seen.push(api.clone());
                            true
                        }
                    });
                }
                Err(why) => {
                    self.cluster()
                        .learn_status(Err(format!("{} does not answer: {why}", known[0])), Instant::now());
                    known.rotate_left(1);
                }
            }
            std::thread::sleep(STATUS.saturating_sub(begun.elapsed()).max(STATUS / 10));
        }
    }

    fn follow(
        &self,
        followers: &mut BTreeMap<String, (ApiAddress, Follower)>,
        name: &str,
        api: &ApiAddress,
        access: Option<PathBuf>,
    ) {
        let (this, node) = (self.clone(), name.to_owned());
        let report = move |news| this.cluster().learn(&node, news, Instant::now(), wall_ms());
        // Without a thread the node stays unknown, and is tried again with the next status.
        if let Ok(follower) = Follower::start(api.clone(), access, report) {
            followers.insert(name.into(), (api.clone(), follower));
        }
    }
}

/// The status, as this node has it.
fn status(api: &ApiAddress, access: Option<&Path>) -> Result<StatusView, String> {
    let agent = api.agent(access, LIMIT)?;
    let mut answer = agent.get(api.url("/v1/status")).call().map_err(|why| shown(&why.to_string()))?;
    if answer.status() != 200 {
        let said = answer.body_mut().with_config().limit(4096).read_to_string().unwrap_or_default();
        return Err(format!("it answers {}: {said}", answer.status().as_u16()));
    }
    let text =
        answer.body_mut().with_config().limit(64 << 20).read_to_string().map_err(|why| why.to_string())?;
    serde_json::from_str(&text).map_err(|why| format!("it sends what is not understood: {why}"))
}
