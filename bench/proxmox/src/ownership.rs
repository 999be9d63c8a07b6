//! How a machine says that a run made it. Only machines that say so are ever stopped or deleted.

use serde_json::Value;

use crate::api::{Api, CallError, encoded};
use crate::site::is_set;

/// The tag of all machines of all runs.
pub(crate) const TAG: &str = "loadline";
/// Digits of a run's id.
const ID_DIGITS: usize = 8;

/// Whether a text is the id of a run: eight hexadecimal digits.
pub fn is_run_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
}

/// The name that a machine of a run has in Proxmox VE, and as its host name.
pub(crate) fn machine_name(run: &str, node: &str) -> String {
    format!("{TAG}-{run}-{node}")
}

/// The run that a machine's name names.
pub(crate) fn run_in(name: &str) -> Option<&str> {
    let run = name.strip_prefix(TAG)?.strip_prefix('-')?.split('-').next()?;
    is_run_id(run).then_some(run)
}

/// The tags of a run's machines.
pub(crate) fn tags(run: &str) -> String {
    format!("{TAG};{TAG}-{run}")
}

/// What begins the description of a run's machines. The clone itself carries it, so that no machine is ever without it.
pub(crate) fn description(run: &str) -> String {
    format!("loadline run {run}: made for a measurement, and deleted when it ends")
}

/// Whether this configuration is that of a machine which the run made: its name and its description both say so, and it is no template.
pub(crate) fn is_of_run(config: &Value, run: &str) -> bool {
    let text = |key: &str| config[key].as_str().unwrap_or_default();
    run_in(text("name")) == Some(run)
        && text("description").starts_with(&format!("loadline run {run}:"))
        && !is_set(&config["template"])
}

/// The node of a machine and its configuration, wherever it is now; `None` if its VMID is free. A machine that is there and that the token may
/// not see, or whose configuration is being made, is an error.
pub(crate) fn find(api: &Api, vmid: u32, likely: &str) -> Result<Option<(String, Value)>, CallError> {
    let ask = |node: &str| {
        let path = format!("/nodes/{}/qemu/{vmid}/config", encoded(node));
        api.get(&path, &[], "VM.Audit on the machine").map(|config| Some((node.to_string(), config)))
    };
    let unseen = match ask(likely) {
        Err(error) if error.is_absent() || error.is_forbidden() => error,
        found => return found,
    };
    // A token with rights on a pool gets the same refusal for every machine outside it, whether the machine exists or not. Every token may ask
    // whether a VMID is free.
    match api.get("/cluster/nextid", &[("vmid", vmid.to_string())], "a token that is valid") {
        Ok(_) => return Ok(None),
        Err(error) if error.is_taken() => {}
        Err(error) => return Err(error),
    }
    // It may have moved, as a clone does when it is complete.
    let resources = api.get("/cluster/resources", &[("type", "vm".into())], "VM.Audit on the machine")?;
    let mut all = resources.as_array().into_iter().flatten();
    let found = all.find(|entry| crate::site::number(&entry["vmid"]) == Some(vmid));
    match found.and_then(|entry| entry["node"].as_str()).filter(|node| *node != likely) {
        Some(node) => ask(node),
        None => Err(unseen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_machine_whose_name_and_description_both_name_the_run_is_of_it() {
        let (run, name) = ("0a1b2c3d", machine_name("0a1b2c3d", "vm-1"));
        let config = json!({"name": name, "description": format!("{}\n", description(run))});
        assert!(is_of_run(&config, run));
        assert!(!is_of_run(&config, "ffffffff"));
        for (key, value) in
            [("name", json!("Copy-of-VM-x")), ("description", json!("")), ("template", json!(1))]
        {
            let mut other = config.clone();
            other[key] = value;
            assert!(!is_of_run(&other, run), "{key}");
        }
        assert_eq!(run_in("loadline-0a1b2c3d-vm-1"), Some("0a1b2c3d"));
        for other in ["loadline-server", "loadline-0a1b2c3", "x-0a1b2c3d-a", "loadline"] {
            assert_eq!(run_in(other), None, "{other}");
        }
    }
}
