//! `loadline watch`: a cluster in a terminal, as it is now.

mod screen;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use loadline_api_client::ApiAddress;
use loadline_console::following::{Following, Place};
use loadline_console::view::{EventRow, Now};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::output::{print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;
use screen::{Chosen, List, SPAN, Shown, draw};

/// How soon a key or Ctrl-C has an effect.
const TURN: Duration = Duration::from_millis(100);
/// Events that can be scrolled to.
const EVENTS: usize = 500;

/// Watch a cluster in the terminal while it works: what clients get and what devices do, each second, of every node, volume and
/// device, and events. Needs 80 columns; over SSH it is as good as here. The web page of 'loadline console' shows more.
#[derive(clap::Args)]
#[command(after_help = "Keys:\n  \
    n nodes, v volumes, d devices, e events   what is listed\n  \
    up, down, page up, page down, home        scroll\n  \
    space                                     pause, and go on\n  \
    q, Ctrl-C                                 end\n\n\
Examples:\n  \
    loadline watch\n  \
    loadline watch --api https://node-1:7400 --access viewer.pem\n  \
    loadline watch --json --for 10s | jq .total.reads")]
pub(crate) struct Args {
    /// The API of any node of the cluster, as for other commands.
    #[arg(long, value_name = "ADDRESS", env = "LOADLINE_API", default_value = "127.0.0.1:7400")]
    api: ApiAddress,
    /// The file that proves your access to an API at an https address, from 'loadline san access add'. The role viewer is enough.
    #[arg(long, value_name = "FILE", env = "LOADLINE_ACCESS")]
    access: Option<PathBuf>,
    /// Print each second as a line of JSON instead of a screen. 'GET /api/openapi.json' of the console describes it (Now).
    #[arg(long)]
    json: bool,
    /// End after this time. [default: at q or Ctrl-C]
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<loadline_base::units::TimeSpan>,
}

pub(crate) fn run(args: Args) -> Exit {
    let access = args.access.clone().or_else(|| args.api.own_access());
    if let Err(why) = args.api.agent(access.as_deref(), TURN) {
        return print_error(Exit::Usage, &why);
    }
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !args.json && !is_terminal {
        let message = "this is no terminal: 'loadline watch --json' prints a line each second, and 'loadline san status' the state once";
        return print_error(Exit::Usage, message);
    }
    let name = args.api.to_string();
    let following = match Following::start(Place { name: name.clone(), api: args.api, access: args.access }) {
        Ok(following) => following,
        Err(why) => return print_error(Exit::Failed, &format!("cannot start a thread: {why}")),
    };
    let stop = interrupt::flag();
    let begun = Instant::now();
    let ends = || stop.load(Ordering::Relaxed) || args.lasts.is_some_and(|of| begun.elapsed() >= of.0);
    let interrupted = if args.json { lines(&following, ends) } else { full_screen(&name, &following, ends) };
    if interrupted || stop.load(Ordering::Relaxed) { Exit::Interrupted } else { Exit::Done }
}

/// Prints each second as a line. No key interrupts it.
fn lines(following: &Following, ends: impl Fn() -> bool) -> bool {
    let mut last = None;
    while !ends() {
        if let Some(second) = following.latest().filter(|second| Some(second.now.at) != last) {
            last = Some(second.now.at);
            print_line!("{}", second.json);
        }
        std::thread::sleep(TURN);
    }
    false
}

/// What is shown, and what was before.
struct Watched {
    now: Option<Arc<Now>>,
    iops: VecDeque<u64>,
    events: Vec<EventRow>,
    chosen: Chosen,
}

impl Watched {
    fn take(&mut self, following: &Following) {
        let Some(second) = following.latest() else { return };
        if self.chosen.paused || self.now.as_ref().is_some_and(|now| now.at == second.now.at) {
            return;
        }
        let total = second.now.total.unwrap_or_default();
        self.iops.push_back((total.reads + total.writes + total.others) as u64);
        if self.iops.len() > SPAN {
            self.iops.pop_front();
        }
        self.events = following.cluster().last_events(EVENTS);
        self.now = Some(second.now);
    }

    /// A key was pressed. Whether the command is to end.
    fn press(&mut self, key: KeyCode, height: usize) -> bool {
        let chosen = &mut self.chosen;
        let list = match key {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('n') => List::Nodes,
            KeyCode::Char('v') => List::Volumes,
            KeyCode::Char('d') => List::Devices,
            KeyCode::Char('e') => List::Events,
            other => {
                chosen.above = match other {
                    KeyCode::Up => chosen.above.saturating_sub(1),
                    KeyCode::Down => chosen.above + 1,
                    KeyCode::PageUp => chosen.above.saturating_sub(height),
                    KeyCode::PageDown => chosen.above + height,
                    KeyCode::Home => 0,
                    _ => chosen.above,
                };
                chosen.paused ^= other == KeyCode::Char(' ');
                let rows = self.now.as_ref().map_or(0, |now| match chosen.list {
                    List::Nodes => now.nodes.len() + 1,
                    List::Volumes => now.volumes.len(),
                    List::Devices => now.devices.len(),
                    List::Events => self.events.len(),
                });
                chosen.above = chosen.above.min(rows.saturating_sub(1));
                return false;
            }
        };
        (chosen.list, chosen.above) = (list, 0);
        false
    }
}

/// Shows the screen until the command ends; whether by Ctrl-C, which is a key there.
fn full_screen(name: &str, following: &Following, ends: impl Fn() -> bool) -> bool {
    let mut terminal = ratatui::init();
    let chosen = Chosen { list: List::Nodes, above: 0, paused: false };
    let mut watched = Watched { now: None, iops: VecDeque::new(), events: Vec::new(), chosen };
    let (mut height, mut interrupted) = (10, false);
    while !ends() {
        watched.take(following);
        let drawn = terminal.draw(|frame| {
            height = usize::from(frame.area().height.saturating_sub(12)).max(1);
            if let Some(now) = &watched.now {
                let iops = watched.iops.make_contiguous();
                draw(frame, &Shown { name, now, iops, events: &watched.events, chosen: &watched.chosen });
            }
        });
        // A terminal that is gone cannot be told so.
        if drawn.is_err() {
            break;
        }
        let Ok(true) = event::poll(TURN) else { continue };
        match event::read() {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                // The terminal sends no signal for it, since it is in raw mode.
                interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if interrupted || watched.press(key.code, height) {
                    break;
                }
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    ratatui::restore();
    interrupted
}
