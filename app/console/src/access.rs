//! What each sender of a request may do at the console, and how it proves what it is.
//!
//! | sender | its proof | may |
//! | --- | --- | --- |
//! | any program on this machine, if the console has neither keys nor certificates | nothing | see |
//! | a browser of the user who started the console | the link that the console prints when it starts | everything |
//! | a browser or a program with a sign-in key | the key: a browser signs in with it, a program sends it with each request | what the key's role allows |
//! | a browser or a program with a certificate of the clients' authority | the certificate, which TLS checks | what the role of certificates allows |
//!
//! | module | idea |
//! | --- | --- |
//! | [`role`] | what a sender may do |
//! | [`keys`] | the file of sign-in keys |
//! | [`secret`] | random secrets, and what is kept of them |
//! | `sessions` | browsers that have signed in |
//! | `attempts` | wrong keys |

pub(crate) mod attempts;
pub mod keys;
pub mod role;
pub mod secret;
pub(crate) mod sessions;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use attempts::Attempts;
use keys::Keys;
use role::Role;
use secret::{Digest, Secret};
use sessions::{Begun, Sessions};

/// The sender of a request, as its connection shows.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// The SHA-256 of its certificate, which TLS has checked.
    pub certificate: Option<Digest>,
}

impl Default for Peer {
    fn default() -> Peer {
        Peer { address: Ipv4Addr::LOCALHOST.into(), certificate: None }
    }
}

/// What a sender is let in by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The link that was printed at the start.
    Link,
    /// A key, by its hash.
    Key(Digest),
    /// A certificate, by its hash.
    Certificate(Digest),
}

/// A sender that has proved its identity, and what it may do.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Its name, for people: letters, digits and a few marks.
    pub name: String,
    /// What it may do.
    pub role: Role,
    pub(crate) proof: Proof,
}

/// The sender of a request, which has proved what it is.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its name, its role, and its proof.
    pub holder: Holder,
    /// The session by which it was let in, if it was one.
    pub(crate) session: Option<SessionOf>,
}

/// The session of a request.
#[derive(Debug, Clone)]
pub(crate) struct SessionOf {
    pub(crate) cookie: Digest,
    pub(crate) csrf: Digest,
}

/// Why a proof is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such key.
    Wrong,
    /// There were too many wrong ones: for so long, none is looked at.
    TooMany(Duration),
}

/// The proofs that a console takes, and what each allows.
#[derive(Debug)]
pub struct Access {
    /// Any sender may see, without a proof.
    viewing_is_free: bool,
    /// The hash of the link's key, and the name of its owner.
    link: Option<(Digest, String)>,
    keys: Option<Keys>,
    /// What the owner of a certificate may do.
    certificates: Option<Role>,
    sessions: Sessions,
    attempts: Attempts,
}

impl Access {
    /// The access to a console that listens on this machine alone, and the key of its sign-in link. The holder of the link may do everything. If
    /// there are neither keys nor certificates, all users of this machine may see. `user` is the name of the person who started the console.
    pub fn local(user: String, keys: Option<Keys>, certificates: Option<Role>) -> (Access, Secret) {
        let secret = Secret::new();
        let link = Some((secret.digest(), user));
        let viewing_is_free = keys.is_none() && certificates.is_none();
        (Access { viewing_is_free, link, ..Access::remote(keys, certificates) }, secret)
    }

    /// Of a console that other machines reach.
    pub fn remote(keys: Option<Keys>, certificates: Option<Role>) -> Access {
        Access {
            viewing_is_free: false,
            link: None,
            keys,
            certificates,
            sessions: Sessions::default(),
            attempts: Attempts::default(),
        }
    }

    /// Whether any sender may see, without a proof.
    pub fn viewing_is_free(&self) -> bool {
        self.viewing_is_free
    }

