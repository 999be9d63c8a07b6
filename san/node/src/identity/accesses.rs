//! All certificates, tokens and initiators that the configuration names.

use std::collections::{BTreeMap, BTreeSet};

use super::access::Role;
use crate::config::catalog::{Catalog, Volume};

/// What the configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accesses {
    /// The fingerprint of each certificate, and the SHA-256 of each token, with its role.
    proofs: BTreeMap<String, Role>,
    /// The initiators that each volume lets in from anywhere, with the numbers of their namings.
    initiators: BTreeMap<u64, BTreeSet<(String, u64)>>,
}

impl Accesses {
    /// Those of a configuration.
    pub fn of(catalog: &Catalog) -> Accesses {
        let accesses = catalog.accesses.values().map(|(access, _)| (access.proof.clone(), access.role));
        let nodes = catalog.nodes.values().flat_map(|(node, _)| node.certificates.iter());
        // A node may do everything, whatever an access says that has its certificate.
        let proofs = accesses.chain(nodes.map(|of| (of.clone(), Role::Operator))).collect();
        let volumes = catalog.volumes.iter().filter(|(_, (volume, _))| !volume.initiators.is_empty());
        let names =
            |volume: &Volume| volume.initiators.iter().map(|of| (of.name.clone(), of.naming)).collect();
        let initiators = volumes.map(|(id, (volume, _))| (*id, names(volume))).collect();
        Accesses { proofs, initiators }
    }

    /// Whether this is the proof of a node or of an access.
    pub fn has(&self, proof: &str) -> bool {
        self.proofs.contains_key(proof)
    }

    /// Whether the certificate with this fingerprint may use volumes.
    pub fn may_use_volumes(&self, certificate: &str) -> bool {
        matches!(self.proofs.get(certificate), Some(Role::Client | Role::Operator))
    }

    /// Whether the volume names this initiator.
    pub fn name(&self, volume: u64, initiator: &str) -> bool {
        self.initiators.get(&volume).is_some_and(|names| names.iter().any(|(name, _)| name == initiator))
    }

    /// Whether the volume lets this initiator in, from anywhere, by the naming of this number.
    pub fn let_in(&self, volume: u64, initiator: &(String, u64)) -> bool {
        self.initiators.get(&volume).is_some_and(|names| names.contains(initiator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::access::Access;

    #[test]
    fn an_initiator_that_was_removed_and_named_again_is_another_one() {
        let accesses = |initiators: serde_json::Value| {
            let volume = serde_json::json!({
                "name": "d", "copies": 1, "least": 1, "stripes": 1, "unit_blocks": 1, "group_blocks": 1, "blocks": 1, "lease_ms": 600,
                "log_bytes": 1, "attached": 1, "state": "ready", "initiators": initiators,
            });
            let mut catalog = Catalog::default();
            catalog.volumes.insert(7, (serde_json::from_value(volume).unwrap(), 1));
            Accesses::of(&catalog)
        };
        let (first, second) = (("iqn.a".to_owned(), 1), ("iqn.a".to_owned(), 2));
        let named = |naming: u64| accesses(serde_json::json!([{ "name": "iqn.a", "naming": naming }]));
        assert!(named(1).let_in(7, &first) && !named(1).let_in(8, &first));
        assert!(!named(2).let_in(7, &first) && named(2).let_in(7, &second));
        assert_ne!(named(1), named(2), "loops are told");
        assert!(!accesses(serde_json::json!([])).let_in(7, &first));
    }

    #[test]
    fn certificates_of_nodes_and_accesses_may_do_what_their_role_says_and_others_nothing() {
        let mut catalog = Catalog::default();
        for (name, role) in [("vm", Role::Client), ("eve", Role::Viewer), ("bob", Role::Operator)] {
            catalog.accesses.insert(name.into(), (Access { role, proof: name.into(), expires: 0 }, 1));
        }
        let accesses = Accesses::of(&catalog);
        for (proof, uses) in [("vm", true), ("eve", false), ("bob", true)] {
            assert!(accesses.has(proof), "also if it has expired");
            assert_eq!(accesses.may_use_volumes(proof), uses, "{proof}");
        }
        assert!(!accesses.has("mallory") && !accesses.may_use_volumes("mallory"));
    }
}
