//! All certificates, tokens and initiators that the configuration names.

use std::collections::{BTreeMap, BTreeSet};

use super::access::Role;
use crate::config::catalog::{Catalog, Volume};

/// What the configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accesses {
    /// The fingerprint of each certificate, and the SHA-256 of each token, with its role.
    proofs: BTreeMap<String, Role>,
    /// The initiators that each volume lets in from anywhere.
    initiators: BTreeMap<u64, BTreeSet<String>>,
}

impl Accesses {
    /// Those of a configuration.
    pub(crate) fn of(catalog: &Catalog) -> Accesses {
        let accesses = catalog.accesses.values().map(|(access, _)| (access.proof.clone(), access.role));
        let nodes = catalog.nodes.values().flat_map(|(node, _)| node.certificates.iter());
        // A node may do everything, whatever an access says that has its certificate.
        let proofs = accesses.chain(nodes.map(|of| (of.clone(), Role::Operator))).collect();
        let volumes = catalog.volumes.iter().filter(|(_, (volume, _))| !volume.initiators.is_empty());
        let names = |volume: &Volume| volume.initiators.iter().map(|of| of.name.clone()).collect();
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

    /// Whether the volume lets this initiator in, from anywhere.
    pub fn let_in(&self, volume: u64, initiator: &str) -> bool {
        self.initiators.get(&volume).is_some_and(|names| names.contains(initiator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::access::Access;

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
