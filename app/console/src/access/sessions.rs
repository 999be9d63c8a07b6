//! Sessions of browsers that have signed in. A session ends after 12 hours, when its browser signs out, and with the console.
//!
//! A session has two secrets. The browser sends one as a cookie with each request. The page has the other, in its own storage, and sends it
//! with what changes something. A browser sends a cookie to every port of a host, also to a server of another user of the machine; the
//! page's storage is of one port alone. So the cookie alone changes nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Holder;
use super::secret::{Digest, Secret};

/// How long a session lasts.
pub(crate) const LIFE: Duration = Duration::from_secs(12 * 3600);
/// Sessions at most; a further one ends the one that ends first.
const MOST: usize = 1000;
/// Sessions at most that one key, certificate or link has begun.
const MOST_OF_ONE: usize = 20;

/// A session.
#[derive(Debug, Clone)]
struct Session {
    holder: Holder,
    csrf: Digest,
    ends: Instant,
}

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<BTreeMap<[u8; 32], Session>>);

/// The secrets of a session that has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    /// For the cookie.
    pub(crate) cookie: Secret,
    /// For the page.
    pub(crate) csrf: Secret,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session.
    pub(super) fn begin(&self, holder: Holder, now: Instant) -> Begun {
        let begun = Begun { cookie: Secret::new(), csrf: Secret::new() };
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.ends > now);
        let of_one = sessions.values().filter(|session| session.holder.proof == holder.proof).count();
        let first = |sessions: &BTreeMap<[u8; 32], Session>, all: bool| {
            let candidates = sessions.iter().filter(|(_, of)| all || of.holder.proof == holder.proof);
            candidates.min_by_key(|(_, of)| of.ends).map(|(id, _)| *id)
        };
        let ends = match (of_one >= MOST_OF_ONE, sessions.len() >= MOST) {
            (true, _) => first(&sessions, false),
            (false, true) => first(&sessions, true),
            (false, false) => None,
        };
        if let Some(id) = ends {
            sessions.remove(&id);
        }
        let session = Session { holder, csrf: begun.csrf.digest(), ends: now + LIFE };
        sessions.insert(begun.cookie.digest().bytes(), session);
        begun
    }

    /// The holder of the session with this cookie, and what is kept of the page's secret.
    pub(super) fn find(&self, cookie: &Digest, now: Instant) -> Option<(Holder, Digest)> {
        let sessions = self.lock();
        let session = sessions.get(&cookie.bytes()).filter(|session| session.ends > now)?;
        Some((session.holder.clone(), session.csrf))
    }

    /// The session with this cookie ends.
    pub(super) fn end(&self, cookie: &Digest) {
        self.lock().remove(&cookie.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Proof;
    use super::super::role::Role;
    use super::*;

    fn holder(number: usize) -> Holder {
        Holder { name: "a".into(), role: Role::Viewer, proof: Proof::Key(Digest::of(&number.to_string())) }
    }

    #[test]
    fn a_session_ends_after_its_time_and_when_it_is_ended() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let [one, other] = [0, 1].map(|number| sessions.begin(holder(number), now));
        let is_there = |of: &Begun, at| sessions.find(&of.cookie.digest(), at).is_some();
        assert!(is_there(&one, now) && is_there(&one, now + LIFE - Duration::from_secs(1)));
        assert!(!is_there(&one, now + LIFE));
        sessions.end(&one.cookie.digest());
        assert!(!is_there(&one, now) && is_there(&other, now));
        assert!(sessions.find(&one.csrf.digest(), now).is_none());
    }

    #[test]
    fn sessions_are_bounded_and_one_key_displaces_its_own() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let at = |number: usize| now + Duration::from_millis(number as u64);
        let kept = sessions.begin(holder(0), now);
        let all: Vec<Begun> = (0..=MOST_OF_ONE).map(|number| sessions.begin(holder(1), at(number))).collect();
        let is_there = |of: &Begun| sessions.find(&of.cookie.digest(), now).is_some();
        assert!(is_there(&kept) && !is_there(&all[0]) && all[1..].iter().all(is_there));
        for number in 2..MOST + 10 {
            sessions.begin(holder(number), at(number));
        }
        assert!(sessions.lock().len() == MOST && !is_there(&kept));
    }
}
