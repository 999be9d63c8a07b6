//! Events on their way to the sink, which has a thread of its own.
//!
//! The sink may be slow: it writes into the run's folder, and that may lie on the very storage that the fleet has
//! just brought to its knees. Then events wait here, up to a bound, and the workers do not notice. Beyond the bound
//! events are dropped and counted, the mass ones (records, progress) first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as std_mpsc;
use std::thread;
use std::time::Duration;

use loadline_base::limits::STACK;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use crate::event::{EventSink, FleetEvent};

/// Events that wait at the most: of 64 workers with two disks, a minute of records.
const EVENTS_WAITING: usize = 8192;
/// Places that mass events leave free for what must not be missed.
const RESERVE: usize = 1024;
/// How long the sink is waited for at the end of an operation.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);
/// The pause before a full queue is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(10);

enum Item {
    Event(Box<FleetEvent>),
    Flushed(oneshot::Sender<()>),
}

/// The controller's end of the queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    items: std_mpsc::SyncSender<Item>,
    waiting: Arc<AtomicUsize>,
    dropped: u64,
}

impl EventQueue {
    /// Starts the sink's thread. It ends when the queue is dropped and empty.
    pub(crate) fn start(mut sink: EventSink) -> std::io::Result<EventQueue> {
        // Room for flushes too: one at a time.
        let (items, to_deliver) = std_mpsc::sync_channel(EVENTS_WAITING + 1);
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = waiting.clone();
        thread::Builder::new().name("fleet-events".into()).stack_size(STACK).spawn(move || {
            while let Ok(item) = to_deliver.recv() {
                match item {
                    Item::Event(event) => {
                        sink(*event);
                        counted.fetch_sub(1, Ordering::Relaxed);
                    }
                    Item::Flushed(done) => drop(done.send(())),
                }
            }
        })?;
        Ok(EventQueue { items, waiting, dropped: 0 })
    }

    /// Hands an event over, without waiting.
    pub(crate) fn emit(&mut self, event: FleetEvent) {
        if self.dropped > 0 && self.waiting.load(Ordering::Relaxed) < EVENTS_WAITING / 2 {
            let events = std::mem::take(&mut self.dropped);
            self.push(FleetEvent::Dropped { events }, EVENTS_WAITING);
        }
        let mass = matches!(
            event,
            FleetEvent::Interval { .. }
                | FleetEvent::HostSecond { .. }
                | FleetEvent::Progress { .. }
                | FleetEvent::Copying(_)
                | FleetEvent::Second(_)
                | FleetEvent::Rejected { .. }
        );
        self.push(event, if mass { EVENTS_WAITING - RESERVE } else { EVENTS_WAITING });
    }

    fn push(&mut self, event: FleetEvent, most: usize) {
        // Only this end adds, so that the count cannot grow in between.
        if self.waiting.load(Ordering::Relaxed) >= most {
            self.dropped += 1;
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.items.try_send(Item::Event(Box::new(event))).is_err() {
            // The sink's thread is gone: it panicked.
            self.dropped += 1;
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits until the sink has taken all events, up to [`FLUSH_LIMIT`].
    pub(crate) async fn flush(&mut self) {
        if self.dropped > 0 {
            let events = std::mem::take(&mut self.dropped);
            self.push(FleetEvent::Dropped { events }, EVENTS_WAITING);
        }
        let deadline = Instant::now() + FLUSH_LIMIT;
        let (done, flushed) = oneshot::channel();
        let mut item = Item::Flushed(done);
        while let Err(std_mpsc::TrySendError::Full(back)) = self.items.try_send(item) {
            if Instant::now() >= deadline {
                return;
            }
            item = back;
            sleep(FULL_PAUSE).await;
        }
        let _ = timeout_at(deadline, flushed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn progress(done: u64) -> FleetEvent {
        let worker = crate::identity::WorkerId("a".into());
        FleetEvent::Progress { worker, operation: crate::event::Operation::Fill, done, total: 1 }
    }

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work);
    }

    #[test]
    fn after_a_flush_the_sink_has_taken_every_event_in_order() {
        let taken: Arc<Mutex<Vec<FleetEvent>>> = Arc::default();
        let sink = taken.clone();
        let mut queue = EventQueue::start(Box::new(move |event| sink.lock().unwrap().push(event))).unwrap();
        (0..100).for_each(|i| queue.emit(progress(i)));
        run(queue.flush());
        assert_eq!(*taken.lock().unwrap(), (0..100).map(progress).collect::<Vec<_>>());
    }

    #[test]
    fn a_stuck_sink_costs_mass_events_first_and_the_number_lost_is_told() {
        let (hold, held) = std_mpsc::channel::<()>();
        let taken: Arc<Mutex<Vec<FleetEvent>>> = Arc::default();
        let sink = taken.clone();
        let mut queue = EventQueue::start(Box::new(move |event| {
            let _ = held.recv();
            sink.lock().unwrap().push(event);
        }))
        .unwrap();
        let many = EVENTS_WAITING as u64 + 500;
        (0..many).for_each(|i| queue.emit(progress(i)));
        let important = FleetEvent::Starting { workers: 1, unix_ms: 2 };
        queue.emit(important.clone());
        drop(hold);
        run(queue.flush());
        let taken = taken.lock().unwrap();
        let kept = taken.iter().filter(|e| matches!(e, FleetEvent::Progress { .. })).count() as u64;
        let reported: u64 =
            taken.iter().map(|e| if let FleetEvent::Dropped { events } = e { *events } else { 0 }).sum();
        assert!(taken.contains(&important));
        assert!(reported >= 500 && kept + reported == many, "{kept} kept, {reported} dropped");
    }

    #[test]
    fn a_sink_that_panics_does_not_hang_the_fleet() {
        let mut queue = EventQueue::start(Box::new(|_| panic!("on purpose"))).unwrap();
        queue.emit(progress(1));
        run(queue.flush());
        queue.emit(progress(2));
        run(queue.flush());
    }
}
