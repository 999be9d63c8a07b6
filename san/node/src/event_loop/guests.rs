//! Clients that ask by their memory (vhost-user): virtual machines, and programs on this host.
//!
//! Their queues are looked at as long as there is something in them now and then; before the loop sleeps, they are told to say
//! so, and looked at once more.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use foldhash::fast::RandomState;
use loadline_san_core::ids::{Owner, VolumeId};
use loadline_san_core::message::Job;
use loadline_san_device::straight::Straight;
use loadline_san_device::uring::For;
use loadline_san_export::vhost::session::{Attachment, Listened, Session, Watch};
use loadline_san_store::store::Identity;

use super::EventLoop;
use super::client::{Client, Way};
use super::leave::Why;
use super::served::Served;
use super::sockets::MOST_TAKEN;

/// Where what is read is wanted.
pub(super) struct Guests<'a> {
    pub(super) volumes: &'a HashMap<VolumeId, Served, RandomState>,
    pub(super) clients: &'a HashMap<u32, Client, RandomState>,
    pub(super) me: Owner,
}

impl Guests<'_> {
    /// Where a client waits for blocks that a replica was asked for, if it can have them put there.
    pub(super) fn straight(
        &self,
        replica: Identity,
        (owner, session): (Owner, u64),
        job: Job,
        block: u64,
        blocks: u32,
    ) -> Option<Straight> {
        let served = self.volumes.get(&replica.volume).filter(|_| owner == self.me)?;
        let (request, at) = served.volume.awaited(replica.replica, session, job, block)?;
        let at_work = served.at_work.get(&request)?;
        match &self.clients.get(&at_work.client)?.way {
            Way::Vhost(session) => session.straight(at_work.slot, at, blocks),
            Way::Nbd(..) => None,
        }
    }
}

impl EventLoop {
    /// Another one has come. A volume has one at a time.
    pub(super) fn guest(
        &mut self,
        socket: OwnedFd,
        volume: VolumeId,
        bytes: u64,
        name: &str,
    ) -> io::Result<Session> {
        let has_it = |client: &Client| client.volume == volume && matches!(client.way, Way::Vhost(_));
        if self.clients.values().any(has_it) {
            return Err(io::Error::other("another one has it; a volume is one virtual machine's disk"));
        }
        let attachment = self.attachment(volume).ok_or_else(|| io::Error::other("it is not owned here"))?;
        Session::new(socket, bytes, name, attachment)
    }

    fn attachment(&self, id: VolumeId) -> Option<Attachment> {
        let (number, alone_since) = self.volumes.get(&id)?.volume.attachment()?;
        let cluster = self.options.cluster.0;
        Some(Attachment { cluster, volume: id.0, number, alone_since })
    }

    /// Others have been let in to the volume of those that are here.
    pub(super) fn attached_anew(&mut self, id: VolumeId) {
        let Some(attachment) = self.attachment(id) else { return };
        for client in self.clients.values_mut().filter(|client| client.volume == id) {
            if let Way::Vhost(session) = &mut client.way {
                session.attached(attachment);
            }
        }
    }

