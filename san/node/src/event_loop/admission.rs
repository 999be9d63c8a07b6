//! Clients are let in to volumes.

use loadline_san_core::ids::VolumeId;
use loadline_san_core::lease::Moment;
use loadline_san_core::volume::{Event, Status};
use loadline_san_export::front_ends::{AnySession, Opening};

use super::EventLoop;
use super::client::{Client, ClientOrigin};
use super::command::NewClient;
use super::why::{Why, has_room, is_stranger, refuse};
use crate::node::sockets::is_closed;

impl EventLoop {
    /// A client has come. It may send requests when the record of the volume counts it: a client that came to another node before
    /// may still have something waiting there (rule T12). A client that chose the volume before an attach is disconnected.
    pub(super) fn new_client(&mut self, new: NewClient) {
        let id = new.volume;
        let is_served = self.volumes.get(id).is_some_and(|host| host.attached);
        if new.protocol.stands_by() && !is_served {
            return self.new_standby(new);
        }
        let Some(host) = self.volumes.get_mut(id) else { return refuse(new, &Why::Deleted) };
        // It has moved since, or was detached.
        if !host.attached {
            return refuse(new, &Why::Detached);
        }
        if host.is_old(&new) {
            return refuse(new, &Why::Old);
        }
        let (front_ends, waiting) = (&self.front_ends, || host.arriving.iter().chain(&host.announced));
        let is_new_stranger = |new: &NewClient| is_stranger(new.certificate.as_deref(), &new.from);
        let of = |(other, _): &&(NewClient, Moment)| is_new_stranger(other);
        let strangers = || front_ends.strangers() + waiting().chain(self.units.all_held()).filter(of).count();
        let all = front_ends.len() + waiting().count() + self.units.all_held().count();
        if !has_room(all, strangers, is_new_stranger(&new)) {
            return refuse(new, &Why::TooMany);
        }
        host.arriving.push((new, self.now));
        if host.announced.is_empty() {
            host.announced.append(&mut host.arriving);
            self.step_volume(id, Event::Attach);
        }
    }

    /// Those that were announced may request. Whether others have come since, which are announced now.
    pub(super) fn let_in(&mut self, id: VolumeId) -> bool {
        let Some(host) = self.volumes.get_mut(id) else { return false };
        let coming = std::mem::take(&mut host.arriving);
        let come = std::mem::replace(&mut host.announced, coming);
        let more = !host.announced.is_empty();
        for (new, since) in come {
            let Some(host) = self.volumes.get_mut(id) else { return false };
            if host.is_old(&new) {
                refuse(new, &Why::Old);
                continue;
            }
            // What it sent before it went is not carried out (rule T13).
            if is_closed(&new.channel) {
                refuse(new, &Why::CLOSED);
                continue;
            }
            match new.protocol.stands_by() {
                true => self.hold_for_unit(new, since),
                false => self.open_session(new),
            }
        }
        self.unit_attached(id);
        more
    }

    fn open_session(&mut self, new: NewClient) {
        let origin = ClientOrigin::of(&new);
        let NewClient { channel, volume, bytes, protocol, chosen, .. } = new;
        if protocol.is_exclusive() && self.front_ends.has(volume, protocol) {
            let why = "another virtual machine is connected to the volume; only one virtual machine can use a volume";
            return origin.log_end(&Why::Refused(why.into()));
        }
        let attachment = self.volumes.attachment(volume);
        let opening = Opening { channel, bytes, name: &origin.name, chosen: &chosen, attachment, unit: None };
        match AnySession::open(protocol, opening) {
            Ok(session) => {
                if let Some(host) = self.volumes.get_mut(volume) {
                    host.clients += 1;
                }
                self.front_ends.add(self.keys.take(), Client::new(session, volume, origin));
            }
            Err(why) => origin.log_end(&Why::Refused(why.to_string())),
        }
    }

    /// Clients have come to a volume. They do not make this node take it from another.
    pub(super) fn admit(&mut self, id: VolumeId) {
        let owned = |status| !matches!(status, Status::Watching | Status::Blocked);
        if self.volumes.get(id).is_some_and(|host| owned(host.volume.status())) {
            self.step_volume(id, Event::Attach);
        }
    }
}
