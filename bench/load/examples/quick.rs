//! quick
use loadline_base::{clock::Nanos, units::*};
use loadline_load::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let profile: loadline_profile::Profile = a[2].parse().unwrap();
    let mut job =
        Job::new(vec![Disk { target: a[1].parse().unwrap(), writes: WritePermission::Destroy }], profile);
    job.warm_up = TimeSpan::seconds(1);
    job.measure = TimeSpan::seconds(a.get(3).map_or(4, |s| s.parse().unwrap()));
    job.poll = a.get(4).is_some_and(|s| s == "poll");
    if let Some(r) = a.get(5) {
        job.profile.rate = Some(r.parse().unwrap());
    }
    let p = prepare(&job).unwrap_or_else(|e| panic!("{e}"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let o = p.run(Nanos::now() + Nanos(100_000_000), &stop, &mut |_| {}).unwrap();
    let f = o.window.figures();
    let cpu = o.cpu.user_s + o.cpu.system_s;
    println!(
        "iops {:.0} cpu/io {:.2}us (user {:.2}) mean {:.2}us p50 {:?} p99 {:?} max {:?} stall {} late {:?}",
        f.total.iops,
        cpu * 1e6 / (f.total.iops * f.window_s),
        o.cpu.user_s * 1e6 / (f.total.iops * f.window_s),
        f.total.latency_us.mean.unwrap_or(0.),
        f.total.latency_us.p50,
        f.total.latency_us.p99,
        f.total.latency_us.max,
        f.longest_stall_ms,
        f.lateness_us.map(|l| (l.mean, l.p99))
    );
}
