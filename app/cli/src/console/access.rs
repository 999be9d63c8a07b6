//! Where the console listens, and who may use it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use loadline_console::access::Access;
use loadline_console::access::keys::Keys;
use loadline_console::access::role::Role;
use loadline_console::access::secret::Secret;
use loadline_console::server::tls::{Tls, TlsFiles};

/// Where the console listens, and who may use it.
#[derive(clap::Args)]
pub(super) struct Open {
    /// The port of the page, on 127.0.0.1.
    #[arg(long, default_value_t = 7480, conflicts_with = "listen")]
    port: u16,
    /// Where the page is, if not on 127.0.0.1. An address that other machines reach needs --cert and --key, and --keys or --client-ca.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The certificate of the page, for https: a PEM file. The certificates of authorities between it and one that browsers know come after
    /// it.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of the certificate: a PEM file that other users cannot read.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The sign-in keys of those who may use the page: a file that 'loadline console key add' makes. With it, nothing is shown without
    /// signing in.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// A PEM file of authorities: clients with a certificate of theirs are let in. Without --keys, other connections are refused.
    #[arg(long, value_name = "FILE", requires = "cert")]
    client_ca: Option<PathBuf>,
    /// What the owner of a certificate of --client-ca may do: viewer, operator or admin.
    #[arg(long, value_name = "ROLE", default_value = "viewer", requires = "client_ca")]
    client_role: Role,
    /// A name by which browsers ask for the page, besides its addresses, the name of this machine, and the names in the certificate.
    #[arg(long = "name", value_name = "HOST")]
    names: Vec<String>,
}

/// The same, read and checked.
pub(super) struct Opened {
    pub(super) address: SocketAddr,
    pub(super) access: Access,
    pub(super) tls: Option<Tls>,
    pub(super) names: Vec<String>,
    /// The key of the link by which the user of the command signs in.
    link: Option<Secret>,
}

impl Open {
    /// Reads the files. The error is for people, and says what to do.
    pub(super) fn check(&self) -> Result<Opened, String> {
        let address = self.listen.unwrap_or((Ipv4Addr::LOCALHOST, self.port).into());
        let is_local = address.ip().to_canonical().is_loopback();
        let missing = match (self.cert.is_some(), self.keys.is_some() || self.client_ca.is_some()) {
            (true, true) => None,
            (false, true) => Some("--cert FILE and --key FILE, so that what is sent is encrypted"),
            (true, false) => Some(
                "--keys FILE or --client-ca FILE, which say who may use it ('loadline console key add' makes a key)",
            ),
            (false, false) => Some(
                "--cert FILE and --key FILE, and --keys FILE or --client-ca FILE, which say who may use it ('loadline console key add' makes a key)",
            ),
        };
        if let Some(missing) = missing.filter(|_| !is_local) {
            return Err(format!(
                "other machines reach {address}, so the console does not start there without these: give {missing}. Or leave --listen out, and \
                 use a tunnel: ssh -L 7480:127.0.0.1:7480 HOST"
            ));
        }
        let keys = self.keys.as_deref().map(Keys::open).transpose()?;
        let files = self.cert.clone().zip(self.key.clone()).map(|(certificate, key)| TlsFiles {
            certificate,
            key,
            clients: self.client_ca.clone(),
            clients_may_have_none: is_local || keys.is_some(),
        });
        let tls = files.as_ref().map(Tls::read).transpose()?;
        let certificates = self.client_ca.as_ref().map(|_| self.client_role);
        let of_certificate = tls.iter().flat_map(|tls| tls.names.iter().cloned());
        let names = self.names.iter().cloned().chain(of_certificate).collect();
        let (access, link) = match is_local {
            true => {
                let (access, link) = Access::local(user(), keys, certificates);
                (access, Some(link))
            }
            false => (Access::remote(keys, certificates), None),
        };
        Ok(Opened { address, access, tls, names, link })
    }
}

impl Opened {
    /// What the command prints when it listens at this address.
    pub(super) fn greeting(&self, address: SocketAddr) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let host = match self.names.first().filter(|_| self.tls.is_some()) {
            Some(name) => format!("{name}:{}", address.port()),
            None => address.to_string(),
        };
        let page = format!("{scheme}://{host}");
        let first = format!("the console is at {page}; Ctrl-C ends it");
        match &self.link {
            Some(link) => {
                let link = link.text();
                format!(
                    "{first}\nto act on clusters, sign in by this link, which is for you alone:\n  {page}/#/sign-in/{link}"
                )
            }
            None => first,
        }
    }
}

/// The name of the user who runs this, for events.
pub(crate) fn user() -> String {
    let id = nix::unistd::geteuid();
    let user = nix::unistd::User::from_uid(id).ok().flatten();
    user.map_or_else(|| format!("user {id}"), |user| user.name)
}
