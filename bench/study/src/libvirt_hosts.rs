//! Machines of a libvirt that is on another host: its nodes become that host, since machines are started where their libvirt is.

use loadline_fleet::NodeSpec;

use crate::error::StudyError;
use crate::file::FleetSection;

/// The most nodes that are counted out: more than a fleet may have.
const MOST_NODES: u32 = 1025;

impl FleetSection {
    /// Makes nodes whose machines are of a libvirt by SSH (`qemu+ssh://USER@HOST/system`) that host, with the libvirt there. The error
    /// is of kind `Usage`.
    pub fn move_to_libvirt(&mut self) -> Result<(), StudyError> {
        for node in &mut self.node {
            node.move_to_libvirt()?;
        }
        let elsewhere = self.machine.as_ref().and_then(|machine| machine.libvirt.as_ref()?.elsewhere());
        let Some((host, local)) = elsewhere else { return Ok(()) };
        if !self.node.is_empty() || self.inventory.is_some() || self.join.is_some() {
            return Err(StudyError::usage(format!(
                "[fleet] machine: its libvirt is on {host}, and [fleet] has nodes of its own: write libvirt = \"{local}\" for that of \
                 each node, or give each [[fleet.node]] its machine"
            )));
        }
        let machine = self.machine.take();
        let count = self.nodes.take().unwrap_or(1).min(MOST_NODES);
        let width = count.to_string().len();
        for number in 1..=count {
            let mut node =
                NodeSpec { machine: machine.clone(), ..NodeSpec::named(format!("node-{number:0width$}")) };
            node.move_to_libvirt()?;
            self.node.push(node);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::read::parse;

    fn fleet(text: &str) -> Result<crate::file::FleetSection, String> {
        let text = format!("name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{text}");
        parse("s.toml", &text).map(|study| study.fleet).map_err(|error| error.message)
    }

    #[test]
    fn nodes_of_a_libvirt_by_ssh_are_that_host_with_the_libvirt_there() {
        let found =
            fleet("[fleet]\nnodes = 2\nmachine = { libvirt = \"qemu+ssh://root@a/system\" }").unwrap();
        assert_eq!((found.nodes, found.machine), (None, None));
        let nodes: Vec<(&str, &str, String)> = found
            .node
            .iter()
            .map(|node| {
                let libvirt = node.machine.as_ref().unwrap().libvirt.as_ref().unwrap();
                (node.name.as_str(), node.ssh.as_deref().unwrap(), libvirt.to_string())
            })
            .collect();
        let local = "qemu:///system".to_string();
        assert_eq!(nodes, [("node-1", "root@a", local.clone()), ("node-2", "root@a", local)]);
        let found =
            fleet("[[fleet.node]]\nname = \"a\"\nmachine = { libvirt = \"qemu+ssh://b:22/session\" }")
                .unwrap();
        assert_eq!(found.node[0].ssh.as_deref(), Some("ssh://b:22"));
        let found = fleet("[fleet]\nmachine = { libvirt = \"qemu:///session\" }").unwrap();
        assert!(found.machine.is_some() && found.node.is_empty());
    }

    #[test]
    fn a_libvirt_that_contradicts_its_node_is_refused_with_what_to_write() {
        let ssh = "machine = { libvirt = \"qemu+ssh://root@a/system\" }";
        let other = fleet(&format!("[[fleet.node]]\nname = \"n\"\nssh = \"b\"\n{ssh}")).unwrap_err();
        assert!(other.contains("ssh = \"b\"") && other.contains("qemu:///system"), "{other}");
        let both = fleet(&format!("[fleet]\n{ssh}\n[[fleet.node]]\nname = \"n\"\nssh = \"b\"")).unwrap_err();
        assert!(both.contains("nodes of its own"), "{both}");
        let wrong = fleet("[fleet]\nmachine = { libvirt = \"xen:///system\" }").unwrap_err();
        assert!(wrong.contains("only qemu and qemu+ssh"), "{wrong}");
    }
}
