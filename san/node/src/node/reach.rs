//! Nodes ask each other, through the configuration store, whether they run and which nodes they reach (rule S1).
//!
//! ```text
//!  ask/<node that asks>                   which nodes are asked, about which nodes, and a number
//!  answer/<node that asks>/<node>         the number, and the nodes that this one reaches
//! ```
//!
//! A volume asks when it receives nothing from half of a group's members or more. All volumes of a node share one question, and
//! one answer. A node answers about no others than those that it was asked about: so an answer counts for a volume only if its question was
//! about all nodes that the volume asks about. Otherwise two nodes that reach each other would seem not to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use loadline_base::figures::listed;
use loadline_san_core::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::{Node, UNNOTICED};
use crate::config::catalog::change;
use crate::config::{Change, ConfigError, ConfigStore};
use crate::event_loop::command::LoopCommand;

/// How often a node polls the configuration store for questions and answers.
const POLL: Duration = Duration::from_millis(100);
/// How often it polls while it waits for answers.
const POLL_ANSWERS: Duration = Duration::from_millis(40);
/// A node that does not accept a connection within this time counts as not reached.
const REACHES: Duration = Duration::from_millis(250);
/// The same, for the node that asks.
const REACHES_ASKER: Duration = Duration::from_millis(100);
/// How long an answer of a node counts.
const FRESH: Duration = Duration::from_millis(300);
/// Volumes that ask for a known answer within this time receive it together: the answer to the question of one goes to all.
const TOGETHER: Duration = Duration::from_millis(20);
/// If no question was asked about a node for this long, its messages have arrived again meanwhile.
const EPISODE: Duration = Duration::from_secs(30);
/// A question that no volume repeats is given up after this time, or after the time that a volume waits before it repeats it.
const LIMIT: Duration = Duration::from_secs(6);

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReachabilityQuery {
    /// The life of the process that asks.
    incarnation: u64,
    /// Its questions, counted.
    number: u64,
    /// The nodes that are asked.
    of: BTreeSet<u32>,
    /// The nodes that they are asked about.
    about: BTreeSet<u32>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reaches {
    /// The life of the process that has asked.
    incarnation: u64,
    /// The number of its question.
    number: u64,
    /// The nodes that accept connections of the answering node, among the asked nodes and the asking one.
    nodes: BTreeSet<u32>,
}

/// The questions of this node to others.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Nodes that volumes have requested to ask, and that were not asked yet, or not about all that is to be known; and how long each has to
    /// answer.
    wanted: BTreeMap<u32, Duration>,
    /// The nodes that volumes ask about, and when they last did.
    about: BTreeMap<u32, Instant>,
    /// Whether a task is asking.
    runs: bool,
    /// The number of the last question.
    number: u64,
    /// Nodes that have not answered.
    pending: BTreeMap<u32, Pending>,
    /// The last answer of each node, when it arrived, and about which nodes it is.
    answers: BTreeMap<u32, (Instant, BTreeSet<u32>, BTreeSet<u32>)>,
    /// When each node answered last, or did not, and what it answered: for the log.
    logged: BTreeMap<u32, (Instant, Option<BTreeSet<u32>>)>,
    /// Nodes whose last answer volumes are to receive in a moment.
    known: BTreeSet<u32>,
}

/// A node that was asked, and has not answered.
#[derive(Debug, Clone)]
struct Pending {
    /// About which nodes, at least.
    about: BTreeSet<u32>,
    /// The first question that it was asked.
    first: u64,
    /// When volumes wanted it last.
    since: Instant,
    /// When the question was in the store.
    asked: Option<Instant>,
    /// How long it has to answer, from then on.
    within: Duration,
}

impl Asking {
    /// A volume requests to ask a node about these, which has this long to answer. Returns whether the node's last answer is to be reported
    /// soon, and no other report is under way.
    fn want(&mut self, node: u32, about: &BTreeSet<u32>, within: Duration, now: Instant) -> bool {
        self.about.extend(about.iter().map(|node| (*node, now)));
        let is_enough = |(when, _, of): &(Instant, BTreeSet<u32>, BTreeSet<u32>)| {
            now.duration_since(*when) < FRESH && of.is_superset(about)
        };
        if self.answers.get(&node).is_some_and(is_enough) {
            self.known.insert(node);
            return self.known.len() == 1;
        }
        match self.pending.get_mut(&node) {
            Some(pending) if pending.about.is_superset(about) => {
                (pending.within, pending.since) = (pending.within.max(within), now);
            }
            _ => {
                let wanted = self.wanted.entry(node).or_default();
                *wanted = (*wanted).max(within);
            }
        }
        false
    }

