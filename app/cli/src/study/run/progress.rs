//! What is to be seen of a run, on standard error: one bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use loadline_base::units::TimeSpan;
use loadline_fleet::{FleetEvent, LiveSecond, LossReason, ProgramCopies};
use loadline_measure::interval::Phase;
use loadline_study::file::Phases;
use loadline_study::folder::result::StepResult;
use loadline_study::left::TimeLeft;
use loadline_study::plan::Plan;
use loadline_study::progress::{Progress, Update};

use super::copies;
use crate::output::eprint_line;
use crate::output::text::{self, are, counted};

/// Without a terminal, a line so often while a phase lasts.
const EVERY: Duration = Duration::from_secs(10);
/// Without a terminal, copies of the program are named when they have taken so long.
const SOON: Duration = Duration::from_secs(1);

/// Shows a run on standard error.
pub(crate) fn on_stderr() -> Box<dyn Progress> {
    if !std::io::stderr().is_terminal() {
        return Box::new(Shown::new(Screen::Lines { last: Instant::now() }));
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:16} {wide_msg}").expect("a valid template");
    bar.set_style(style.progress_chars("=> "));
    Box::new(Shown::new(Screen::Bar(bar)))
}

enum Screen {
    Bar(ProgressBar),
    Lines { last: Instant },
}

/// How far the run is, in words.
struct Shown {
    screen: Screen,
    left: TimeLeft,
    /// The step that runs, in words.
    step: String,
    phase: Phase,
    live: String,
    joined: usize,
    /// Whether a line has named the copies of the program that go on.
    copies_named: bool,
}

impl Shown {
    fn new(screen: Screen) -> Shown {
        Shown {
            screen,
            left: TimeLeft::default(),
            step: String::new(),
            phase: Phase::WarmUp,
            live: String::new(),
            joined: 0,
            copies_named: false,
        }
    }

    /// A line that stays.
    fn line(&mut self, text: &str) {
        match &mut self.screen {
            Screen::Bar(bar) => bar.println(crate::output::plain(text)),
            Screen::Lines { last } => {
                eprint_line!("{text}");
                *last = Instant::now();
            }
        }
    }

    /// A line that another one soon replaces: on a terminal always, elsewhere now and then.
    fn passing(&mut self, done: u64, total: u64, text: &str) {
        match &mut self.screen {
            Screen::Bar(bar) => {
                bar.set_length(total.max(1));
                bar.set_position(done.min(total));
                bar.set_message(crate::output::plain(text).into_owned());
            }
            Screen::Lines { last } if last.elapsed() >= EVERY => {
                *last = Instant::now();
                eprint_line!("{text}");
            }
            Screen::Lines { .. } => {}
        }
    }

    fn left(&self) -> String {
        format!("{} left", TimeSpan::seconds(self.left.left_s()))
    }

    fn second(&mut self, second: &LiveSecond) {
        let latency = &second.latency_us;
        // The tail that this second carries: its 99th percentile, or the deepest that it has I/Os enough for.
        let tail = match latency.p99 {
            Some(p99) => format!("  p99 {}", text::latency(Some(p99))),
            None => latency
                .deepest_value()
                .map(|(name, value)| format!("  {name} {}", text::latency(Some(value))))
                .unwrap_or_default(),
        };
        let errors =
            if second.errors > 0 { format!("  {}", counted(second.errors, "error")) } else { String::new() };
        self.live = format!("  {} IOPS{tail}{errors}", text::count(second.iops as f64));
        self.refresh();
    }

    fn refresh(&mut self) {
        let (done, total) = self.left.seconds();
        let text = format!("{}  {}  {}{}", self.step, phase_name(self.phase), self.left(), self.live);
        self.passing(done, total, &text);
    }

    fn phase(&mut self, phase: Phase) {
        self.phase = phase;
        let [warm_up, measure, cool_down] = self.left.phases();
        let length = match phase {
            Phase::WarmUp => warm_up,
            Phase::Measure => measure,
            Phase::CoolDown => cool_down,
        };
        if let Screen::Lines { .. } = self.screen
            && length > 0
        {
            let length = TimeSpan::seconds(length);
            self.line(&format!("{}  {} {length}  {}", self.step, phase_name(phase), self.left()));
        }
        self.refresh();
    }

    fn fleet(&mut self, event: &FleetEvent) {
        match event {
            FleetEvent::Copying(copies) => self.copying(copies),
            FleetEvent::Notice(text) => self.line(text),
            FleetEvent::Joined { worker } => {
                self.joined += 1;
                let text = format!("worker {} of {} joined ({} so far)", worker.id, worker.host, self.joined);
                self.passing(0, 1, &text);
            }
            FleetEvent::Starting { unix_ms, .. } => self.left.begin_load(*unix_ms),
            FleetEvent::Restarted { worker } => self.line(&format!("worker {} is back", worker.id)),
            FleetEvent::Rejected { from, why, count } => {
                self.line(&format!("refused connection from {from}: {why} ({count} so far)"));
            }
            FleetEvent::Lost { worker, loss } => {
                let what = match loss.reason {
                    LossReason::Refused => "refuses",
                    LossReason::Failed => "failed",
                    LossReason::StopCondition => "ended its load",
                    _ => "is lost",
                };
                self.line(&format!("worker {} {what}: {}", worker.id, loss.message));
            }
            FleetEvent::BadBlocks { worker, report } => {
                let first = report.examples.first().map_or("unknown", String::as_str);
                self.line(&format!(
                    "worker {worker} read blocks that do not hold the written data: {} so far; the first: {first}",
                    report.bad()
                ));
            }
            FleetEvent::Dropped { events } => {
                self.line(&format!(
                    "the run's folder is too slow: {} {} missing in the series",
                    counted(*events, "record"),
                    are(*events)
                ));
            }
            _ => {}
        }
    }

