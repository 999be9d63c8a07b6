//! This node's identity: read when it starts, and renewed before it expires, while connections continue.
//!
//! A new certificate is named in the configuration beside the old one, then it is written to the node's folder and used. Once each other
//! node that answers accepts it, the configuration names it alone: connections that were proved by the old one end then, and are made again
//! at once. A certificate that other nodes do not accept, because of a clock, ends no connection.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Node, NodeError};
use crate::config::catalog::{self, Catalog, Cluster, Transport, change};
use crate::config::{ConfigError, steps};
use crate::identity::authority::{BEFORE, Issued, Subject};
use crate::identity::files::{Identity, note_replaced, own_file, was_replaced, write_own};
use crate::identity::token;
use crate::identity::trust::Trust;
use crate::identity::{IdentityError, OpenToOthers, fingerprint, now};

/// How often the node checks whether its certificate must be renewed.
const LOOKS: Duration = Duration::from_secs(60);
/// How long an old certificate is named beside the new one at least.
const BESIDE: Duration = Duration::from_secs(5);
/// Certificates that the configuration names for a node at most.
const MOST_NAMED: usize = 8;

/// The identity of this node, and what follows from it.
#[derive(Debug)]
pub(super) struct Security {
    folder: PathBuf,
    cluster: Cluster,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    identity: Identity,
    trust: Arc<Trust>,
}

impl Security {
    /// Reads the identity of a node, in a cluster whose connections are protected; nothing, if they are not.
    ///
    /// Fails if the cluster has connections that are not protected, and the node is not on this machine alone; and if the
    /// configuration does not know the identity.
    pub(super) fn read(
        folder: PathBuf,
        cluster: &Cluster,
        node: &catalog::Node,
    ) -> Result<Option<Security>, NodeError> {
        if cluster.transport == Transport::Open {
            OpenToOthers::check(&node.addresses())?;
            return Ok(None);
        }
        let identity = Identity::read(&folder, &cluster.id)?;
        let own = fingerprint(&identity.own.certificate);
        // A configuration that was restored from an older copy names a certificate that this node had before.
        let was_own = |of: &String| was_replaced(&folder, of);
        if !node.certificates.contains(&own) && !node.certificates.iter().any(was_own) {
            return Err(IdentityError::File {
                path: own_file(&folder),
                error: format!(
                    "the configuration does not know this certificate of node {}: the file is an old copy, or the node was \
                     added anew in another folder. Put the newest file back, or remove the node and join it again",
                    node.name
                ),
            }
            .into());
        }
        let trust = Arc::new(Trust::new(&identity, &cluster.id, cluster.transport)?);
        let held = Mutex::new(Held { identity, trust });
        Ok(Some(Security { folder, cluster: cluster.clone(), held }))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().expect("no thread panics while it holds this")
    }

    /// Uses another certificate from now on.
    fn take(&self, own: Issued) -> Result<(), IdentityError> {
        let mut held = self.held();
        note_replaced(&self.folder, &fingerprint(&held.identity.own.certificate))?;
        write_own(&self.folder, &own)?;
        held.identity.own = own;
        held.trust = Arc::new(Trust::new(&held.identity, &self.cluster.id, self.cluster.transport)?);
        Ok(())
    }

    /// For how long the certificate is valid, by this host's clock, in seconds.
    fn left(&self) -> u64 {
        self.held().identity.own.expires.saturating_sub(now())
    }

    /// Whether a third of the certificate's life is left, or less.
    fn is_old(&self) -> bool {
        self.left() < self.cluster.certificate_s / 3
    }

    /// Whether the certificate is not valid yet, by this host's clock: this clock is behind, or was ahead when the certificate was made.
    fn is_early(&self) -> bool {
        self.left() > self.cluster.certificate_s + BEFORE
    }

    fn own(&self) -> String {
        fingerprint(&self.held().identity.own.certificate)
    }

    fn issue(&self, id: u32, node: &catalog::Node, names: &[String]) -> Result<Issued, IdentityError> {
        let life = Duration::from_secs(self.cluster.certificate_s);
        self.held().identity.authority.issue(&subject(id, node, names), life)
    }
}

/// The subject of a node's certificate. `names`: more names of its host, by which clients call it.
pub(crate) fn subject(id: u32, node: &catalog::Node, names: &[String]) -> Subject {
    let mut addresses: Vec<_> = node.addresses().iter().map(|address| address.ip()).collect();
    addresses.sort();
    addresses.dedup();
    let mut names = names.to_vec();
    if let Some(host) = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()) {
        names.push(host);
    }
    if addresses.iter().any(std::net::IpAddr::is_loopback) {
        names.push("localhost".into());
    }
    names.sort();
    names.dedup();
    // A name that a certificate cannot have is none by which a client could check it.
    names.retain(|name| name.is_ascii() && !name.is_empty() && name.len() < 254);
    Subject::Node { id, addresses, names }
}

