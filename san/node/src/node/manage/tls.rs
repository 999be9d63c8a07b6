//! Whether clients of a volume must come by TLS.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ManageError;
use crate::config::catalog::{Catalog, Transport, Volume};
use crate::node::Node;

/// Whether clients of a volume must come by TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequireTls {
    /// Clients over the network are let in only by TLS, with a certificate.
    pub required: bool,
}

/// Fails if the nodes of this cluster have no certificates, so that no client could connect by TLS.
pub(super) fn check_certificates(catalog: &Catalog) -> Result<(), ManageError> {
    match &catalog.cluster {
        Some((cluster, _)) if cluster.transport != Transport::Open => Ok(()),
        _ => Err(ManageError::Wrong(
            "this cluster has no certificates, since it was made for one machine: 'loadline san init --transport encrypted' makes one \
             that has"
                .into(),
        )),
    }
}

impl Node {
    /// Decides whether clients of a volume must come by TLS. It holds for clients that connect from now on.
    pub async fn require_tls(
        &self,
        name: &str,
        RequireTls { required }: RequireTls,
    ) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        if required {
            check_certificates(&self.state().catalog)?;
        }
        self.change_volume(id, move |volume| Volume { requires_tls: required, ..volume }).await
    }
}
