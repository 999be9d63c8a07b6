//! A cluster that is followed: a thread for the status, a thread for each node, and a second after the other for those who watch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use loadline_api_client::ApiAddress;
use loadline_san_node::node::manage::StatusView;
use tokio::sync::broadcast;

use crate::action::Action;
use crate::cluster::Cluster;
use crate::follower::{Follower, shown};
use crate::past::Past;
use crate::view::{Now, Overall};

/// The time from one status to the next.
const STATUS: Duration = Duration::from_secs(2);
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
    place: Place,
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

/// The time from this moment of the console's clock to the middle of the next second. At its beginning a thread that is woken a moment
/// earlier or later would see one second twice, and miss the next one.
fn to_next(wall_ms: u64) -> Duration {
    Duration::from_millis(1500 - wall_ms % 1000)
}

impl Following {
    /// Follows a cluster, until it has ended or the process ends.
    ///
    /// # Errors
    /// The system starts no further thread.
    pub fn start(place: Place) -> std::io::Result<Following> {
        let following = Following(Arc::new(Inner {
            place: place.clone(),
            cluster: Mutex::default(),
            past: Mutex::default(),
            seconds: broadcast::Sender::new(BEHIND),
            latest: Mutex::default(),
        }));
        let statuses = following.clone();
        std::thread::Builder::new().name("status".into()).spawn(move || statuses.ask(&place))?;
        let seconds = following.clone();
        std::thread::Builder::new().name("seconds".into()).spawn(move || {
            while !seconds.has_ended() {
                seconds.tick();
                // Seconds in which the machine slept are a gap: they are not made up for.
                std::thread::sleep(to_next(wall_ms()));
            }
        })?;
        Ok(following)
    }

    /// What people call the cluster.
    pub fn name(&self) -> &str {
        &self.0.place.name
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// The APIs of the nodes that answered when the last status was made.
    pub(crate) fn known(&self) -> Vec<ApiAddress> {
        let cluster = self.cluster();
        let nodes = cluster.status().map(|status| status.nodes.iter()).into_iter().flatten();
        let alive = nodes.filter(|node| node.alive).filter_map(|node| node.api.parse().ok());
        alive.map(|address| self.0.place.api.of_other(address)).collect()
    }

    /// Takes a status that an action has received, beside those of each second.
    pub(crate) fn learn(&self, status: StatusView) {
        self.cluster().learn_status(Ok(status), Instant::now());
    }

    /// Something that was done by the console is an event.
    pub(crate) fn note(&self, level: &str, message: String, action: &Action) {
        let about = (action.volume().map(str::to_owned), action.node().map(str::to_owned));
        self.cluster().add_done(wall_ms(), level, message, about);
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
        let mut cluster = self.cluster();
        let now = cluster.tick(Instant::now(), wall_ms());
        self.past().add(&now, &cluster);
        drop(cluster);
        self.publish(now);
    }

    /// Sends a second to all who watch, unless the cluster has ended.
    fn publish(&self, now: Now) {
        let json = serde_json::to_string(&now).expect("it is numbers and texts").into();
        let second = Second { now: Arc::new(now), json };
        let mut latest = lock(&self.0.latest);
        if latest.as_ref().is_some_and(|last| last.now.overall == Overall::Ended) {
            return;
        }
        *latest = Some(second.clone());
        // An error says that no one watches.
        let _ = self.0.seconds.send(second);
    }

    /// The cluster was stopped, as was intended: one more second says so, and `why` (a sentence for people), and no other one follows it.
    /// What the cluster did is kept.
    pub fn end(&self, why: &str) {
        if self.has_ended() {
            return;
        }
        // It is another second than the last one, so that each page takes it.
        let next = self.latest().map_or(0, |last| last.now.at + 1);
        let now = self.cluster().end(next.max(wall_ms() / 1000), why);
        self.publish(now);
    }

    /// Whether the cluster has ended.
    pub fn has_ended(&self) -> bool {
        self.latest().is_some_and(|last| last.now.overall == Overall::Ended)
    }

    /// Asks for the status again and again: of the node that has answered last, or of another one.
    fn ask(&self, place: &Place) {
        let mut known: Vec<ApiAddress> = vec![place.api.clone()];
        let mut followers: BTreeMap<String, (ApiAddress, Follower)> = BTreeMap::new();
        // Of the host of a node its own identity is an access to the other nodes too.
        let access = place.access.clone().or_else(|| place.api.own_access());
        while !self.has_ended() {
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
pub(crate) fn status(api: &ApiAddress, access: Option<&Path>) -> Result<StatusView, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_has_ended_says_so_in_one_more_second_and_is_asked_no_more() {
        // No node answers there: without an end it would be unknown for ever.
        let api = "127.0.0.1:9".parse().unwrap();
        let following = Following::start(Place { name: "lab".into(), api, access: None }).unwrap();
        let begun = Instant::now();
        while following.latest().is_none() {
            assert!(begun.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(10));
        }
        let (_, mut seconds) = following.watch();
        following.end("it was stopped");
        following.tick();
        following.end("again");
        assert!(following.has_ended());
        let mut received = Vec::new();
        while let Ok(second) = seconds.try_recv() {
            received.push(second.now);
        }
        let (last, before) = received.split_last().unwrap();
        assert!((last.overall, last.why.as_slice()) == (Overall::Ended, &["it was stopped".into()]));
        assert!(last.nodes.is_empty() && !last.known && last.events[0].message == "it was stopped");
        assert!(before.iter().all(|second| second.at < last.at && second.overall == Overall::Unknown));
        // Its threads end: only the test holds it then.
        while Arc::strong_count(&following.0) > 1 {
            assert!(begun.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn each_second_is_seen_once_whenever_the_thread_is_woken() {
        let mut wall = 1_700_000_000_999;
        for n in 0..10_000u64 {
            // Up to 5 ms late, and the clock is slewed by a two-thousandth.
            let woken = wall + to_next(wall).as_millis() as u64 + n * 7 % 6 - n % 2;
            assert_eq!(woken / 1000, wall / 1000 + 1);
            wall = woken;
        }
    }
}
