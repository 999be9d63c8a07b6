//! Carries out the commands of the control path.

use loadline_san_core::ids::{Epoch, VolumeId};
use loadline_san_core::record::Record;
use loadline_san_core::volume::{CommandError, Event, Status};

use super::EventLoop;
use super::client::Stage;
use super::command::{LoopCommand, LoopEvent, LoopState};
use super::route::Local;
use super::tracer::{TraceOrder, Tracer};
use super::volume_host::VolumeHost;
use super::why::Why;

impl EventLoop {
    pub(super) fn carry_out(&mut self, command: LoopCommand) {
        match command {
            LoopCommand::OpenReplica(open) => {
                let id = open.id.replica;
                let opened = self.replicas.open(*open, &mut self.uring, &self.pool);
                // Opening may have taken long.
                self.now = crate::clock::now();
                let is_open = opened.is_ok();
                (self.report)(LoopEvent::Opened(id, opened));
                if is_open {
                    self.report_unusable(id);
                }
            }
            LoopCommand::CloseReplica(id) => {
                self.replicas.close(id);
                self.end_closing();
            }
            LoopCommand::Resize(id, extents) => self.replicas.resize(id, extents),
            LoopCommand::OpenVolume(open) => {
                self.volumes.open(open, self.now);
                self.step_volume(open.id, Event::Watch(open.watch));
                self.step_volume(open.id, Event::Reserve(self.reserved));
            }
            LoopCommand::CloseVolume(id) => {
                self.detached(id, &Why::Deleted);
                self.step_volume(id, Event::Detach);
                self.volumes.remove(id);
            }
            LoopCommand::Watch(id, watch) => self.step_volume(id, Event::Watch(watch)),
            LoopCommand::Attach(id) => {
                if let Some(host) = self.volumes.get_mut(id) {
                    host.claims = true;
                }
                self.step_volume(id, Event::Attach);
            }
            LoopCommand::Fence(id) => self.fence(id),
            LoopCommand::NoClients(id) => {
                if let Some(host) = self.volumes.get_mut(id) {
                    host.is_fresh = true;
                }
            }
            LoopCommand::GiveWay(id) => {
                if self.volumes.get(id).is_some_and(|host| host.claims) {
                    self.give_up(id, &Why::Elsewhere);
                }
            }
            LoopCommand::Admit(id) => self.admit(id),
            LoopCommand::Accesses(accesses) => self.end_revoked(accesses),
            LoopCommand::EndSession(session) => self.end_session(session),
            LoopCommand::Detach(id) => self.give_up(id, &Why::Detached),
            LoopCommand::HandOver(id) => self.give_up(id, &Why::HandedOver),
            LoopCommand::Ends(node) => self.peers.ends(node),
            LoopCommand::EndedSo(node) => self.peers.ended_so(node),
            LoopCommand::Volume(id, number, command, claim) => {
                let is_claim = |record: &Record| record.history.claims().last().map(|of| of.epoch) == claim;
                let host = self.volumes.get_mut(id);
                let host = host.filter(|host| claim.is_none() || host.volume.record().is_some_and(is_claim));
                let Some(host) = host else {
                    (self.report)(LoopEvent::CommandDone(number, Err(CommandError::NotOwner)));
                    return;
                };
                host.given_command = Some(number);
                self.step_volume(id, Event::Command(command));
                if let Some(host) = self.volumes.get_mut(id)
                    && let Some(number) = host.given_command.take()
                {
                    host.pending_command = Some(number);
                }
            }
            LoopCommand::Record(id, record) => {
                // An owner that was stopped while another node claimed the volume, and did no more, would never ask.
                let is_news = |host: &VolumeHost| {
                    host.volume.status() != Status::Watching
                        && host.volume.record().is_some_and(|known| known.epoch < record.epoch)
                };
                if self.volumes.get(id).is_some_and(is_news) {
                    // When it was read is not known: an older one proves nothing.
                    self.step_volume(id, Event::Seen(*record, Epoch(0)));
                }
            }
            LoopCommand::Seen(id, record, asked_at) => self.step_volume(id, Event::Seen(*record, asked_at)),
            LoopCommand::Swapped(id, proposal, answer, asked_at) => {
                self.step_volume(id, Event::Swapped(proposal, answer, asked_at));
            }
            LoopCommand::Reaches(node, reaches) => self.local.push_back(Local::Reaches(node, reaches)),
            LoopCommand::Client(new) => self.new_client(*new),
            LoopCommand::WaitingClient(new, number) => self.new_waiting(*new, number),
            LoopCommand::EndWaiting(id, why) => {
                let all = [Stage::Waits, Stage::Started, Stage::Announced];
                self.end_waiting(id, &all, &Why::NoLongerWaiting(why));
            }
            LoopCommand::Unit(id, about, reservations, wanted) => {
                self.set_unit(id, *about, *reservations, wanted);
            }
            LoopCommand::NoUnit(id) => self.remove_unit(id),
            LoopCommand::UnitChanged(client, ticket, result) => self.unit_changed(client, ticket, result),
            LoopCommand::NoPeer(node) => self.peers.remove(node),
            LoopCommand::Peer { node, name, address, certificates } => {
                self.peers.add(node, name, address, &certificates);
            }
            LoopCommand::AcceptPeer { channel, from, certificate } => {
                self.peers.accept(channel, from, certificate, &mut self.keys);
            }
            LoopCommand::Proved(node, attempt, proved) => self.peers.proved(node, attempt, proved),
            LoopCommand::Fault(device, fault) => self.replicas.fault(device, fault),
            LoopCommand::Drop(node) => self.peers.drop_all(node),
            LoopCommand::NoFaults => {
                self.peers.drop_none();
                self.replicas.no_faults();
            }
            LoopCommand::Cache(id, region) => match self.replicas.change_cache(id, region) {
                true => self.report_cache(id),
                // It is not open, so nothing is written there.
                false => (self.report)(LoopEvent::CacheGivenBack(id)),
            },
            LoopCommand::Reserve(percent, scrub) => {
                self.reserved = percent;
                self.replicas.scrub_at(scrub);
                self.volumes.ids().into_iter().for_each(|id| self.step_volume(id, Event::Reserve(percent)));
            }
            LoopCommand::Scrub(ids) => self.replicas.scrub(&ids),
            LoopCommand::Limit(id, limit) => self.volumes.limit(id, limit),
            LoopCommand::Trace(id, command) => self.trace(id, command),
            LoopCommand::ReportState => {
                // An initiator that has just lost its session is in the state as one that has lost it.
                self.report_unserved();
                (self.report)(LoopEvent::State(Box::new(self.state())));
            }
            LoopCommand::Stop => self.stopped = true,
        }
    }