    /// Listens to one, and takes what it asks. `fits`: there is memory for it.
    pub(super) fn read_guest(&mut self, key: u32, fits: bool) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let volume = client.volume;
        (client.listed, client.paused) = (false, !fits);
        let Way::Vhost(session) = &mut client.way else { return };
        let mut asked = std::mem::take(&mut self.asked);
        let mut listens = Ok(Listened::Watch);
        if !client.watched {
            listens = session.listen(crate::clock::now());
        }
        let taken = listens.and_then(|listened| {
            if fits && listened != Listened::End {
                session.take(&self.pool, &mut asked)?;
            }
            Ok(listened)
        });
        if let Some(served) = self.volumes.get_mut(&volume) {
            asked.drain(..).for_each(|asked| served.ask(key, asked, self.now));
        }
        self.asked = asked;
        match taken {
            Ok(Listened::End) => {
                self.disconnect(key, &Why::Closed);
                return;
            }
            Err(why) => {
                self.disconnect(key, &Why::Protocol(why.to_string()));
                return;
            }
            Ok(Listened::Again) if !std::mem::replace(&mut client.late, true) => self.late.push(key),
            Ok(Listened::Again) => {}
            Ok(Listened::More) => self.readable.push_back(key),
            Ok(Listened::Watch) if !client.watched => {
                client.watched = true;
                let fd = session.socket().as_raw_fd();
                if let Err(why) = self.uring.watch(fd, key, For::Input) {
                    self.disconnect(key, &Why::Watch(why.to_string()));
                    return;
                }
            }
            Ok(Listened::Watch) => {}
        }
        if !std::mem::replace(&mut client.looked_at, true) {
            self.guests.push(key);
        }
        // What is refused is answered at once.
        self.answered.push(key);
        self.watch_kicks(key);
        self.begin_soon(volume);
    }

    /// Watches by what its queues say that there is something, each by a key that stays its own.
    fn watch_kicks(&mut self, key: u32) {
        while let Some(client) = self.clients.get_mut(&key)
            && let Way::Vhost(session) = &mut client.way
            && let Some((queue, watch)) = session.unwatched()
        {
            let kick = match client.kicks.get(queue as usize).copied().flatten() {
                Some(kick) => kick,
                None => {
                    let kick = self.next_key;
                    self.next_key += 1;
                    client.kicks.resize(client.kicks.len().max(queue as usize + 1), None);
                    client.kicks[queue as usize] = Some(kick);
                    self.kicks.insert(kick, (key, queue));
                    kick
                }
            };
            let watched = match watch {
                Watch::These(fd) => self.uring.watch(fd, kick, For::Input),
                Watch::NoMore => self.uring.unwatch(kick),
            };
            if let Err(why) = watched {
                self.disconnect(key, &Why::Watch(why.to_string()));
            }
        }
    }

    /// It has gone: nothing of it is watched any more.
    pub(super) fn forget_bells(&mut self, key: u32, client: &Client) {
        let _ = self.uring.forget_bells(key);
        for kick in client.kicks.iter().flatten() {
            self.kicks.remove(kick);
            // If the queue is full for good, so is everything else.
            let _ = self.uring.unwatch(*kick);
        }
    }

    /// Tells one what was answered, if it wants to know.
    pub(super) fn tell_guest(&mut self, key: u32) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let Way::Vhost(session) = &mut client.way else { return };
        let (uring, mut failed) = (&mut self.uring, false);
        let mut some = false;
        session.tell(|fd| {
            failed |= uring.ring_bell(fd, key).is_err();
            some = true;
        });
        // At once: the descriptor may be closed soon.
        if failed || some && uring.submit().is_err() {
            self.disconnect(key, &Why::Protocol("it does not take the news of what was answered".into()));
        }
    }

    /// One that had said only a part of something, or waited for what was in flight.
    pub(super) fn take_late(&mut self) {
        for key in self.late.drain(..) {
            if let Some(client) = self.clients.get_mut(&key) {
                client.late = false;
                self.readable.push_back(key);
            }
        }
    }

    /// One says that there is something.
    pub(super) fn kicked(&mut self, key: u32, queue: u16) {
        if let Some(client) = self.clients.get_mut(&key)
            && let Way::Vhost(session) = &mut client.way
        {
            session.kicked(queue);
            self.readable.push_back(key);
        }
    }

    /// Takes what they ask while other things are done for long, such as destaging: if nothing of what they asked before is
    /// being done. (Else more comes together, which costs less.)
    pub(super) fn read_guests(&mut self) {
        for index in 0..self.guests.len() {
            let Some(key) = self.guests.get(index).copied() else { return };
            if let Some(Client { way: Way::Vhost(session), taken, volume, .. }) = self.clients.get(&key)
                && self.volumes.get(volume).is_some_and(|served| served.at_work.is_empty())
                && (self.taken < MOST_TAKEN || *taken == 0)
                && session.has_more()
            {
                self.read_guest(key, true);
            }
        }
    }

    /// Those that have something are to be read.
    pub(super) fn look_at_guests(&mut self) {
        for (key, why) in std::mem::take(&mut self.broken) {
            self.disconnect(key, &why);
        }
        for key in &self.guests {
            if let Some(client) = self.clients.get_mut(key)
                && let Way::Vhost(session) = &client.way
                && (self.taken < MOST_TAKEN || client.taken == 0)
                && session.has_more()
                && !std::mem::replace(&mut client.listed, true)
            {
                self.readable.push_back(*key);
            }
        }
    }
}
