//! A client that waits beside the clients of a volume, until it starts (rule H1): the destination of a live migration. Its session handles
//! messages, and takes no requests.
//!
//! ```text
//!  Waits ─ its first queue runs ─▶ Started ─ the attach that the control path orders ─▶ Announced ─ let in by core ─▶ a client
//! ```
//!
//! The control path orders the attach, since the configuration must name this node first. What ends a client that waits changes nothing
//! of the volume.

use loadline_san_core::ids::VolumeId;
use loadline_san_export::front_ends::{AnySession, Opening};
use loadline_san_export::session::{Attachment, Session as _};

use super::EventLoop;
use super::client::{Client, ClientOrigin, Stage, Waiting, WaitingNews};
use super::command::{LoopEvent, NewClient};
use super::front_ends::FrontEnds;
use super::why::{MOST_CLIENTS, Why};

impl EventLoop {
    /// A client has come by the socket of the attachment of this number, which waits.
    pub(super) fn new_waiting(&mut self, new: NewClient, number: u64) {
        let origin = ClientOrigin::of(&new);
        let NewClient { channel, volume, bytes, protocol, chosen, .. } = new;
        // No attachment has this number. So what an earlier attachment has left in flight fails, and does not begin again (rule T4).
        let attachment =
            Attachment { cluster: self.options.cluster.0, volume: volume.0, number: 0, alone_since: 0 };
        let opening = Opening {
            channel,
            bytes,
            name: &origin.name,
            chosen: &chosen,
            attachment: Some(attachment),
            unit: None,
        };
        let opened = match self.front_ends.len() < MOST_CLIENTS {
            true => AnySession::open(protocol, opening).map_err(|why| Why::Refused(why.to_string())),
            false => Err(Why::TooMany),
        };
        match opened {
            Ok(session) => {
                let mut client = Client::new(session, volume, origin);
                client.waiting = Some(Waiting { number, stage: Stage::Waits });
                self.front_ends.add(self.keys.take(), client);
            }
            Err(why) => {
                origin.log_end(&why);
                (self.report)(LoopEvent::WaitingGone(volume, number));
            }
        }
    }

    /// Clients of an attachment of this volume that waits are disconnected, if they are in one of these stages.
    pub(super) fn end_waiting(&mut self, id: VolumeId, stages: &[Stage], why: &Why) {
        let ends = |client: &Client| {
            client.volume == id && client.waiting.is_some_and(|waiting| stages.contains(&waiting.stage))
        };
        self.front_ends.disconnect_all(&mut self.uring, ends, why);
        self.drop_gone();
    }

    /// An attach is carried out here. A client that has started is let in by it; one that has not, or that an earlier attach was to let
    /// in, ends as every other client does.
    pub(super) fn announce_waiting(&mut self, id: VolumeId) {
        self.end_waiting(id, &[Stage::Waits, Stage::Announced], &Why::Fenced);
        self.front_ends.announce(id);
    }

    /// The attach is carried out: this node owns the volume, and nothing of earlier clients is carried out any more.
    pub(super) fn promote_waiting(&mut self, id: VolumeId, attachment: Attachment) {
        let Some(number) = self.front_ends.promote(id, attachment) else { return };
        if let Some(host) = self.volumes.get_mut(id) {
            host.clients += 1;
        }
        (self.report)(LoopEvent::WaitingLetIn(id, number));
    }

    /// Reports what has become of clients that wait.
    pub(super) fn report_waiting(&mut self) {
        for (volume, number, news) in self.front_ends.take_waiting_news() {
            (self.report)(match news {
                WaitingNews::Started => LoopEvent::WaitingStarted(volume, number),
                WaitingNews::Gone => LoopEvent::WaitingGone(volume, number),
            });
        }
    }
}

impl FrontEnds {
    /// A client that waits has started, if its session has.
    pub(super) fn note_start(&mut self, key: u32) {
        if let Some(client) = self.get_mut(key)
            && let Some(waiting) = &mut client.waiting
            && waiting.stage == Stage::Waits
            && client.session.has_started()
        {
            waiting.stage = Stage::Started;
            let news = (client.volume, waiting.number, WaitingNews::Started);
            self.add_waiting_news(news);
        }
    }

    fn announce(&mut self, volume: VolumeId) {
        for client in self.of_volume(volume) {
            if let Some(waiting) = client.waiting.as_mut().filter(|waiting| waiting.stage == Stage::Started) {
                waiting.stage = Stage::Announced;
            }
        }
    }

    /// The client that was announced is one like others from now on. Returns the number of its attachment.
    fn promote(&mut self, volume: VolumeId, attachment: Attachment) -> Option<u64> {
        let is_announced = |client: &Client| {
            client.volume == volume && client.waiting.is_some_and(|waiting| waiting.stage == Stage::Announced)
        };
        let key = self.find(is_announced)?;
        let client = self.get_mut(key)?;
        let waiting = client.waiting.take()?;
        client.session.attached(attachment);
        // Its queues are polled from now on, and what is there already is taken at once.
        (client.paused, client.next) = (false, true);
        self.receive_soon(key);
        Some(waiting.number)
    }
}