    /// Follows requests of a volume. One trace of a volume is made at a time: the one before ends with what it has.
    fn trace(&mut self, id: VolumeId, command: TraceOrder) {
        if let Some(host) = self.volumes.get_mut(id)
            && let Some(before) = host.tracer.replace(Box::new(Tracer::new(command)))
        {
            before.end();
        }
    }

    /// The connections of clients were given answers: of requests that are followed, too.
    pub(super) fn answer_traced(&mut self) {
        let EventLoop { traced, volumes, front_ends, .. } = self;
        traced.retain(|id| {
            let Some(tracer) = volumes.get_mut(*id).and_then(|host| host.tracer.as_mut()) else {
                return false;
            };
            let Some(client) = tracer.unanswered() else { return false };
            // A client that does not read its answers gets this one later.
            let waits = front_ends.get(client).is_some_and(|client| client.blocked);
            if !waits {
                tracer.answered();
            }
            waits
        });
    }

    /// Ends traces that have what they are for, or their time.
    pub(super) fn end_traces(&mut self) {
        for host in self.volumes.iter_mut() {
            if let Some(tracer) = host.tracer.take_if(|tracer| tracer.has_ended()) {
                tracer.end();
            }
        }
    }

    fn state(&self) -> LoopState {
        LoopState {
            volumes: self.volumes.states(|id| self.front_ends.bound(id)),
            clients: self.front_ends.len(),
            replicas: self.replicas.states(),
            scrubs: self.replicas.scrubs(),
            initiators: self.initiators(),
            lost_initiators: self.units.lost(self.now),
            obeyed: self.units.obeyed_versions(),
        }
    }
}
