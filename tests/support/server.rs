//! A server of NBD whose behaviour is known exactly: what is measured of it has a right answer.
//!
//! It serves a disk of 1 GiB without content. When each request is answered is decided when it arrives; nothing that it does takes
//! long beside the times that tests ask for (a millisecond and more).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use loadline_base::nbd::{
    INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, Request, info, option, reply, simple_reply, transmission,
};

const SIZE: u64 = 1 << 30;

/// How long a request takes, by the time since the first one.
pub(crate) type Takes = Box<dyn FnMut(Duration) -> Duration + Send>;

/// How requests are served.
pub(crate) enum Serves {
    /// Each for itself, so many at once as there are.
    Each(Takes),
    /// So many at once, in the order in which they come; the others wait.
    Queue(usize, Takes),
}

/// One that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) uri: String,
    state: Arc<Mutex<State>>,
}

struct State {
    serves: Serves,
    /// When each of the servers of a queue is free.
    free: Vec<Instant>,
    first: Option<Instant>,
    connections: Vec<TcpStream>,
    ended: bool,
}

impl Server {
    pub(crate) fn start(serves: Serves) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let uri = format!("nbd://{}/disk", listener.local_addr().expect("it has one"));
        let free = match &serves {
            Serves::Each(_) => Vec::new(),
            Serves::Queue(count, _) => vec![Instant::now(); *count],
        };
        let state = State { serves, free, first: None, connections: Vec::new(), ended: false };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut state = shared.lock().expect("no thread panics with it");
                if state.ended {
                    return;
                }
                let _ = stream.set_nodelay(true);
                state.connections.extend(stream.try_clone());
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Server { uri, state }
    }

    /// Ends the connection that was made last.
    pub(crate) fn cut_one(&self) {
        let last = self.state.lock().expect("no thread panics with it").connections.pop();
        let _ = last.expect("a client is connected").shutdown(Shutdown::Both);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut state = self.state.lock().expect("no thread panics with it");
        state.ended = true;
        state.connections.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        drop(state);
        // So that the listener looks, and ends.
        let address = self.uri.trim_start_matches("nbd://").trim_end_matches("/disk");
        let _ = TcpStream::connect(address);
    }
}

impl State {
    /// When a request that comes now is answered.
    fn due(&mut self, now: Instant) -> Instant {
        let since = now.duration_since(*self.first.get_or_insert(now));
        match &mut self.serves {
            Serves::Each(takes) => now + takes(since),
            Serves::Queue(_, takes) => {
                let next = self.free.iter_mut().min().expect("there is one at least");
                *next = now.max(*next) + takes(since);
                *next
            }
        }
    }
}

/// Answers that are due later.
#[derive(Default)]
struct Later {
    answers: Mutex<Answers>,
    news: Condvar,
}

#[derive(Default)]
struct Answers {
    /// When the request arrived, its cookie, and the requested bytes.
    due: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    /// There will be no more.
    ended: bool,
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut said = INIT_MAGIC.to_be_bytes().to_vec();
    said.extend(OPTION_MAGIC.to_be_bytes());
    said.extend(3u16.to_be_bytes());
    stream.write_all(&said)?;
    stream.read_exact(&mut [0; 4])?;
    // One option: its head, and as much as that says.
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes(head[12..].try_into().expect("four bytes"));
    stream.read_exact(&mut vec![0; length as usize])?;
    let mut said = Vec::new();
    let mut reply_with = |kind: u32, about: &[u8]| {
        said.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        said.extend(option::GO.to_be_bytes());
        said.extend(kind.to_be_bytes());
        said.extend((about.len() as u32).to_be_bytes());
        said.extend(about);
    };
    let mut export = info::EXPORT.to_be_bytes().to_vec();
    export.extend(SIZE.to_be_bytes());
    export.extend((transmission::HAS_FLAGS | transmission::READ_ONLY).to_be_bytes());
    reply_with(reply::INFO, &export);
    reply_with(reply::ACK, &[]);
    stream.write_all(&said)?;

    let later = Arc::new(Later::default());
    let (writer, answers) = (stream.try_clone()?, Arc::clone(&later));
    let writes = std::thread::spawn(move || drop(answer(writer, &answers)));
    let mut bytes = [0; Request::BYTES];
    while stream.read_exact(&mut bytes).is_ok() {
        let now = Instant::now();
        let request = Request::decode(&bytes).expect("the generator's requests are right");
        let due = state.lock().expect("no thread panics with it").due(now);
        let answer = Reverse((due, request.cookie, request.length));
        later.answers.lock().expect("no thread panics with it").due.push(answer);
        later.news.notify_one();
    }
    later.answers.lock().expect("no thread panics with it").ended = true;
    later.news.notify_one();
    let _ = writes.join();
    Ok(())
}

/// Sends answers when they are due, until there will be no more.
fn answer(mut stream: TcpStream, later: &Later) -> std::io::Result<()> {
    let mut answers = later.answers.lock().expect("no thread panics with it");
    loop {
        let now = Instant::now();
        match answers.due.peek() {
            _ if answers.ended => return Ok(()),
            Some(Reverse((due, cookie, length))) if *due <= now => {
                let mut bytes = simple_reply(0, *cookie).to_vec();
                bytes.resize(16 + *length as usize, 0);
                answers.due.pop();
                drop(answers);
                stream.write_all(&bytes)?;
                answers = later.answers.lock().expect("no thread panics with it");
            }
            next => {
                let wait = next.map_or(Duration::from_secs(1), |next| next.0.0.duration_since(now));
                answers = later.news.wait_timeout(answers, wait).expect("no thread panics with it").0;
            }
        }
    }
}

/// Numbers from 0 to 1 that look random, the same each time (splitmix64).
pub(crate) fn uniform(seed: u64) -> impl FnMut() -> f64 + Send {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Times of an exponential distribution with this mean: those of M/M/1.
pub(crate) fn exponential(mean: Duration, seed: u64) -> Takes {
    let mut uniform = uniform(seed);
    Box::new(move |_| mean.mul_f64(-(1.0 - uniform()).ln()))
}

/// The same time for each.
pub(crate) fn constant(time: Duration) -> Takes {
    Box::new(move |_| time)
}