/// The certificates that the configuration names once a new one is used, too. All that it names stay: connections may have been proved by
/// any of them. Of too many the first stays, by which they were proved, and the newest.
fn with_new(named: &[String], old: &str, new: &str) -> Vec<String> {
    let mut all = named.to_vec();
    all.retain(|of| of != old && of != new);
    all.extend([old.to_owned(), new.to_owned()]);
    while all.len() > MOST_NAMED {
        all.remove(1);
    }
    all
}

impl Node {
    /// What this node accepts, and how it connects; `None` if connections are not protected.
    pub(crate) fn trust(&self) -> Option<Arc<Trust>> {
        self.0.security.as_ref().map(|security| security.held().trust.clone())
    }

    /// Renews the certificate: a new key, and a new life.
    pub async fn renew_certificate(&self) -> Result<(), NodeError> {
        let Some(security) = &self.0.security else { return Ok(()) };
        let node = self.state().catalog.nodes.get(&self.id()).map(|(node, _)| node.clone());
        let node = node.ok_or_else(|| NodeError::Removed(self.name().into()))?;
        let new = security.issue(self.id(), &node, self.api_names())?;
        let (old, proof) = (security.own(), fingerprint(&new.certificate));
        self.name_certificates(move |named| with_new(named, &old, &proof)).await?;
        security.take(new)?;
        tracing::info!("the certificate of this node is renewed");
        self.0.renewed.notify_one();
        Ok(())
    }

    /// Has the configuration name for this node what `which` makes of the certificates that it names.
    async fn name_certificates(
        &self,
        which: impl Fn(&[String]) -> Vec<String> + Send + 'static,
    ) -> Result<(), ConfigError> {
        let id = self.id();
        let named = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let Some((node, version)) = catalog.nodes.get(&id) else { return Ok(()) };
                let certificates = which(&node.certificates);
                if node.certificates == certificates {
                    return Ok(());
                }
                let next = catalog::Node { certificates, ..node.clone() };
                if store.commit(&[change(format!("node/{id}"), Some(*version), &next)])? {
                    return Ok(());
                }
            }
            Err(ConfigError::Contended)
        });
        named.await?;
        self.reconcile_soon();
        Ok(())
    }

    /// Removes invitations that have ended, by this host's clock: that of the host which would use one may be wrong.
    async fn remove_expired_tokens(&self) {
        let removed = self.config().call(move |store| {
            let expired = token::expired(store)?;
            // Another node may do it at the same time.
            if expired.is_empty() { Ok(true) } else { steps::each(store, expired) }
        });
        if let Err(error) = removed.await {
            tracing::debug!("tokens that have expired are not removed now: {error}");
        }
    }

    /// Renews the certificate in time, and ends connections that an old one has proved. It runs until the node ends.
    pub(super) async fn renew_for_ever(&self) {
        let Some(security) = &self.0.security else { return std::future::pending().await };
        let own = security.own();
        let is_named = |state: &super::NodeState| {
            state.catalog.nodes.get(&self.id()).is_some_and(|(node, _)| node.certificates.contains(&own))
        };
        let _ = self.refresh().await;
        if !is_named(&self.state()) {
            tracing::warn!(
                "the configuration names an older certificate of this node, as one that was restored does; it is to name this one"
            );
            if let Err(error) = self.name_certificates(move |_| vec![own.clone()]).await {
                tracing::warn!("the certificate of this node cannot be named in the configuration: {error}");
            }
        }
        loop {
            // A clock that is wrong must not have a node replace a certificate which others accept.
            let is_needed = security.is_old()
                || security.is_early() && self.ask_others_about_certificate().await.keep_all_away();
            if is_needed && let Err(error) = self.renew_certificate().await {
                tracing::warn!(
                    "the certificate of this node cannot be renewed now, which is tried again: {error}"
                );
            }
            self.remove_expired_tokens().await;
            // Other nodes learn of the new one meanwhile.
            tokio::time::sleep(BESIDE).await;
            let alone = vec![security.own()];
            let is_alone =
                self.state().catalog.nodes.get(&self.id()).is_none_or(|(node, _)| node.certificates == alone);
            // Connections that an old one has proved would end, and could not be made again.
            if !is_alone
                && self.ask_others_about_certificate().await.show_that_one_is_enough()
                && let Err(error) = self.name_certificates(move |_| alone.clone()).await
            {
                tracing::warn!(
                    "an old certificate of this node is still named in the configuration: {error}"
                );
            }
            let renewed = self.0.renewed.notified();
            let looks = LOOKS.min(Duration::from_secs(security.cluster.certificate_s) / 10);
            let _ = tokio::time::timeout(looks, renewed).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_by_which_connections_were_proved_stays_named_however_often_others_follow() {
        let mut named = vec!["0".to_owned()];
        for number in 1..100 {
            let (old, new) = ((number - 1).to_string(), number.to_string());
            named = with_new(&named, &old, &new);
            assert_eq!(named.last(), Some(&new));
            assert!(named.contains(&old) && named.len() <= MOST_NAMED);
            assert_eq!(named[0], "0");
        }
    }
}
