//! Which runs of a load belong in one series: those that were measured in one way, on one system.

use std::collections::BTreeMap;

use serde_json::json;

use crate::compare::configuration::{Constant, is_constant};
use crate::compare::record::RunRecord;

impl RunRecord {
    /// All that [`Constant::System`] asks two runs to have in common, and what makes a load the load that it is, as one text: the keys of
    /// the study, what the hosts are without their names, the number of disks, and `load` (the keys of a load, or of a search). Runs whose
    /// texts are equal were measured alike.
    ///
    /// It is for series of many runs. [`unlike`](super::configuration::unlike) says of two runs what differs.
    pub fn likeness(&self, load: &BTreeMap<String, String>) -> String {
        let constant = |what: &str| is_constant(what, Constant::System);
        let study: BTreeMap<&String, &String> =
            self.configuration.iter().filter(|(key, _)| constant(key)).collect();
        let facts = |host: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let named = host.iter().map(|(fact, value)| (format!("host: {fact}"), value.clone()));
            named.filter(|(fact, _)| constant(fact)).collect()
        };
        let mut hosts: Vec<BTreeMap<String, String>> = self.hosts.values().map(facts).collect();
        hosts.sort();
        json!({ "study": study, "hosts": hosts, "disks": self.disks, "load": load }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::configuration::unlike;
    use loadline_study::when::When;

    fn keys(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn record(host: &str) -> RunRecord {
        RunRecord {
            place: String::new(),
            run_id: host.into(),
            study: "s".into(),
            loadline: "1".into(),
            begun: When::now(),
            complete: 1,
            planned: 1,
            missing: Vec::new(),
            damaged: 0,
            versions: Default::default(),
            disks: 1,
            steal: None,
            cpu_pressure: None,
            configuration: keys(&[("name", "s"), ("phases.measure", "1s"), ("target.folder", "/x")]),
            fleet: BTreeMap::new(),
            hosts: [(host.to_string(), keys(&[("CPU", "c"), ("kernel", "6"), ("disks: kind", "file")]))]
                .into(),
            engines: BTreeMap::new(),
            planned_loads: Default::default(),
            searches: false,
            loads: Vec::new(),
        }
    }

    #[test]
    fn runs_are_alike_if_and_only_if_nothing_differs_that_must_be_constant() {
        let load = keys(&[("block", "4KiB")]);
        let one = record("a");
        let changed = |change: &dyn Fn(&mut RunRecord)| {
            let mut other = record("b");
            change(&mut other);
            other
        };
        for (is_alike, other) in [
            (true, changed(&|_| {})),
            (true, changed(&|run| drop(run.configuration.insert("name".into(), "t".into())))),
            (true, changed(&|run| run.hosts.values_mut().for_each(|of| drop(of.remove("kernel"))))),
            (false, changed(&|run| drop(run.configuration.insert("phases.measure".into(), "2s".into())))),
            (false, changed(&|run| drop(run.configuration.remove("target.folder")))),
            (false, changed(&|run| run.hosts.values_mut().for_each(|of| drop(of.remove("CPU"))))),
            (false, changed(&|run| run.hosts.values_mut().for_each(|of| drop(of.remove("disks: kind"))))),
        ] {
            assert_eq!(one.likeness(&load) == other.likeness(&load), is_alike, "{other:?}");
            assert_eq!(unlike(&one, &other, Constant::System).is_empty(), is_alike, "{other:?}");
        }
        assert_ne!(one.likeness(&load), one.likeness(&keys(&[("block", "8KiB")])));
        assert_ne!(one.likeness(&load), changed(&|run| run.disks = 2).likeness(&load));
    }
}
