//! How Ansible would connect to a host, as `ssh` takes it; or which variable says something that is not taken over.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use loadline_fleet::NodeSpec;

use super::Variables;

/// What is taken over, by the names that Ansible has for it.
const HOST: [&str; 2] = ["ansible_host", "ansible_ssh_host"];
const USER: [&str; 2] = ["ansible_user", "ansible_ssh_user"];
const PORT: [&str; 2] = ["ansible_port", "ansible_ssh_port"];
const KEY: [&str; 2] = ["ansible_ssh_private_key_file", "ansible_private_key_file"];

/// Variables of Ansible's own SSH that change how it works, and not where it leads.
const HARMLESS: [&str; 5] = [
    "ansible_ssh_pipelining",
    "ansible_ssh_retries",
    "ansible_ssh_timeout",
    "ansible_ssh_transfer_method",
    "ansible_ssh_use_tty",
];

/// Keys of `ansible.cfg` that change where connections lead.
const CONFIGURATION: [&str; 9] = [
    "remote_user",
    "remote_port",
    "private_key_file",
    "transport",
    "ssh_args",
    "ssh_common_args",
    "ssh_extra_args",
    "ssh_executable",
    "connection_password_file",
];

fn is_taken_over(key: &str) -> bool {
    [HOST, USER, PORT, KEY].iter().any(|names| names.contains(&key))
}

/// Whether a variable changes where a connection leads, and is not taken over.
fn is_refused(key: &str) -> bool {
    let own = key.starts_with("ansible_ssh_") || key.starts_with("ansible_paramiko_");
    (own && !is_taken_over(key) && !HARMLESS.contains(&key)) || key == "ansible_password"
}

/// The node that a host is.
pub(super) fn node(host: &str, variables: &Variables, folder: &Path) -> Result<NodeSpec, String> {
    let one_of = |names: [&str; 2]| -> Result<Option<&str>, String> {
        let Some((name, value)) = names.iter().find_map(|name| variables.get_key_value(*name)) else {
            return Ok(None);
        };
        match value.contains("{{") || value.is_empty() {
            true => Err(format!("host {host}: {name} is a template or no word: write its value")),
            false => Ok(Some(value)),
        }
    };
    if let Some((key, value)) = variables.get_key_value("ansible_connection")
        && !matches!(value.as_str(), "ssh" | "smart")
    {
        return Err(format!("host {host}: {key} = {value}: Loadline connects by ssh only"));
    }
    if let Some(key) = variables.keys().find(|key| is_refused(key)) {
        return Err(format!(
            "host {host}: {key} is not taken over: put what it says into ssh_config (~/.ssh/config), which Ansible and Loadline \
             both read, and remove it here"
        ));
    }
    let address = one_of(HOST)?.unwrap_or(host);
    let user = one_of(USER)?.map(|user| format!("{user}@")).unwrap_or_default();
    let ssh = match one_of(PORT)? {
        None => format!("{user}{address}"),
        Some(port) => {
            let port: u16 =
                port.parse().map_err(|_| format!("host {host}: ansible_port = {port} is not a port"))?;
            let address = if address.contains(':') { format!("[{address}]") } else { address.into() };
            format!("ssh://{user}{address}:{port}")
        }
    };
    let key = one_of(KEY)?.map(|key| located(key, folder));
    Ok(NodeSpec { ssh: Some(ssh), ssh_key: key, ..NodeSpec::named(host) })
}

/// Where a private key is: `~` is for ssh to expand.
fn located(key: &str, folder: &Path) -> PathBuf {
    if key.starts_with('~') { key.into() } else { folder.join(key) }
}

/// That no file beside an inventory changes where connections to these hosts lead: variables of their groups and of themselves, and the
/// configuration of Ansible. The error names the file and the key.
pub(super) fn nothing_beside(folder: &Path, groups: &BTreeSet<&str>, hosts: &[&str]) -> Result<(), String> {
    for (kind, names) in
        [("group_vars", groups.iter().collect::<Vec<_>>()), ("host_vars", hosts.iter().collect())]
    {
        for name in names {
            let own = folder.join(kind).join(name);
            let mut files: Vec<PathBuf> = ["", ".yml", ".yaml", ".json"]
                .iter()
                .map(|ending| folder.join(kind).join(format!("{name}{ending}")))
                .filter(|path| path.is_file())
                .collect();
            files.extend(fs::read_dir(&own).into_iter().flatten().flatten().map(|entry| entry.path()));
            files.iter().try_for_each(|file| says_nothing(file))?;
        }
    }
    let configuration = folder.join("ansible.cfg");
    let text = fs::read_to_string(&configuration).unwrap_or_default();
    let keys = text.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key.trim());
    match keys.into_iter().find(|key| CONFIGURATION.contains(key)) {
        None => Ok(()),
        Some(key) => Err(format!(
            "{} sets {key}, which is not taken over: put it into the inventory (ansible_user, ansible_port, \
             ansible_ssh_private_key_file) or into ssh_config",
            configuration.display()
        )),
    }
}

fn says_nothing(file: &Path) -> Result<(), String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    if text.starts_with("$ANSIBLE_VAULT") {
        return Err(format!(
            "{} is encrypted, and may change how the hosts are reached: save the inventory with its connections in one file that is not",
            file.display()
        ));
    }
    let keys = text
        .lines()
        .filter_map(|line| line.trim_start().split_once(':'))
        .map(|(key, _)| key.trim_matches(['"', '\'', ' ']));
    match keys.into_iter().find(|key| is_taken_over(key) || is_refused(key) || *key == "ansible_connection") {
        None => Ok(()),
        Some(key) => Err(format!(
            "{} sets {key}: only the inventory itself is read, so write it there",
            file.display()
        )),
    }
}
