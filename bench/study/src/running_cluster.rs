//! A cluster that ran before the run (`[target] san = { api = "…" }`): what a study must say of it. The run makes volumes of its own
//! there and removes them at the end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use loadline_fleet::{NodeSpec, ssh_shell};
use loadline_target::{ApiAddress, Fault, NodeCommands};

use crate::error::StudyError;
use crate::file::{SanSection, Study, TimedFault};
use crate::fleet::ResolvedFleet;

/// The longest name of a volume, characters.
const LONGEST_VOLUME: usize = 64;

impl Study {
    /// What the study says of a cluster that ran before; `None` if it measures none.
    pub fn running_cluster(&self) -> Option<&SanSection> {
        self.target.san.as_ref().filter(|san| san.api.is_some())
    }

    /// Where the API of the cluster is that ran before, and the file that proves the access to it; `None` without one. `study_folder` is the
    /// folder that paths of the study are relative to.
    pub fn cluster_api(&self, study_folder: &Path) -> Option<(ApiAddress, Option<PathBuf>)> {
        let san = self.running_cluster()?;
        Some((api(san).ok()?, access(san, study_folder)))
    }

    /// Whether `cut` cuts the host of a node off, with all that runs there: a command does it.
    pub(crate) fn cuts_hosts(&self) -> bool {
        let has_cut =
            |san: &SanSection| san.commands.contains_key("cut") || san.commands_here.contains_key("cut");
        self.running_cluster().is_some_and(has_cut)
    }

    /// The commands by which nodes of the running cluster are harmed; none without one.
    pub fn node_commands(&self) -> NodeCommands {
        let Some(san) = self.running_cluster() else { return NodeCommands::default() };
        let shell = |node: &NodeSpec| Some((node.name.clone(), ssh_shell(node)?));
        NodeCommands {
            on_host: san.commands.clone(),
            here: san.commands_here.clone(),
            hosts: self.fleet.node.iter().filter_map(shell).collect(),
            limit: san.command_limit,
        }
    }

    /// Every fault that the study causes.
    pub(crate) fn all_faults(&self) -> impl Iterator<Item = Fault> {
        let timed = self.faults.iter().map(TimedFault::fault);
        timed.chain(self.condition.iter().flat_map(|condition| condition.actions.iter().cloned()))
    }
}

/// What the names of a run's volumes begin with, in a cluster that ran before. The last part of a run's id is random.
pub(crate) fn volume_prefix(study: &Study, run_id: &str) -> String {
    match study.running_cluster() {
        Some(_) => format!("run-{}-", run_id.rsplit('-').next().unwrap_or(run_id)),
        None => String::new(),
    }
}

/// What a study must say, and what it cannot, of a cluster that ran before.
pub(crate) fn check(study: &Study, fleet: &ResolvedFleet) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    for policy in &study.policy {
        let Some(san) = &policy.san else { continue };
        if san.node.is_some() {
            return usage(format!(
                "[[policy]] {}: the nodes are those of the one cluster that all policies share: write node in [target] san",
                policy.name
            ));
        }
        if san.api.is_some() || san.access_file.is_some() || san.has_commands() {
            return usage(format!(
                "[[policy]] {}: api, access_file and commands are those of the one cluster that all policies share: write them in \
                 [target] san",
                policy.name
            ));
        }
    }
    let Some(san) = study.running_cluster() else {
        return match &study.target.san {
            Some(san) if san.access_file.is_some() || san.has_commands() => usage(
                "[target] san: access_file and commands are for a cluster that runs already: name the API of one of its nodes, api = \
                 \"https://HOST:7400\""
                    .into(),
            ),
            _ => Ok(()),
        };
    };
    if !study.policy.is_empty() && *san != san.only_where() {
        return usage(
            "[target] san with [[policy]] tables: leave api, access_file, access and the commands there, and say in each policy how \
             its volumes are (san = { copies = 2 })"
                .into(),
        );
    }
    api(san)?;
    if san.node.is_some() {
        return usage(
            "[target] san with api: the nodes of a cluster that runs already are as they are, so leave node out. To model a device \
             there, add it with 'loadline device add --model'"
                .into(),
        );
    }
    if !fleet.has_known_workers() {
        return usage(
            "[target] san with api: the run makes volumes at the nodes of its workers, and workers that join do not say beforehand \
             where they are. Name the hosts, [[fleet.node]] with ssh"
                .into(),
        );
    }
    let longest = |text: &str| text.chars().count();
    let policy = study.policy.iter().map(|policy| longest(policy.name.as_str()) + 1).max().unwrap_or(0);
    let node = fleet.nodes.iter().map(|node| longest(node)).max().unwrap_or(0);
    let numbers = [study.fleet.workers_per_node, study.fleet.disks_per_worker];
    let numbers: usize = numbers.iter().map(|count| count.saturating_sub(1).to_string().len() + 1).sum();
    let name = longest("run-01234567-") + policy + node + numbers;
    if name > LONGEST_VOLUME {
        return usage(format!(
            "the names of the run's volumes, which are made of those of policies and nodes, would have {name} characters, and \
             {LONGEST_VOLUME} are possible: give the policies shorter names"
        ));
    }
    let mut seen = BTreeSet::new();
    for target in study.targets() {
        let policy = target.name.map_or(String::new(), |name| format!("{name}-"));
        if let Some(twice) = fleet.nodes.iter().find(|node| !seen.insert(format!("{policy}{node}"))) {
            return usage(format!(
                "volumes of two policies would have one name ({policy}{twice}): give the policies other names"
            ));
        }
    }
    if let Some(node) = study.all_faults().map(|fault| fault.node).find(|node| !fleet.nodes.contains(node)) {
        return usage(format!(
            "faults are caused at nodes of the fleet, and {node} is none: it has {}",
            fleet.nodes.join(", ")
        ));
    }
    let faults: Vec<Fault> = study.all_faults().collect();
    study.node_commands().check(faults.iter()).map_err(|error| StudyError {
        message: format!("[target] san: {}", error.message),
        ..StudyError::from(error)
    })
}

