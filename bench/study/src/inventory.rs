//! Inventories of Ansible: which hosts there are, and how SSH reaches each.
//!
//! What an inventory says about connections that Loadline does not do the same way is an error, so that no connection leads elsewhere than
//! Ansible's would.

mod connection;
mod ini;
mod range;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use loadline_fleet::NodeSpec;

use crate::error::StudyError;

/// An inventory beyond this is something else, bytes.
const LONGEST_FILE: u64 = 1 << 20;
/// Groups nested deeper than this are a circle.
const DEEPEST: usize = 64;
/// The most hosts of one inventory: more than any fleet has.
const MOST_HOSTS: usize = 65_536;

/// Variables of Ansible, by name.
type Variables = BTreeMap<String, String>;

/// A group of an inventory.
#[derive(Debug, Default, PartialEq)]
struct Group {
    hosts: Vec<String>,
    children: Vec<String>,
    variables: Variables,
}

/// An inventory, read.
#[derive(Debug, Default, PartialEq)]
struct Inventory {
    groups: BTreeMap<String, Group>,
    /// The hosts, in the order in which they first appear, and their own variables.
    hosts: Vec<(String, Variables)>,
}

impl Inventory {
    /// Adds hosts with these variables to a group.
    fn add(&mut self, group: &str, hosts: Vec<String>, variables: &Variables) -> Result<(), String> {
        for name in hosts {
            let at = self.hosts.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                self.hosts.push((name.clone(), Variables::new()));
                self.hosts.len() - 1
            });
            self.hosts[at].1.extend(variables.clone());
            let group = self.groups.entry(group.into()).or_default();
            if !group.hosts.contains(&name) {
                group.hosts.push(name);
            }
            if self.hosts.len() > MOST_HOSTS {
                return Err(format!("it has more than {MOST_HOSTS} hosts"));
            }
        }
        Ok(())
    }

    /// The hosts of a group and of the groups in it, in their order.
    fn members(&self, group: &str) -> Result<Vec<&str>, String> {
        let mut members = BTreeSet::new();
        self.collect(group, 0, &mut members)?;
        let named = |name: &str| group == "all" || members.contains(name);
        Ok(self.hosts.iter().map(|(name, _)| name.as_str()).filter(|name| named(name)).collect())
    }

    fn collect<'a>(&'a self, group: &str, depth: usize, into: &mut BTreeSet<&'a str>) -> Result<(), String> {
        let Some(group) = self.groups.get(group) else { return Ok(()) };
        if depth > DEEPEST {
            return Err("its groups contain each other in a circle".into());
        }
        into.extend(group.hosts.iter().map(String::as_str));
        group.children.iter().try_for_each(|child| self.collect(child, depth + 1, into))
    }

    /// The groups of a host, the outermost first: the variables of a later one count.
    fn groups_of(&self, host: &str) -> Result<Vec<&str>, String> {
        let mut depths: BTreeMap<&str, usize> = BTreeMap::new();
        for name in self.groups.keys().filter(|name| *name != "all") {
            if self.members(name)?.contains(&host) {
                depths.insert(name, self.depth(name, 0)?);
            }
        }
        let mut groups: Vec<(usize, &str)> = depths.into_iter().map(|(name, depth)| (depth, name)).collect();
        groups.sort_unstable();
        Ok(std::iter::once("all").chain(groups.into_iter().map(|(_, name)| name)).collect())
    }

    /// How many groups a group lies in, at most.
    fn depth(&self, group: &str, level: usize) -> Result<usize, String> {
        if level > DEEPEST {
            return Err("its groups contain each other in a circle".into());
        }
        let parents =
            self.groups.iter().filter(|(_, other)| other.children.iter().any(|child| child == group));
        parents
            .map(|(name, _)| self.depth(name, level + 1))
            .try_fold(0, |most, depth| Ok(most.max(depth? + 1)))
    }

    /// All variables of a host.
    fn variables_of(&self, host: &str) -> Result<Variables, String> {
        let mut all = Variables::new();
        for group in self.groups_of(host)? {
            all.extend(self.groups.get(group).map(|group| group.variables.clone()).unwrap_or_default());
        }
        let own = self.hosts.iter().find(|(name, _)| name == host).map(|(_, own)| own.clone());
        all.extend(own.unwrap_or_default());
        Ok(all)
    }
}