    /// Gives up questions that no volume needs any more. A volume that still needs one requests it again after twice the time that
    /// the node has to answer, also if the store was away.
    fn give_up(&mut self, now: Instant) {
        let lasts = |pending: &Pending| LIMIT.max(3 * pending.within);
        self.pending.retain(|_, pending| now.duration_since(pending.since) < lasts(pending));
        self.about.retain(|_, since| now.duration_since(*since) < LIMIT);
    }

    /// The next question, if there is one: about all that any volume asks about.
    fn question(&mut self, incarnation: u64, now: Instant) -> Option<ReachabilityQuery> {
        let wanted = std::mem::take(&mut self.wanted);
        if wanted.is_empty() {
            return None;
        }
        self.number += 1;
        let pending = self.pending.iter().flat_map(|(node, pending)| pending.about.iter().chain([node]));
        let about: BTreeSet<u32> = self.about.keys().chain(pending).chain(wanted.keys()).copied().collect();
        for (node, within) in wanted {
            let within = self.pending.get(&node).map_or(within, |pending| pending.within.max(within));
            let pending =
                Pending { first: self.number, since: now, asked: None, within, about: about.clone() };
            self.pending.insert(node, pending);
        }
        let of = self.pending.keys().copied().collect();
        Some(ReachabilityQuery { incarnation, number: self.number, of, about })
    }

    /// An answer has arrived to a question of this number, or a node had time to answer and did not. Whether that is news for volumes: not if the
    /// node is asked about more meanwhile.
    fn answered(&mut self, node: u32, first: u64, reaches: Option<&BTreeSet<u32>>) -> bool {
        if self.wanted.contains_key(&node)
            || self.pending.get(&node).is_none_or(|pending| pending.first != first)
        {
            return false;
        }
        let pending = self.pending.remove(&node).expect("it was looked up");
        if let Some(reaches) = reaches {
            self.answers.insert(node, (Instant::now(), reaches.clone(), pending.about));
        }
        true
    }
}

impl Node {
    /// Asks these nodes for a volume. The loops receive each answer.
    pub(super) fn ask_whether_they_run(&self, nodes: &[NodeId], within: Duration) {
        let mut state = self.state();
        let (mut reports, now) = (false, Instant::now());
        let about: BTreeSet<u32> =
            nodes.iter().map(|node| node.0).filter(|node| *node != self.id()).collect();
        for node in &about {
            reports |= state.asking.want(*node, &about, within, now);
        }
        let begins = !state.asking.wanted.is_empty() && !std::mem::replace(&mut state.asking.runs, true);
        drop(state);
        if reports {
            let this = self.clone();
            tokio::spawn(async move { this.report_what_is_known().await });
        }
        if begins {
            let this = self.clone();
            tokio::spawn(async move { this.ask().await });
        }
    }

    /// The loops receive answers that came a moment ago, for volumes that have asked since.
    async fn report_what_is_known(&self) {
        tokio::time::sleep(TOGETHER).await;
        let known: Vec<(u32, BTreeSet<u32>)> = {
            let asking = &mut self.state().asking;
            let known = std::mem::take(&mut asking.known).into_iter();
            known.filter_map(|node| Some((node, asking.answers.get(&node)?.1.clone()))).collect()
        };
        known.into_iter().for_each(|(node, reaches)| self.give_answer(node, Some(&reaches)));
    }

    /// The loops receive an answer.
    fn give_answer(&self, node: u32, reaches: Option<&BTreeSet<u32>>) {
        let reaches: Option<BTreeSet<NodeId>> =
            reaches.map(|reaches| reaches.iter().map(|node| NodeId(*node)).collect());
        for orders in &self.0.loops {
            orders.give(LoopCommand::Reaches(NodeId(node), reaches.clone()));
        }
    }

    /// Logs what a node has answered, or that it has not: once, until it answers something else or was not asked for a while. One
    /// that reaches this one is silent for a reason that is logged elsewhere.
    fn log_answer(&self, node: u32, reaches: Option<&BTreeSet<u32>>) {
        let now = (Instant::now(), reaches.cloned());
        let before = self.state().asking.logged.insert(node, now);
        let is_known =
            before.is_some_and(|(when, logged)| when.elapsed() < EPISODE && logged.as_ref() == reaches);
        if is_known || reaches.is_some_and(|reaches| reaches.contains(&self.id())) {
            return;
        }
        let name = |node: &u32| {
            let known = self.state().catalog.nodes.get(node).map(|(node, _)| node.name.clone());
            known.unwrap_or_else(|| format!("node {node}"))
        };
        let why = match reaches {
            None => "and the node does not answer through the configuration store either".into(),
            Some(reaches) if reaches.is_empty() => {
                "but the node runs: through the configuration store it reports that it reaches neither this node nor the other \
                 nodes that this node asked about".into()
            }
            Some(reaches) => {
                let reached = listed(&reaches.iter().map(name).collect::<Vec<_>>(), 8);
                format!("but the node runs: through the configuration store it reports that it reaches {reached}, and not this \
                 node")
            }
        };
        tracing::warn!(node, "this node receives nothing from {}, {why}", name(&node));
    }

