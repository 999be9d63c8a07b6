//! A portal with one volume in memory, for programs of others: a thread that does what a node does for its initiators.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use loadline_san_core::lease::Moment;
use loadline_san_device::pool::Pool;
use loadline_san_export::block::BlockRequest;
use loadline_san_export::iscsi::connection::Connection;
use loadline_san_export::iscsi::login::TargetLogin;
use loadline_san_export::login::{Chosen, Export, Initiator, Login as _, LoginStep, Refusal};
use loadline_san_export::scsi::reservations::Reservations;
use loadline_san_export::scsi::task::{Change, ChangeFailed};
use loadline_san_export::scsi::unit::SharedUnit;
use loadline_san_export::session::{Next, Receiving, Session as _};
use loadline_san_transport::channel::Channel;

use crate::initiator::{BYTES, Volume, pool, unit};

/// The portal. It ends when it is dropped.
pub(crate) struct Portal {
    pub(crate) address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Portal {
    /// Listens at an address of this machine. These initiators are known; others are let in, too, if `is_local`.
    pub(crate) fn new(initiators: Vec<Initiator>, is_local: bool) -> Portal {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address is free");
        listener.set_nonblocking(true).expect("it does not block");
        let address = listener.local_addr().expect("it is bound");
        let ends = Arc::new(AtomicBool::new(false));
        let export = Export {
            bytes: BYTES as u64,
            most: 4 << 20,
            portals: vec![(address, 1)],
            group: 1,
            initiators,
            ..Export::default()
        };
        let thread = std::thread::spawn({
            let ends = ends.clone();
            move || Serving::new(listener, export, is_local).run(&ends)
        });
        Portal { address, ends, thread: Some(thread) }
    }

    /// The URI of the volume, of this user if any.
    pub(crate) fn uri(&self, user: &str) -> String {
        let user = if user.is_empty() { String::new() } else { format!("{user}@") };
        format!("iscsi://{user}{}/iqn.2026-01.org.loadline:vol/0", self.address)
    }
}

impl Drop for Portal {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended
            && !std::thread::panicking()
        {
            panic!("the portal has panicked");
        }
    }
}

enum Client {
    Login(TcpStream, Box<TargetLogin>),
    Session(Box<Connection>, Vec<BlockRequest>),
}

struct Serving {
    listener: TcpListener,
    export: Export,
    is_local: bool,
    clients: Vec<Client>,
    unit: SharedUnit,
    volume: Volume,
    pool: Pool,
    reservations: Reservations,
}

impl Serving {
    fn new(listener: TcpListener, export: Export, is_local: bool) -> Serving {
        let pool = pool();
        let (volume, clients, reservations) = (Volume::new(&pool), Vec::new(), Reservations::default());
        Serving { listener, export, is_local, clients, unit: unit(), volume, pool, reservations }
    }

    fn run(mut self, ends: &AtomicBool) {
        while !ends.load(Ordering::Relaxed) {
            while let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(true).expect("it does not block");
                stream.set_nodelay(true).expect("it is TCP");
                self.clients.push(Client::Login(stream, Box::new(TargetLogin::new(self.is_local))));
            }
            let mut has_worked = false;
            for client in std::mem::take(&mut self.clients) {
                let (client, worked) = match client {
                    Client::Login(stream, login) => self.log_in(stream, login),
                    Client::Session(connection, requests) => self.serve(connection, requests),
                };
                has_worked |= worked;
                self.clients.extend(client);
            }
            if !has_worked {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    fn log_in(&mut self, mut stream: TcpStream, mut login: Box<TargetLogin>) -> (Option<Client>, bool) {
        let mut some = [0; 4096];
        loop {
            let step = login.step();
            if stream.write_all(&login.take_output()).is_err() {
                return (None, true);
            }
            match step {
                Ok(LoginStep::Bytes) => match stream.read(&mut some) {
                    Ok(0) => return (None, true),
                    Ok(read) => login.feed(&some[..read]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        return (Some(Client::Login(stream, login)), false);
                    }
                    Err(_) => return (None, true),
                },
                Ok(LoginStep::List) => login.list(&[("vol".into(), self.export.clone())]),
                Ok(LoginStep::Export(name)) => {
                    let found = match name.as_str() {
                        "vol" => Ok(&self.export),
                        _ => Err(Refusal::Unknown("there is none".into())),
                    };
                    login.export(found).expect("an initiator reads why");
                }
                Ok(LoginStep::Chosen(chosen)) => return (Some(self.open(stream, &chosen)), true),
                Ok(LoginStep::Gone | LoginStep::StartTls) | Err(_) => return (None, true),
            }
        }
    }

    fn open(&self, stream: TcpStream, chosen: &Chosen) -> Client {
        let channel = Channel::plain(OwnedFd::from(stream));
        let connection = Connection::new(channel, "vol", chosen, self.unit.clone(), true);
        Client::Session(Box::new(connection.expect("it is of this version")), Vec::new())
    }

    fn serve(
        &mut self,
        mut connection: Box<Connection>,
        mut requests: Vec<BlockRequest>,
    ) -> (Option<Client>, bool) {
        let mut from = Receiving {
            pool: &self.pool,
            now: Moment(0),
            accepts: true,
            is_ready: true,
            requests: &mut requests,
        };
        let Ok(next) = connection.receive(&mut from) else { return (None, true) };
        let mut changes = Vec::new();
        connection.take_changes(&mut changes);
        let has_worked = next == Next::More || !requests.is_empty() || !changes.is_empty();
        for (ticket, change) in changes {
            let made = self.change(change);
            connection.changed(ticket, made);
        }
        for request in std::mem::take(&mut requests) {
            if self.volume.carry_out(&mut connection, request, 16).is_err() {
                return (None, true);
            }
        }
        if connection.send(true, |_| {}).is_err() {
            return (None, true);
        }
        (Some(Client::Session(connection, requests)), has_worked)
    }

    fn change(&mut self, change: Change) -> Result<(), ChangeFailed> {
        match change {
            Change::Reserve { from, to, .. } if self.reservations == from => {
                self.reservations = to;
                self.unit.borrow_mut().learn(self.reservations.clone());
                Ok(())
            }
            Change::Reserve { .. } => {
                self.unit.borrow_mut().learn(self.reservations.clone());
                Err(ChangeFailed::Differs)
            }
            Change::Activate(_) => Ok(()),
        }
    }
}