    /// How one can sign in, for people.
    pub(crate) fn how_to_sign_in(&self) -> &'static str {
        match (self.link.is_some(), self.keys.is_some()) {
            (true, false) => "Open the link that 'loadline console' printed when it started.",
            (true, true) => {
                "Open the link that 'loadline console' printed when it started, or sign in with a key."
            }
            (false, true) => "Sign in with a key, which 'loadline console key add' makes.",
            (false, false) => "Choose the certificate in your browser.",
        }
    }

    /// The holder of this secret: a key, or that of the link.
    fn holder_of(&self, secret: &str) -> Option<Holder> {
        let digest = Digest::of(secret);
        let link = self.link.as_ref().filter(|(link, _)| *link == digest);
        if let Some((_, user)) = link {
            return Some(Holder { name: user.clone(), role: Role::Admin, proof: Proof::Link });
        }
        let key = self.keys.as_ref()?.find(&digest)?;
        Some(Holder { name: key.name, role: key.role, proof: Proof::Key(digest) })
    }

    /// The holder of this certificate.
    pub(crate) fn holder_of_certificate(&self, peer: &Peer) -> Option<Holder> {
        let (role, digest) = (self.certificates?, peer.certificate?);
        let name = format!("certificate-{}", &digest.to_string()[..16]);
        Some(Holder { name, role, proof: Proof::Certificate(digest) })
    }

    /// The holder of this key, which was sent from this address. Wrong keys are counted.
    pub(crate) fn try_key(&self, peer: &Peer, key: &str, now: Instant) -> Result<Holder, Refused> {
        if let Some(wait) = self.attempts.refused_for(peer.address, now) {
            return Err(Refused::TooMany(wait));
        }
        match self.holder_of(key) {
            Some(holder) => Ok(holder),
            None => Err(self.attempts.add(peer.address, now).map_or(Refused::Wrong, Refused::TooMany)),
        }
    }

    /// Begins a session.
    pub(crate) fn begin(&self, holder: Holder, now: Instant) -> Begun {
        self.sessions.begin(holder, now)
    }

    /// The holder of the session with this cookie, with the role that its key has now. `None` if the key was removed.
    pub(crate) fn caller_of_cookie(&self, peer: &Peer, cookie: &str, now: Instant) -> Option<Caller> {
        let cookie = Digest::of(cookie);
        let (holder, csrf) = self.sessions.find(&cookie, now)?;
        let holder = self.as_now(peer, holder)?;
        Some(Caller { holder, session: Some(SessionOf { cookie, csrf }) })
    }

    fn as_now(&self, peer: &Peer, holder: Holder) -> Option<Holder> {
        match &holder.proof {
            Proof::Link => Some(holder),
            Proof::Key(digest) => {
                let key = self.keys.as_ref()?.find(digest)?;
                Some(Holder { name: key.name, role: key.role, proof: holder.proof })
            }
            // The session of a certificate is used with it alone.
            Proof::Certificate(digest) => (peer.certificate == Some(*digest)).then_some(holder),
        }
    }

    /// Whether a sender that was let in still is.
    pub(crate) fn is_let_in(&self, peer: &Peer, caller: &Caller, now: Instant) -> bool {
        let has_session =
            caller.session.as_ref().is_none_or(|session| self.sessions.find(&session.cookie, now).is_some());
        has_session && self.as_now(peer, caller.holder.clone()).is_some()
    }

    /// Ends the session that a sender was let in by, if there is one.
    pub(crate) fn end(&self, caller: &Caller) {
        if let Some(session) = &caller.session {
            self.sessions.end(&session.cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elsewhere() -> Peer {
        Peer { address: Ipv4Addr::new(10, 0, 0, 1).into(), certificate: None }
    }

    #[test]
    fn the_link_lets_in_as_admin_and_a_key_with_its_role_until_its_line_is_removed() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("keys");
        let key = keys::add(&path, Role::Viewer, "anna").expect("it can be written");
        let (access, link) = Access::local("root".into(), Some(Keys::open(&path).expect("it has one")), None);
        assert!(!access.viewing_is_free(), "keys are made to be asked for");
        let now = Instant::now();
        let by_link = access.try_key(&Peer::default(), link.text(), now).expect("it is the link's");
        assert_eq!((by_link.name.as_str(), by_link.role), ("root", Role::Admin));
        let by_key = access.try_key(&elsewhere(), key.text(), now).expect("it is anna's");
        assert_eq!((by_key.name.as_str(), by_key.role), ("anna", Role::Viewer));
        let begun = access.begin(by_key, now);
        let caller = |access: &Access| access.caller_of_cookie(&elsewhere(), begun.cookie.text(), now);
        let anna = caller(&access).expect("it has begun");
        assert!(access.is_let_in(&elsewhere(), &anna, now));
        assert!(!access.is_let_in(&elsewhere(), &anna, now + sessions::LIFE), "its session has ended");
        // Another role, and then none.
        let text = std::fs::read_to_string(&path).expect("it is there");
        std::fs::write(&path, text.replace("viewer", "operator")).expect("there is room");
        assert_eq!(caller(&access).map(|caller| caller.holder.role), Some(Role::Operator));
        std::fs::write(&path, "").expect("there is room");
        assert!(caller(&access).is_none() && !access.is_let_in(&elsewhere(), &anna, now));
    }

    #[test]
    fn after_ten_wrong_keys_a_valid_one_of_the_same_address_waits_too() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("keys");
        let key = keys::add(&path, Role::Viewer, "anna").expect("it can be written");
        let access = Access::remote(Some(Keys::open(&path).expect("it has one")), None);
        let now = Instant::now();
        for _ in 0..10 {
            assert_eq!(access.try_key(&elsewhere(), "wrong", now).err(), Some(Refused::Wrong));
        }
        assert!(matches!(access.try_key(&elsewhere(), key.text(), now), Err(Refused::TooMany(_))));
        let other = Peer { address: Ipv4Addr::new(10, 0, 0, 2).into(), certificate: None };
        assert!(access.try_key(&other, key.text(), now).is_ok());
        assert!(access.try_key(&elsewhere(), key.text(), now + Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn the_session_of_a_certificate_is_used_with_it_alone() {
        let access = Access::remote(None, Some(Role::Operator));
        let with = |text: &str| Peer { certificate: Some(Digest::of(text)), ..elsewhere() };
        let now = Instant::now();
        assert!(access.holder_of_certificate(&elsewhere()).is_none());
        let holder = access.holder_of_certificate(&with("a")).expect("it has one");
        assert!(holder.role == Role::Operator && holder.name.starts_with("certificate-"));
        let begun = access.begin(holder, now);
        assert!(access.caller_of_cookie(&with("a"), begun.cookie.text(), now).is_some());
        assert!(access.caller_of_cookie(&with("b"), begun.cookie.text(), now).is_none());
        assert!(access.caller_of_cookie(&elsewhere(), begun.cookie.text(), now).is_none());
        let without = Access::remote(None, None);
        assert!(without.holder_of_certificate(&with("a")).is_none());
    }
}