/// The address of the API.
pub(crate) fn api(san: &SanSection) -> Result<ApiAddress, StudyError> {
    let text = san.api.as_deref().unwrap_or_default();
    text.parse()
        .map_err(|why| StudyError::usage(format!("[target] san: api = {text:?} is no address: {why}")))
}

/// The file that proves the access.
pub(crate) fn access(san: &SanSection, study_folder: &Path) -> Option<PathBuf> {
    san.access_file.as_ref().map(|file| study_folder.join(file))
}

impl SanSection {
    fn has_commands(&self) -> bool {
        !self.commands.is_empty() || !self.commands_here.is_empty() || self.command_limit.is_some()
    }

    /// The same without what it says of volumes.
    fn only_where(&self) -> SanSection {
        SanSection { copies: None, least: None, stripes: None, log: None, limit: None, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::read::parse;

    fn refusal(text: &str) -> String {
        let study = parse("s.toml", &format!("name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{text}\n"));
        let planned = study.and_then(|study| Plan::of(&study).map(drop));
        planned.err().map(|error| error.message).unwrap_or_default()
    }

    const FLEET: &str = "[fleet]\ndisk_size = \"64MiB\"\n[[fleet.node]]\nname = \"a\"\nssh = \"a\"\n[[fleet.node]]\nname = \"b\"\nssh = \"b\"\n";

    #[test]
    fn a_study_of_a_running_cluster_names_hosts_and_the_commands_that_its_faults_need() {
        let on = |san: &str, more: &str| refusal(&format!("{more}\n[target]\nsan = {{ {san} }}\n{FLEET}"));
        let api = "api = \"https://a:7400\"";
        assert_eq!(on(api, ""), "");
        assert_eq!(on(&format!("{api}, access_file = \"x.pem\", copies = 2"), ""), "");
        let kill = "faults = [{ at = \"1s\", do = \"kill\", node = \"a\" }]";
        let commands = "commands = { kill = \"x\", return = \"y\" }";
        assert_eq!(on(&format!("{api}, {commands}"), kill), "");
        for (san, more, part) in [
            ("api = \"x\"", "", "is no address"),
            ("access_file = \"x\"", "", "for a cluster that runs already"),
            (api, kill, "add kill"),
            (&format!("{api}, commands = {{ kill = \"x\" }}"), kill, "add return"),
            (&format!("{api}, {commands}"), &kill.replace("\"a\"", "\"c\""), "c is none"),
            (&format!("{api}, copies = 3"), "", "there are 2 nodes"),
            (&format!("{api}, node = {{ model = \"intel-s4500\" }}"), "", "leave node out"),
        ] {
            let found = on(san, more);
            assert!(found.contains(part), "{san} {more}\n{found}");
        }
        let joined = format!("[target]\nsan = {{ {api} }}\n[fleet]\njoin = 2\ndisk_size = \"64MiB\"");
        assert!(refusal(&joined).contains("workers that join"), "{}", refusal(&joined));
    }

    #[test]
    fn policies_of_a_running_cluster_say_how_volumes_are_and_the_target_where_the_cluster_is() {
        let policies = |target: &str, one: &str| {
            refusal(&format!(
                "[target]\nsan = {{ {target} }}\n[[policy]]\nname = \"one\"\nsan = {{ {one} }}\n[[policy]]\nname = \"two\"\nsan = {{}}\n{FLEET}"
            ))
        };
        let api = "api = \"https://a:7400\"";
        assert_eq!(policies(api, "copies = 1"), "");
        assert!(policies(&format!("{api}, copies = 1"), "").contains("say in each policy"));
        assert!(policies("", api).contains("[target] san"));
    }
}
