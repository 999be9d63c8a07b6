//! What a person can have done to a cluster from the page.

use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{CreateVolume, LimitVolume};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// A volume is made. It is not attached.
    CreateVolume(CreateVolume),
    /// A volume is made larger.
    ResizeVolume(ResizeVolume),
    /// What clients of a volume may do a second, all together. Without figures there is no limit.
    LimitVolume(LimitOf),
    /// The copies of a volume that one node has move to another node.
    MoveVolume(MoveVolume),
    /// A node becomes the owner of a volume.
    AttachVolume(AttachVolume),
    /// No node is the owner of a volume any more.
    DetachVolume(DetachVolume),
    /// A volume is deleted, with all data.
    DeleteVolume(DeleteVolume),
    /// All copies of a volume are checked.
    ScrubVolume(ScrubVolume),
    /// The copies of a node move to other nodes, or do so no more.
    DrainNode(DrainNode),
    /// A node is in maintenance, or not any more.
    MaintainNode(MaintainNode),
}

/// A volume, and the size that it is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// Its name.
    pub volume: String,
    /// The bytes that it is to have.
    pub bytes: u64,
}

/// A volume, and its limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitOf {
    /// Its name.
    pub volume: String,
    /// The limit.
    pub limit: LimitVolume,
}

/// A volume, and where its copies are to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveVolume {
    /// Its name.
    pub volume: String,
    /// The node that has the copies.
    pub from: String,
    /// The node that is to have them.
    pub to: String,
}

/// A volume, and the node that is to be its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachVolume {
    /// Its name.
    pub volume: String,
    /// The node. Without it: the present owner, or the node that has most copies.
    #[serde(default)]
    pub node: Option<String>,
}

/// A volume that is to have no owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetachVolume {
    /// Its name.
    pub volume: String,
    /// Its clients are disconnected. Otherwise it is not detached while there are any.
    #[serde(default)]
    pub force: bool,
}

/// A volume that is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteVolume {
    /// Its name.
    pub volume: String,
    /// Its name again, as a person has typed it. A preview needs none.
    #[serde(default)]
    pub confirm: String,
}

/// A volume whose copies are to be checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubVolume {
    /// Its name.
    pub volume: String,
}

/// A node that is to be empty, or not any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainNode {
    /// Its name.
    pub node: String,
    /// The drain ends: copies that have not moved stay.
    #[serde(default)]
    pub stop: bool,
}

/// A node that a person is about to stop, or that is used again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintainNode {
    /// Its name.
    pub node: String,
    /// The maintenance ends.
    #[serde(default)]
    pub stop: bool,
    /// It begins also if clients of a volume would wait while the node is stopped.
    #[serde(default)]
    pub force: bool,
}

impl Action {
    /// The volume that it is about, if it is about one.
    pub fn volume(&self) -> Option<&str> {
        Some(match self {
            Action::CreateVolume(of) => &of.name,
            Action::ResizeVolume(of) => &of.volume,
            Action::LimitVolume(of) => &of.volume,
            Action::MoveVolume(of) => &of.volume,
            Action::AttachVolume(of) => &of.volume,
            Action::DetachVolume(of) => &of.volume,
            Action::DeleteVolume(of) => &of.volume,
            Action::ScrubVolume(of) => &of.volume,
            Action::DrainNode(_) | Action::MaintainNode(_) => return None,
        })
    }

    /// The node that it is about, if it is about one.
    pub fn node(&self) -> Option<&str> {
        match self {
            Action::DrainNode(of) => Some(&of.node),
            Action::MaintainNode(of) => Some(&of.node),
            Action::AttachVolume(of) => of.node.as_deref(),
            _ => None,
        }
    }

    /// What it is, for people: a heading without a full stop.
    pub fn title(&self) -> String {
        match self {
            Action::CreateVolume(of) => format!("Create volume {}", of.name),
            Action::ResizeVolume(of) => format!("Resize volume {} to {}", of.volume, ByteSize(of.bytes)),
            Action::LimitVolume(of) => format!("Limit volume {}", of.volume),
            Action::MoveVolume(of) => format!("Move volume {} from {} to {}", of.volume, of.from, of.to),
            Action::AttachVolume(of) => match &of.node {
                Some(node) => format!("Attach volume {} at {node}", of.volume),
                None => format!("Attach volume {}", of.volume),
            },
            Action::DetachVolume(of) => format!("Detach volume {}", of.volume),
            Action::DeleteVolume(of) => format!("Delete volume {}", of.volume),
            Action::ScrubVolume(of) => format!("Scrub volume {}", of.volume),
            Action::DrainNode(of) if of.stop => format!("Stop the drain of node {}", of.node),
            Action::DrainNode(of) => format!("Drain node {}", of.node),
            Action::MaintainNode(of) if of.stop => format!("End the maintenance of node {}", of.node),
            Action::MaintainNode(of) => format!("Put node {} in maintenance", of.node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_refused_and_what_may_be_left_out_is() {
        let read = |text: &str| serde_json::from_str::<Action>(text).map_err(|why| why.to_string());
        assert!(read(r#"{"detach_volume":{"volume":"a"}}"#).is_ok_and(
            |of| of == Action::DetachVolume(DetachVolume { volume: "a".into(), force: false })
        ));
        let create = r#"{"create_volume":{"name":"a","bytes":1,"copies":2}}"#;
        assert!(read(create).is_ok_and(|of| of.volume() == Some("a")));
        for wrong in [
            r#"{"detach_volume":{"volume":"a","forced":true}}"#,
            r#"{"detach_volume":{"volume":"a"},"drain_node":{"node":"b"}}"#,
            r#"{"create_volume":{"name":"a","bytes":1,"copies":2,"more":1}}"#,
            r#"{"create_volume":{"name":"a","bytes":-1,"copies":2}}"#,
            r#"{"limit_volume":{"volume":"a","limit":{"iops":1,"more":2}}}"#,
            r#"{"format":{"volume":"a"}}"#,
            r#""delete_volume""#,
            "{}",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