    fn copying(&mut self, copies: &ProgramCopies) {
        if copies.are_complete() {
            self.copies_named = false;
            if let Some(line) = copies::complete(copies) {
                self.line(&line);
            }
            return;
        }
        let (sent, total) = copies::bytes(copies);
        let text = copies::going_on(copies);
        if let Screen::Lines { .. } = self.screen
            && !self.copies_named
            && copies::longest(copies) >= SOON
        {
            self.copies_named = true;
            return self.line(&text);
        }
        self.passing(sent, total, &text);
    }

    fn complete(&mut self, result: &StepResult) {
        self.left.end_step();
        self.live = String::new();
        let total = &result.figures.total;
        let latency = &total.latency_us;
        let tail = latency
            .deepest_value()
            .map(|(name, value)| format!("  {name} {}", text::latency(Some(value))))
            .unwrap_or_default();
        let p99 = match latency.deepest.as_deref() {
            Some("p99") | None => String::new(),
            _ => latency.p99.map(|p99| format!("  p99 {}", text::latency(Some(p99)))).unwrap_or_default(),
        };
        let mut line = format!(
            "{}  {} IOPS  {}  mean {}{p99}{tail}",
            self.step,
            text::count(total.iops),
            text::megabytes(total.bytes_per_s),
            text::latency(latency.mean)
        );
        if result.figures.errors > 0 {
            line.push_str(&format!("  {}", counted(result.figures.errors, "error")));
        }
        if result.lost() > 0 {
            line.push_str(&format!("  {} lost", result.lost()));
        }
        self.line(&line);
    }

    fn begin(&mut self, plan: &Plan, phases: &Phases, complete: usize) {
        self.left.begin(phases, complete, plan.steps.len());
        if complete > 0 {
            self.line(&format!("{complete} of {} steps are complete", plan.steps.len()));
        }
    }
}

impl Progress for Shown {
    fn update(&mut self, update: Update<'_>) {
        match update {
            Update::Begin { plan, phases, complete } => self.begin(plan, phases, complete),
            Update::Waiting { listen, token, workers } => {
                self.line(&waiting(listen, token, workers));
            }
            Update::Fleet(event) => self.fleet(event),
            Update::Fill(done, total) => self.sweep("filling", done, total),
            Update::Scan(done, total) => self.sweep("checking", done, total),
            Update::WarmingUp { step, limit } => {
                let limit = TimeSpan(limit);
                self.step =
                    format!("step {} {}: until it is steady, at most {limit}", step.number, step.label);
                self.left.begin_warm_up();
                (self.live, self.phase) = (String::new(), Phase::WarmUp);
                if let Screen::Lines { .. } = self.screen {
                    self.line(&self.step.clone());
                }
            }
            Update::StepBegan { step, of } => {
                self.left.begin_step(of);
                self.step = format!("step {}/{of} {}", step.number, step.label);
                if step.repeat > 1 {
                    self.step.push_str(&format!(" (repeat {})", step.repeat));
                }
                (self.live, self.phase) = (String::new(), Phase::WarmUp);
            }
            Update::Phase(phase) => self.phase(phase),
            Update::Second(second) => self.second(second),
            Update::StepComplete(result) => self.complete(result),
            Update::Notice(text) => self.line(text),
            Update::ClusterRuns(_) | Update::ClusterEnds => {}
        }
    }
}

impl Shown {
    fn sweep(&mut self, what: &str, done: u64, total: u64) {
        let text = format!("{what}: {} of {} MiB", done >> 20, total >> 20);
        self.passing(done, total, &text);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Screen::Bar(bar) = &self.screen {
            bar.finish_and_clear();
        }
    }
}

/// What is to be done where workers are waited for.
pub(crate) fn waiting(listen: SocketAddr, token: &str, workers: u32) -> String {
    let address = dialled(listen);
    let start = if workers == 1 { "start it" } else { "start each of them, under a name of its own," };
    format!(
        "waiting for {}; {start} with\n  \
         LOADLINE_TOKEN={token} loadline worker --name NAME --join {address}",
        counted(workers.into(), "worker")
    )
}

/// What a worker is given with `--join`: 0.0.0.0 cannot be dialled, so that this machine has a stand-in's name there.
fn dialled(listen: SocketAddr) -> String {
    match listen.ip().is_unspecified() {
        true => format!("HOST:{} (HOST: this machine, as the workers reach it)", listen.port()),
        false => listen.to_string(),
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::WarmUp => "warming up",
        Phase::Measure => "measuring",
        Phase::CoolDown => "cooling down",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_dialled_is_not_given_to_a_worker() {
        for listen in ["0.0.0.0:7400", "[::]:7400"] {
            let text = dialled(listen.parse().unwrap());
            assert!(text.starts_with("HOST:7400 ") && !text.contains(listen), "{text}");
        }
        assert_eq!(dialled("192.168.7.1:7400".parse().unwrap()), "192.168.7.1:7400");
    }
}
