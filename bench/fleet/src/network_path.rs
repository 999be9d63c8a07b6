//! The network between two workers, as the controller has it measured: one listens, the other one dials it.

use std::net::IpAddr;

use crate::controller::Controller;
use crate::error::FleetError;
use crate::identity::WorkerId;
use crate::network::NetworkPathSpeed;
use crate::operation::SHORT_ORDER;
use crate::token::Digits;
use crate::wire::{Reply, WorkerOrder};

/// A path through the network, from one worker to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPath {
    /// The worker that sends.
    pub from: WorkerId,
    /// The worker that receives.
    pub to: WorkerId,
    /// The address of its host that the receiver listens on; that of its connection to the controller if none is given.
    pub ip: Option<IpAddr>,
}

impl Controller {
    /// Measures one path. If it cannot be measured, the inner error says why; no worker counts as lost.
    pub(crate) async fn measure_path(
        &mut self,
        path: &NetworkPath,
    ) -> Result<Result<NetworkPathSpeed, String>, FleetError> {
        let key = Digits::random()?;
        let order = WorkerOrder::Listen { ip: path.ip, key };
        let listening = |reply| match reply {
            Reply::Listening { address } => Some(Ok(address)),
            Reply::NoWay { why } => Some(Err(why)),
            _ => None,
        };
        let address = match self.one(&path.to, order, listening).await? {
            Ok(address) => address,
            Err(why) => return Ok(Err(why)),
        };
        let measured = |reply| match reply {
            Reply::Network(speed) => Some(Ok(speed)),
            Reply::NoWay { why } => Some(Err(why)),
            _ => None,
        };
        let order = WorkerOrder::MeasureNetwork { address, key };
        let speed = self.one(&path.from, order, measured).await;
        if !matches!(speed, Ok(Ok(_))) {
            // No worker dials it any more.
            self.stop_work([path.to.clone()].into()).await;
        }
        speed
    }

    /// Gives one worker its part of a measurement, and waits for the reply.
    async fn one<T>(
        &mut self,
        worker: &WorkerId,
        order: WorkerOrder,
        finish: impl Fn(Reply) -> Option<Result<T, String>>,
    ) -> Result<Result<T, String>, FleetError> {
        let orders = [(worker.clone(), order)].into();
        let done = self.carry_out(orders, SHORT_ORDER, None, finish).await?.remove(worker);
        Ok(match done {
            Some(Ok(result)) => result,
            Some(Err(loss)) => Err(format!("worker {worker}: {}", loss.message)),
            None => Err(format!("worker {worker} sent no reply")),
        })
    }
}