    /// Asks until all have answered, or had time to.
    async fn ask(&self) {
        loop {
            let (question, pending) = {
                let asking = &mut self.state().asking;
                let now = Instant::now();
                asking.give_up(now);
                if asking.wanted.is_empty() && asking.pending.is_empty() {
                    asking.runs = false;
                    return;
                }
                (asking.question(self.0.me.incarnation.0, now), asking.pending.clone())
            };
            let (me, incarnation) = (self.id(), self.0.me.incarnation.0);
            let asks: BTreeMap<u32, Duration> = match &question {
                Some(_) => pending.iter().map(|(node, pending)| (*node, pending.within)).collect(),
                None => BTreeMap::new(),
            };
            let answered = self.config().call(move |store| {
                if let Some(question) = question {
                    put(store, format!("ask/{me}"), &question)?;
                }
                let mut answered = Vec::new();
                for (node, Pending { first, .. }) in pending {
                    let Some(stored) = store.get(&format!("answer/{me}/{node}"))? else { continue };
                    let Ok(answer) = serde_json::from_slice::<Reaches>(&stored.value) else { continue };
                    if answer.incarnation == incarnation && answer.number >= first {
                        answered.push((node, first, answer.nodes));
                    }
                }
                Ok(answered)
            });
            let began = Instant::now();
            let answered = answered.await;
            // A question that was not written, or only perhaps, is asked anew, under another number.
            let Ok(answered) = answered else {
                self.state().asking.wanted.extend(asks);
                tokio::time::sleep(POLL_ANSWERS).await;
                continue;
            };
            for (node, first, reaches) in answered {
                let is_news = self.state().asking.answered(node, first, Some(&reaches));
                if is_news {
                    self.log_answer(node, Some(&reaches));
                    self.give_answer(node, Some(&reaches));
                }
            }
            let late: Vec<(u32, u64)> = {
                let asking = &mut self.state().asking;
                for node in asks.keys() {
                    if let Some(pending) = asking.pending.get_mut(node) {
                        pending.asked.get_or_insert_with(Instant::now);
                    }
                }
                // The store was read after their time was over.
                let is_late = |pending: &Pending| {
                    pending
                        .asked
                        .is_some_and(|asked| began.saturating_duration_since(asked) >= pending.within)
                };
                let late = asking.pending.iter().filter(|(_, pending)| is_late(pending));
                late.map(|(node, pending)| (*node, pending.first)).collect()
            };
            for (node, first) in late {
                let is_news = self.state().asking.answered(node, first, None);
                if is_news {
                    self.log_answer(node, None);
                    self.give_answer(node, None);
                }
            }
            tokio::time::sleep(POLL_ANSWERS).await;
        }
    }

    /// Answers the questions of other nodes. It runs until the node ends.
    pub(super) async fn answer_for_ever(&self) {
        let mut answered: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let (mut last, mut changes) = (None, self.config().changes());
        loop {
            let me = self.id();
            let queries = self.config().call(move |store| {
                let revision = store.revision()?;
                let listed = if last == Some(revision) { Vec::new() } else { store.list("ask/")?.1 };
                Ok((revision, listed))
            });
            let (revision, queries) = match queries.await {
                Ok((revision, queries)) => (Some(revision), queries),
                Err(_) => (None, Vec::new()),
            };
            last = revision;
            for (key, stored) in queries {
                let by = key.strip_prefix("ask/").and_then(|id| id.parse::<u32>().ok());
                let (Some(by), Ok(ask)) = (by, serde_json::from_slice::<ReachabilityQuery>(&stored.value))
                else {
                    continue;
                };
                let this_one = (ask.incarnation, ask.number);
                if by == me || !ask.of.contains(&me) || answered.insert(by, this_one) == Some(this_one) {
                    continue;
                }
                let this = self.clone();
                tokio::spawn(async move { this.answer(by, ask).await });
            }
            changes.within(if last.is_some() { UNNOTICED } else { POLL }).await;
        }
    }

