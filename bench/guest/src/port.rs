//! What a session sends to its machine: one thread writes it to the machine's port, so that nothing but the session's input waits for a
//! machine that does not read. Orders are sent before input that waits.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::control::{self, ToMachine};
use crate::session::{INPUT, Size};

#[derive(Debug, Default)]
struct State {
    orders: VecDeque<ToMachine>,
    /// The size of the terminal, if the machine does not know it.
    size: Option<Size>,
    /// The next bytes of the input; empty: its end.
    input: Option<Vec<u8>>,
    is_gone: bool,
}

impl State {
    /// The next frame that is to be written; `None`: there is none.
    fn next(&mut self) -> Option<Next> {
        let order = self.orders.pop_front().or_else(|| self.size.take().map(ToMachine::Resize));
        order.map(Next::Order).or_else(|| self.input.take().map(Next::Input))
    }
}

enum Next {
    Order(ToMachine),
    Input(Vec<u8>),
}

/// The way to a machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Port {
    shared: Arc<(Mutex<State>, Condvar)>,
}

/// The machine is gone. Its reader has the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

impl Port {
    /// Starts the thread that writes. It ends when the connection does.
    pub(crate) fn open(mut to: UnixStream) -> io::Result<Port> {
        let port = Port::default();
        let own = port.clone();
        let write = move || {
            loop {
                let Some(next) = own.wait_for_next() else { return };
                let written = match next {
                    Next::Order(order) => control::say(&mut to, &order),
                    Next::Input(bytes) if bytes.is_empty() => {
                        control::say(&mut to, &ToMachine::HungUp(INPUT))
                    }
                    Next::Input(bytes) => control::pass(&mut to, INPUT, &bytes),
                };
                if written.is_err() {
                    return own.close();
                }
            }
        };
        thread::Builder::new().name("to-machine".into()).spawn(write)?;
        Ok(port)
    }

    /// Sends an order. It does not wait.
    pub(crate) fn order(&self, order: ToMachine) {
        self.state().orders.push_back(order);
        self.shared.1.notify_all();
    }

    /// Whether an order waits to be written, since the machine does not read.
    pub(crate) fn has_orders(&self) -> bool {
        !self.state().orders.is_empty()
    }

    /// Sends the size of the terminal, in the place of one that was not sent yet. It does not wait.
    pub(crate) fn resize(&self, size: Size) {
        self.state().size = Some(size);
        self.shared.1.notify_all();
    }

    /// Sends input of the session, or with no bytes its end. Waits until the input before it was written.
    pub(crate) fn pass(&self, bytes: &[u8]) -> Result<(), Gone> {
        let state = self.state();
        let waits = |state: &mut State| state.input.is_some() && !state.is_gone;
        let mut state = self.shared.1.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        if state.is_gone {
            return Err(Gone);
        }
        state.input = Some(bytes.to_vec());
        self.shared.1.notify_all();
        Ok(())
    }

    /// Nothing is sent any more.
    pub(crate) fn close(&self) {
        self.state().is_gone = true;
        self.shared.1.notify_all();
    }

    /// `None`: nothing is to be written any more.
    fn wait_for_next(&self) -> Option<Next> {
        let mut state = self.state();
        loop {
            if state.is_gone {
                return None;
            }
            if let Some(next) = state.next() {
                self.shared.1.notify_all();
                return Some(next);
            }
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::control::Frame;

    const PIECE: usize = 16 << 10;
    const PIECES: usize = 200;

    #[test]
    fn a_machine_that_does_not_read_holds_up_its_input_only_and_orders_overtake_that() {
        let (to, mut machine) = UnixStream::pair().unwrap();
        let port = Port::open(to).unwrap();
        let input = port.clone();
        let fills = thread::spawn(move || (0..PIECES).all(|_| input.pass(&[b'x'; PIECE]).is_ok()));
        thread::sleep(Duration::from_millis(300));
        assert!(!fills.is_finished(), "the input waits");
        for columns in 1..=50 {
            port.resize(Size { rows: 1, columns });
        }
        port.order(ToMachine::End);
        assert!(port.has_orders());
        // When the machine reads, every frame is whole, and only the last size is there.
        let (mut bytes, mut orders) = (0, Vec::new());
        while bytes < PIECES * PIECE {
            match control::read::<ToMachine>(&mut machine).unwrap() {
                Some(Frame::Data(INPUT, read)) => bytes += read.len(),
                Some(Frame::Message(message)) => orders.push((bytes, message)),
                other => panic!("{other:?}"),
            }
        }
        assert!(fills.join().unwrap());
        let messages: Vec<_> = orders.iter().map(|(_, message)| message.clone()).collect();
        assert_eq!(messages, [ToMachine::End, ToMachine::Resize(Size { rows: 1, columns: 50 })]);
        assert!(orders[0].0 < PIECES * PIECE / 2, "after {} bytes of input", orders[0].0);
        drop(machine);
        assert!((0..100).any(|_| port.pass(b"x") == Err(Gone)));
    }
}
