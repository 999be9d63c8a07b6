//! Clients that ask by their memory (vhost-user): virtual machines, and programs on this host.
//!
//! Their queues are looked at as long as there is something in them now and then; before the loop sleeps, they are told to say
//! so, and looked at once more.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use foldhash::fast::RandomState;
use loadline_san_core::ids::VolumeId;
use loadline_san_core::store::Tag;
use loadline_san_device::straight::Straight;
use loadline_san_device::uring::For;
use loadline_san_export::vhost::session::{Attachment, Listened, Session};
use loadline_san_store::store::Identity;

use super::EventLoop;
use super::client::{Client, Way};
use super::served::Served;
use super::sockets::MOST_TAKEN;

/// Where what is read is wanted.
pub(super) struct Guests<'a> {
    pub(super) volumes: &'a HashMap<VolumeId, Served, RandomState>,
    pub(super) clients: &'a HashMap<u32, Client, RandomState>,
}

impl Guests<'_> {
    /// Where a client waits for blocks that a replica was asked for, if it can have them put there.
    pub(super) fn straight(&self, replica: Identity, tag: Tag, block: u64, blocks: u32) -> Option<Straight> {
        let served = self.volumes.get(&replica.volume)?;
        let (request, at) = served.volume.awaited(replica.replica, tag.session, tag.job, block)?;
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
        let is_another = |client: &&Client| client.volume == volume && matches!(client.way, Way::Vhost(_));
        if self.clients.values().any(|client| is_another(&client)) {
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
        client.listed = false;
        let Way::Vhost(session) = &mut client.way else { return };
        let mut asked = std::mem::take(&mut self.asked);
        let mut listens = Ok(Listened::Watch);
        if !client.watched {
            listens = session.listen(self.now);
        }
        let taken = listens.and_then(|listened| {
            if fits && listened != Listened::End {
                session.take(&self.pool, &mut asked)?;
            }
            Ok(listened)
        });
        if let Some(served) = self.volumes.get_mut(&volume) {
            asked.drain(..).for_each(|asked| served.ask(key, asked));
        }
        self.asked = asked;
        match taken {
            Ok(Listened::End) => {
                self.hang_up(key);
                return;
            }
            Err(why) => {
                eprintln!("loadline: the virtual machine of volume {} is hung up on: {why}", volume.0);
                self.hang_up(key);
                return;
            }
            Ok(Listened::Again) => self.late.push(key),
            Ok(Listened::Watch) if !client.watched => {
                client.watched = true;
                let fd = session.socket().as_raw_fd();
                if self.uring.watch(fd, key, For::Input).is_err() {
                    self.hang_up(key);
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
        self.now = crate::clock::now();
        self.begin(volume);
    }

    fn watch_kicks(&mut self, key: u32) {
        while let Some(client) = self.clients.get_mut(&key)
            && let Way::Vhost(session) = &mut client.way
            && let Some((queue, fd)) = session.unwatched()
        {
            let kick = self.key();
            self.kicks.insert(kick, (key, queue));
            if self.uring.watch(fd, kick, For::Input).is_err() {
                self.hang_up(key);
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

    /// Waits; but no longer than until one of them has something.
    pub(super) fn wait(&mut self, limit: Duration) -> io::Result<()> {
        let EventLoop { uring, guests, clients, .. } = self;
        uring.wait_also(limit, |sleeps| {
            let mut found = false;
            guests.retain(|key| {
                let Some(client) = clients.get_mut(key) else { return false };
                let Way::Vhost(session) = &mut client.way else { return false };
                let some = if sleeps { session.wants_kicks() } else { session.has_more() };
                found |= some;
                // It will say so.
                client.looked_at = some || !sleeps;
                client.looked_at
            });
            found
        })
    }

    /// Takes what they ask while other things are done for long, such as destaging: if nothing of what they asked before is
    /// being done. (Else more comes together, which costs less.)
    pub(super) fn read_guests(&mut self) {
        for index in 0..self.guests.len() {
            let Some(key) = self.guests.get(index).copied() else { return };
            if let Some(Client { way: Way::Vhost(session), taken, volume, .. }) = self.clients.get(&key)
                && self.volumes.get(volume).is_some_and(|served| served.at_work.is_empty())
                && session.has_more()
            {
                let fits = self.taken < MOST_TAKEN || *taken == 0;
                self.read_guest(key, fits);
            }
        }
    }

    /// Those that have something are to be read.
    pub(super) fn look_at_guests(&mut self) {
        for key in std::mem::take(&mut self.broken) {
            self.hang_up(key);
        }
        for key in &self.guests {
            if let Some(client) = self.clients.get_mut(key)
                && let Way::Vhost(session) = &client.way
                && session.has_more()
                && !std::mem::replace(&mut client.listed, true)
            {
                self.readable.push_back(*key);
            }
        }
    }
}