    /// Tries to connect to the nodes that it was asked about and the asking one, and answers which of them it reaches. Other nodes are not tried,
    /// because one that is not reached would delay the answer.
    async fn answer(&self, by: u32, ask: ReachabilityQuery) {
        let nodes = self.state().catalog.nodes.clone();
        let others =
            nodes.into_iter().filter(|(id, _)| *id != self.id() && (ask.about.contains(id) || *id == by));
        let attempts: Vec<_> = others
            .map(|(id, (node, _))| {
                let this = self.clone();
                let connect = async move { this.connect_to(node.peer).await };
                // Usually the asking node is the one that is not reached.
                let limit = if id == by { REACHES_ASKER } else { REACHES };
                (id, tokio::spawn(tokio::time::timeout(limit, connect)))
            })
            .collect();
        let mut reached = BTreeSet::new();
        for (id, attempt) in attempts {
            if matches!(attempt.await, Ok(Ok(Ok(_)))) {
                reached.insert(id);
            }
        }
        let ReachabilityQuery { incarnation, number, .. } = ask;
        let (me, answer) = (self.id(), Reaches { incarnation, number, nodes: reached });
        // If no answer is stored, the asking node continues as if this one did not run. The store may only be busy, so it is tried
        // again for as long as a node may have to answer.
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            let answer = answer.clone();
            let stored = self.config().call(move |store| put(store, format!("answer/{by}/{me}"), &answer));
            if stored.await.is_ok() {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Puts this under a key that only this node writes.
fn put<T: Serialize>(store: &mut dyn ConfigStore, key: String, value: &T) -> Result<(), ConfigError> {
    for _ in 0..4 {
        let version = store.get(&key)?.map(|stored| stored.version);
        if store.commit(&[change(key.clone(), version, value)])? {
            return Ok(());
        }
    }
    Err(ConfigError::Contended)
}

/// The changes that remove what a node has asked and answered.
pub(super) fn forget(store: &mut dyn ConfigStore, node: u32) -> Result<Vec<Change>, ConfigError> {
    let mut listed = store.list("ask/")?.1;
    listed.extend(store.list("answer/")?.1);
    let about = |key: &str| key.split('/').skip(1).any(|part| part.parse() == Ok(node));
    let gone = listed.into_iter().filter(|(key, _)| about(key));
    Ok(gone.map(|(key, stored)| Change { key, expected: Some(stored.version), value: None }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    #[test]
    fn volumes_that_ask_for_what_is_known_are_one_report() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let about = BTreeSet::from([2, 3]);
        asking.answers.insert(2, (now, BTreeSet::new(), about.clone()));
        asking.answers.insert(3, (now, BTreeSet::new(), about.clone()));
        let reports =
            (0..1000).flat_map(|_| [2, 3]).filter(|node| asking.want(*node, &about, WITHIN, now)).count();
        assert_eq!(reports, 1);
        assert!(asking.wanted.is_empty(), "no node is asked for that");
        assert_eq!(std::mem::take(&mut asking.known), [2, 3].into());
        assert!(asking.want(2, &about, WITHIN, now), "the next one is a new report");
        assert!(!asking.want(2, &about, WITHIN, now + FRESH), "what is old is asked anew");
        assert!(asking.wanted.contains_key(&2));
    }

    #[test]
    fn a_question_is_not_given_up_before_its_volume_asks_again() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let about = BTreeSet::from([2]);
        let pending = Pending { first: 1, since: now, asked: None, within: WITHIN, about: about.clone() };
        asking.pending.insert(2, pending);
        let again = now + 2 * WITHIN;
        asking.give_up(again);
        assert!(asking.pending.contains_key(&2), "the node has longer to answer than questions last mostly");
        asking.want(2, &about, WITHIN, again);
        asking.give_up(again + 2 * WITHIN);
        assert!(asking.pending.contains_key(&2), "a volume wanted it again, since the store was away");
        asking.give_up(again + 3 * WITHIN);
        assert!(asking.pending.is_empty(), "no volume wants it any more");
    }

    #[test]
    fn an_answer_counts_only_for_what_it_was_asked_about() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let (one, two) = (BTreeSet::from([2]), BTreeSet::from([2, 3]));
        // A volume with one copy asks about node 2 alone, and another one about 2 and 3 before the answer.
        asking.want(2, &one, WITHIN, now);
        let first = asking.question(1, now).unwrap();
        assert_eq!((first.of, first.about), (one.clone(), one.clone()));
        two.iter().for_each(|node| _ = asking.want(*node, &two, WITHIN, now));
        assert!(!asking.answered(2, first.number, Some(&BTreeSet::new())), "it says nothing of 3");
        let second = asking.question(1, now).unwrap();
        assert_eq!((&second.of, &second.about), (&two, &two));
        assert!(!asking.answered(2, first.number, Some(&BTreeSet::new())), "the former question's");
        assert!(asking.answered(2, second.number, Some(&BTreeSet::from([3]))));
        // What is known of 2 and 3 is enough for the other volume, and not for one that asks about 4 too.
        assert!(asking.want(2, &one, WITHIN, now) && asking.wanted.is_empty());
        asking.want(2, &BTreeSet::from([2, 4]), WITHIN, now);
        let third = asking.question(1, now).unwrap();
        assert_eq!(third.about, BTreeSet::from([2, 3, 4]), "3 is asked about still");
    }
}
