//! A whole run: storms and calms until the clients have asked for enough; then everything heals, and is compared.

use loadline_san_core::rule::{Rule, leave_out};

use crate::coverage::Coverage;
use crate::settings::Settings;
use crate::time::{MS, Time};
use crate::violation::Violation;
use crate::world::World;

/// What has come of a run.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// What went wrong, if anything.
    pub violation: Option<Violation>,
    /// When, in simulated nanoseconds; or when it ended.
    pub at: Time,
    /// Client requests that have ended.
    pub operations: u64,
    /// Some group lost all its members, by faults alone: then it ended early.
    pub lost: bool,
    /// What was seen.
    pub coverage: Coverage,
}

/// Everything well for so long, and nothing may be left to wait for.
const PATIENCE: Time = 8_000 * MS;
/// No run is longer, whatever becomes of it.
const LONGEST: Time = 120_000 * MS;

/// One calm in so many is so long that no request may wait for all of it; its clients send few requests.
const LONG_CALMS: u64 = 6;
const LONG_CALM: Time = 3_000 * MS;

/// Runs a seed, with all rules, or with one left out.
pub fn run(settings: &Settings, seed: u64, left_out: Option<Rule>, trace: bool) -> Verdict {
    leave_out(left_out);
    let mut world = World::new(settings.clone(), seed);
    world.trace = trace;
    judge(world, drive)
}

/// Drives a cluster, and returns the result. A panic is a finding like any other: assertions are oracles too.
pub(crate) fn judge(mut world: World, drive: impl FnOnce(&mut World) -> bool) -> Verdict {
    let driven = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drive(&mut world)));
    let lost = driven.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        world.fail(Violation::Panicked(text.unwrap_or_default()));
        false
    });
    Verdict {
        violation: world.violation().cloned(),
        at: world.now(),
        operations: world.done,
        lost,
        coverage: std::mem::take(&mut world.coverage),
    }
}

/// Whether it ended early.
fn drive(world: &mut World) -> bool {
    let well = |world: &mut World, length: Time| world.run_until(world.now() + length);
    if !well(world, 300 * MS) {
        return false;
    }
    while world.requests < world.settings.operations && world.now() < LONGEST {
        world.storm();
        let storm = 200 * MS + world.rng.below(1_500 * MS);
        if !well(world, storm) {
            return false;
        }
        world.heal();
        world.quiet = world.rng.chance(LONG_CALMS);
        let calm = if world.quiet { LONG_CALM } else { 100 * MS + world.rng.below(1_000 * MS) };
        let until = world.now() + calm;
        while world.now() < until {
            if !world.run_until(until.min(world.now() + 250 * MS)) {
                return false;
            }
            world.check_patience();
        }
        world.quiet = false;
        if world.is_lost() {
            return true;
        }
    }
    world.heal();
    let until = world.now() + PATIENCE;
    while world.restored.is_some() {
        if !well(world, 50 * MS) {
            return false;
        }
        if world.now() > until {
            world.fail(Violation::Stuck("the volume is not recovered by force".to_owned()));
            return false;
        }
    }
    if world.settings.lasting {
        // What was decided in the storm is in the record.
        if !well(world, 1_500 * MS) || world.is_lost() {
            return world.is_lost();
        }
        world.leave_broken();
    }
    settle(world)
}

/// Everything is well: in bounded time everything is answered and in sync, and members are the same.
pub(crate) fn settle(world: &mut World) -> bool {
    for index in 0..world.tenants.len() {
        world.tenants[index].done = true;
        if world.tenants[index].through.is_some() {
            world.client_goes(index);
        }
        if index > 0
            && let Some(node) = world.tenants[index].node.take()
        {
            world.detach(node);
        }
    }
    let until = world.now() + PATIENCE;
    let mut why = String::new();
    while world.now() < until {
        if !world.run_until(world.now() + 50 * MS) {
            return false;
        }
        if world.is_lost() {
            if let Some(node) = world.lasting.outnumbered {
                let why = format!("n{node} is alone, and keeps the volume from nodes that have more of it");
                world.fail(Violation::Stuck(why));
            }
            return true;
        }
        match world.is_settled() {
            Err(reason) => why = reason,
            Ok(()) => {
                // What is on its way arrives.
                if world.run_until(world.now() + 300 * MS) && world.is_settled().is_ok() {
                    world.check_members();
                    world.check_rest();
                    return false;
                }
            }
        }
        if world.violation().is_some() {
            return false;
        }
    }
    world.fail(Violation::Stuck(why));
    false
}