/// The nodes that an inventory of Ansible names: the hosts of a group, or all. The error is of kind `Usage`, and names what cannot be
/// taken over.
pub fn nodes(path: &Path, group: Option<&str>) -> Result<Vec<NodeSpec>, StudyError> {
    let fault = |what: String| StudyError::usage(format!("inventory {}: {what}", path.display()));
    let metadata = fs::metadata(path).map_err(|e| fault(format!("it cannot be read: {e}")))?;
    if !metadata.is_file() || metadata.len() > LONGEST_FILE {
        return Err(fault("it is not a file of at most 1 MiB: name one file with hosts".into()));
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let is_yaml = matches!(extension, "yml" | "yaml");
    let text = fs::read_to_string(path).map_err(|e| fault(format!("it cannot be read: {e}")))?;
    if metadata.permissions().mode() & 0o111 != 0 && text.starts_with("#!") {
        return Err(fault(
            "it is a program that prints hosts: save what it prints as a file (ansible-inventory --list --yaml), and name that"
                .into(),
        ));
    }
    let inventory = if is_yaml { yaml::read(&text) } else { ini::read(&text) }.map_err(fault)?;
    let group = group.unwrap_or("all");
    if group != "all" && !inventory.groups.contains_key(group) {
        let known: Vec<&str> =
            inventory.groups.keys().map(String::as_str).filter(|name| *name != "all").collect();
        return Err(fault(format!("there is no group {group}; there are {}", known.join(", "))));
    }
    let members = inventory.members(group).map_err(fault)?;
    if members.is_empty() {
        return Err(fault(format!("the group {group} has no hosts")));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut groups = BTreeSet::new();
    let mut nodes = Vec::new();
    for host in &members {
        let variables = inventory.variables_of(host).map_err(fault)?;
        nodes.push(connection::node(host, &variables, folder).map_err(fault)?);
        groups.extend(inventory.groups_of(host).map_err(fault)?);
    }
    connection::nothing_beside(folder, &groups, &members).map_err(fault)?;
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str, group: Option<&str>) -> Result<Vec<NodeSpec>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        nodes(&path, group).map_err(|error| error.message)
    }

    const INI: &str = "# hosts\nlone ansible_host=10.0.0.9\n[storage]\nnode[01:03].x ansible_user=admin # a comment\n\
                       [fast]\nn-a:2222 ansible_ssh_private_key_file='/k/a b'\n[both:children]\nstorage\nfast\n\
                       [both:vars]\nansible_user=root\n[all:vars]\nansible_python_interpreter=/usr/bin/python3\n";

    #[test]
    fn groups_ranges_and_variables_of_an_ini_inventory_are_those_of_ansible() {
        let ssh = |nodes: &[NodeSpec]| nodes.iter().map(|n| n.ssh.clone().unwrap()).collect::<Vec<_>>();
        let both = of("hosts.ini", INI, Some("both")).unwrap();
        assert_eq!(ssh(&both), ["admin@node01.x", "admin@node02.x", "admin@node03.x", "ssh://root@n-a:2222"]);
        assert_eq!(both[3].ssh_key.as_deref(), Some(Path::new("/k/a b")));
        assert_eq!((both[0].name.as_str(), both[3].name.as_str()), ("node01.x", "n-a"));
        let all = of("hosts", INI, None).unwrap();
        assert_eq!((all.len(), ssh(&all)[0].as_str()), (5, "10.0.0.9"));
        assert!(of("hosts", INI, Some("none")).unwrap_err().contains("there are both, fast, storage"));
    }

    #[test]
    fn a_yaml_inventory_says_the_same() {
        let yaml = "all:\n  children:\n    both:\n      vars: {ansible_user: root}\n      children:\n        storage:\n          hosts:\n            \
                    node[01:02]:\n              ansible_user: admin\n        fast:\n          hosts:\n            n-a: {ansible_port: 2222, \
                    ansible_host: 10.0.0.1}\n  hosts:\n    lone:\n";
        let both = of("hosts.yml", yaml, Some("both")).unwrap();
        let ssh: Vec<String> = both.into_iter().map(|node| node.ssh.unwrap()).collect();
        assert_eq!(ssh, ["admin@node01", "admin@node02", "ssh://root@10.0.0.1:2222"]);
        assert_eq!(of("hosts.yaml", yaml, None).unwrap().len(), 4);
        assert!(of("hosts.yml", "plugin: aws_ec2\n", None).unwrap_err().contains("plugin"));
        assert!(of("hosts.yml", "a: [", None).unwrap_err().contains("YAML"));
    }

    #[test]
    fn what_would_change_where_a_connection_leads_is_refused_by_name() {
        for (line, part) in [
            ("h ansible_connection=docker", "ansible_connection"),
            ("h ansible_ssh_common_args='-J jump'", "ansible_ssh_common_args"),
            ("h ansible_password=x", "ansible_password"),
            ("h ansible_host='{{ lookup }}'", "template"),
            ("h ansible_port=x", "ansible_port"),
            ("[g:children]\na\n[a:children]\ng\n[a]\nh", "circle"),
            ("[g", "line 1"),
            ("h[1:x]", "h[1:x]"),
        ] {
            let message = of("hosts", line, None).unwrap_err();
            assert!(message.contains(part), "{line}: {message}");
        }
        assert!(of("hosts", "h ansible_connection=ssh ansible_become=true", None).is_ok());
    }

    #[test]
    fn variables_in_files_beside_an_inventory_are_refused_if_they_are_about_its_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        fs::write(&path, "[g]\nh\n[other]\no\n").unwrap();
        fs::create_dir_all(folder.path().join("group_vars/g")).unwrap();
        fs::write(folder.path().join("group_vars/other.yml"), "ansible_user: x\n").unwrap();
        fs::write(folder.path().join("group_vars/g/a.yml"), "ntp: x\n").unwrap();
        assert!(nodes(&path, Some("g")).is_ok());
        fs::write(folder.path().join("group_vars/g/a.yml"), "---\nansible_user: x\n").unwrap();
        assert!(nodes(&path, Some("g")).unwrap_err().message.contains("ansible_user"));
        fs::write(folder.path().join("group_vars/g/a.yml"), "$ANSIBLE_VAULT;1.1\n").unwrap();
        assert!(nodes(&path, Some("g")).unwrap_err().message.contains("encrypted"));
        fs::remove_dir_all(folder.path().join("group_vars")).unwrap();
        fs::write(folder.path().join("ansible.cfg"), "[defaults]\nremote_user = x\n").unwrap();
        assert!(nodes(&path, Some("g")).unwrap_err().message.contains("remote_user"));
    }
}
