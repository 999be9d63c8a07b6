//! Why a cluster is not better than it is: what is wrong with its parts, each thing said once with the parts of which it is true.

use std::cmp::Reverse;

use loadline_base::figures::listed;

use crate::view::{Now, Overall};

/// Sentences of a state, at most.
const MOST: usize = 8;
/// Names in a sentence, at most.
const NAMED: usize = 3;
/// Characters of a short reason, at most.
const SHORT: usize = 80;
/// A reason that ends at a colon has at least so many characters: what is before the first colon may say nothing.
const LEAST: usize = 24;

/// What something is wrong with. Those that are the cause of others come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Status,
    Node,
    Store,
    Device,
    Volume,
}

#[derive(Debug)]
struct Cause {
    part: Part,
    overall: Overall,
    names: Vec<String>,
    /// What is said of one, and of several.
    says: [String; 2],
}

/// What is wrong in a second.
#[derive(Debug, Default)]
pub(super) struct Causes(Vec<Cause>);

impl Causes {
    /// The same is said of one part, and of several: it follows the name.
    pub(super) fn add(&mut self, part: Part, overall: Overall, name: &str, says: &str) {
        self.add_both(part, overall, name, [says, says]);
    }

    /// What is said of one part, and of several that share it: it follows the names.
    pub(super) fn add_both(&mut self, part: Part, overall: Overall, name: &str, says: [&str; 2]) {
        let is_same = |of: &&mut Cause| of.part == part && of.overall == overall && of.says[0] == says[0];
        match self.0.iter_mut().find(is_same) {
            Some(of) => of.names.push(name.to_owned()),
            None => {
                self.0.push(Cause { part, overall, names: vec![name.into()], says: says.map(Into::into) });
            }
        }
    }

    /// How the cluster is as a whole, and why: into what a page gets. `is_now` says that a status of this moment is there: if it is not, how
    /// volumes and devices are is not known.
    pub(super) fn show(mut self, is_now: bool, view: &mut Now) {
        if !is_now {
            self.0.retain(|of| of.part < Part::Device);
        }
        let worst = self.0.iter().map(|of| of.overall).max().unwrap_or(Overall::Healthy);
        view.overall = if is_now { worst } else { Overall::Unknown };
        // Of the parts of one kind, the worst first.
        self.0.sort_by_key(|of| (of.part, Reverse(of.overall)));
        view.why_total = self.0.len();
        view.why = self.0.iter().take(MOST).map(Cause::sentence).collect();
    }
}

impl Cause {
    fn sentence(&self) -> String {
        let [one, several] = &self.says;
        let kind = match self.part {
            Part::Status => return one.clone(),
            Part::Node => "node",
            Part::Store => "member",
            Part::Device => "device",
            Part::Volume => "volume",
        };
        match self.names.as_slice() {
            [name] => format!("{kind} {name}{one}"),
            names => format!("{} {kind}s ({}){several}", names.len(), listed(names, NAMED)),
        }
    }
}

/// A text without what is in brackets in it, and the space before them.
fn without_brackets(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once(" (")
        && let Some((_, after)) = after.split_once(')')
    {
        kept.push_str(before);
        rest = after;
    }
    kept + rest
}

/// The first part of a reason that is a sentence, or several: for a list or a row of a table, beside which the whole is shown.
pub(super) fn short(reason: &str) -> String {
    let reason = &without_brackets(reason);
    let end = ["; ", ". "].iter().filter_map(|of| reason.find(of)).min().unwrap_or(reason.len());
    let first = &reason[..end];
    let colon = first.match_indices(": ").map(|(at, _)| at).find(|at| *at >= LEAST);
    let first = &first[..colon.unwrap_or(end)];
    if first.chars().count() <= SHORT {
        return first.trim_end_matches('.').to_owned();
    }
    let cut: String = first.chars().take(SHORT).collect();
    let words = cut.rfind(' ').map_or(cut.as_str(), |at| &cut[..at]);
    format!("{}…", words.trim_end_matches([',', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_reason_is_the_first_clause_and_no_longer_than_a_row() {
        let whole = "every write of the volume is stored only at node-3 (does not answer) and node-4 (does not answer): start one of them again, or make one of \
                     their devices usable. To continue with a copy that lacks writes, run 'loadline volume recover'";
        assert_eq!(short(whole), "every write of the volume is stored only at node-3 and node-4");
        assert_eq!(
            short("requests wait: the store does not answer; more"),
            "requests wait: the store does not answer"
        );
        assert_eq!(short("not in sync"), "not in sync");
        assert_eq!(short("left open (here"), "left open (here");
        let long = short(&"word ".repeat(40));
        assert!(long.chars().count() <= SHORT + 1 && long.ends_with("word…"), "{long}");
    }
}
