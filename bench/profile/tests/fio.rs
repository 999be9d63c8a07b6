//! fio job files and command lines: each option with fio's meaning, both ways.

mod common;

use std::process::Command;

use common::any_profile;
use loadline_base::units::{ByteSize, Rate, TimeSpan};
use loadline_profile::fio::{parse, parse_command, parse_options, print_command, print_job};
use loadline_profile::{Arrival, Data, ErrorKind, Extent, HotSpot, Invocation, Pattern, Profile};
use proptest::prelude::*;

/// One job on one device with an engine that keeps I/Os outstanding, and `options` one a line.
fn job(options: &str) -> String {
    format!("[job]\nfilename=/dev/sdb\nioengine=io_uring\n{options}\n")
}

fn read(options: &str) -> Invocation {
    let mut jobs = parse(&job(options)).expect(options);
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

fn load(options: &str) -> Profile {
    read(options).profile
}

fn error(options: &str) -> String {
    parse(&job(options)).expect_err(options).to_string()
}

const REAL_LIFE: &str = "\
; 70/30 mix, as for a database
[global]
ioengine=libaio
direct=1
time_based
runtime=5m          # measured
ramp_time=30
group_reporting=1
randrepeat=0
norandommap=1
refill_buffers

[data]
filename=/dev/nvme0n1
rw=randrw
rwmixread=70
bs=8k
iodepth=16
numjobs=4
random_distribution=zoned:95/5:4/10:1/85

[log]
filename=/dev/nvme1n1
rw=write
bs=64k
iodepth=1
fdatasync=1
";

#[test]
fn a_job_file_from_real_life_gives_an_invocation_for_each_job() {
    let jobs = parse(REAL_LIFE).unwrap();
    let [data, log] = jobs.as_slice() else { panic!("{jobs:?}") };
    assert_eq!(data.name.as_deref(), Some("data"));
    assert_eq!(data.targets, ["/dev/nvme0n1"]);
    assert_eq!(data.measure, Some(TimeSpan::seconds(300)));
    assert_eq!(data.warm_up, Some(TimeSpan::seconds(30)));
    let spot = |io_percent, share| HotSpot { io_percent, extent: Extent::Percent(share) };
    assert_eq!(
        data.profile,
        Profile { hot_spots: vec![spot(95, 5.0), spot(4, 10.0)], .."B8-T4-O16-W30-PR".parse().unwrap() }
    );
    assert_eq!(log.profile, Profile { flush_every: Some(1), .."B64-T1-O1-W100-PS".parse().unwrap() });
    // What changes nothing about the load is said, not swallowed.
    assert!(log.notes.iter().any(|note| note.starts_with("group_reporting=1 ")), "{:?}", log.notes);
    assert!(log.notes.iter().any(|note| note.contains("together with the other jobs")), "{:?}", log.notes);
}

#[test]
fn what_a_job_does_not_say_is_as_fio_has_it() {
    let jobs = parse("[job]\nfilename=/dev/sdb\n").unwrap();
    assert_eq!(
        jobs[0].profile,
        Profile { direct: false, .."B4-T1-O1-W0-PS".parse().unwrap() },
        "sequential reads of 4k, one at a time, through the page cache"
    );
}

#[test]
fn an_engine_that_waits_has_one_outstanding_whatever_iodepth_says() {
    let read = read("ioengine=psync\niodepth=32\ndirect=1");
    assert_eq!(read.profile.outstanding, 1);
    assert!(
        read.notes.iter().any(|note| note.contains("iodepth=32 means 1 outstanding")),
        "{:?}",
        read.notes
    );
}

#[test]
fn an_unsupported_option_is_an_error_that_names_it_its_section_and_its_line() {
    let refused = parse("[global]\nbs=4k\n\n[db]\nbssplit=4k/60:8k/40\n").unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert_eq!(
        refused.to_string(),
        "fio job file, [db], line 5: the option bssplit=4k/60:8k/40 is not supported; Loadline issues one block size; \
         write a job for each size, with bs"
    );
    for option in [
        "thinktime=10ms",
        "verify=crc32c",
        "rw=randtrim",
        "random_distribution=zipf:1.2",
        "ioengine=rbd",
        "loops=3",
        "offset_increment=1g",
        "nrfiles=4",
        "latency_target=10ms",
        "zonemode=zbd",
        "bs=4k,8k",
        "rw=randread:8",
        "buffer_pattern=0xdead",
        "steadystate=iops:1%",
        "flow=8",
        "no_such_option=1",
        "iodepth_batch_submit=8",
        "include other.fio",
        "size=${SIZE}",
        "directory=/a:/b",
    ] {
        let refused = parse(&job(option)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().starts_with("fio job file, [job], line 4: "), "{refused}");
    }
}

#[test]
fn an_option_that_would_change_something_but_is_set_to_nothing_is_fine() {
    for option in ["loops=1", "thinktime=0", "nrfiles=1", "zonemode=none", "iodepth_batch=1", "verify=0"] {
        assert_eq!(load(option), load(""), "{option}");
    }
}

#[test]
fn a_value_that_is_wrong_says_what_and_where() {
    for (option, says) in [
        ("bs=4q", "line 4: bs=4q is not a size; write a whole number and k, m, g or t"),
        ("bs=", "bs has no value"),
        ("bs", "bs has no value"),
        ("rw=sideways", "rw=sideways is no direction"),
        ("iodepth=0", "iodepth=0 is too small"),
        ("rwmixread=101", "not a percentage"),
        ("runtime=1.5", "runtime=1.5 is not a time"),
        ("direct", "direct has no value"),
        ("time_based=yes", "time_based=yes is not a switch"),
        ("sync=2", "sync=2 is no mode"),
        ("kb_base=1001", "no base"),
        (
            "rw=randread\nrandom_distribution=zoned:95/5:4/10",
            "the zones receive 99 % of the I/O; fio wants 100",
        ),
        ("rw=randread\nrandom_distribution=zoned:x/10:50/90", "the zone \"x/10\" cannot be read"),
        ("bs=1000", "[job], line 1, block_size: 1000 is not a block size"),
        ("numjobs=2000", "numjobs=2000 is more than Loadline starts"),
        ("fsync=1\nfdatasync=1", "both fsync and fdatasync"),
        ("filesize=1g\noffset=2g", "offset=2147483648 is not inside"),
        ("filename=-", "names no file"),
        ("two words=1", "is not an option"),
        ("=1", "is not an option"),
        ("[", "a section without an end"),
    ] {
        assert!(error(option).contains(says), "{option}: {}", error(option));
    }
    for (text, says) in [
        ("bs=4k\n", "fio job file, line 1: \"bs=4k\" stands before any section"),
        ("[global]\nbs=4k\n", "there is no job"),
        ("", "there is no job"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn units_are_fios_own() {
    for (size, bytes) in
        [("64k", 65_536), ("64kb", 65_536), ("64KIB", 64_000), ("65536", 65_536), ("1m", 1 << 20)]
    {
        assert_eq!(load(&format!("size={size}")).working_set, Some(Extent::Bytes(ByteSize(bytes))), "{size}");
    }
    assert_eq!(load("kb_base=1000\nsize=64k").working_set, Some(Extent::Bytes(ByteSize(64_000))));
    assert_eq!(load("kb_base=1000\nsize=64kib").working_set, Some(Extent::Bytes(ByteSize(65_536))));
    for (time, millis) in
        [("90", 90_000), ("90s", 90_000), ("2m", 120_000), ("1h", 3_600_000), ("1500ms", 1_500)]
    {
        let read = read(&format!("runtime={time}"));
        assert_eq!(read.measure.unwrap().duration().as_millis(), millis, "{time}");
    }
}

#[test]
fn a_rate_is_per_clone_and_the_profile_has_the_total() {
    let poisson = load("rw=randread\nnumjobs=4\nrate_iops=500\nrate_process=poisson").rate.unwrap();
    assert_eq!((poisson.rate, poisson.arrival), (Rate::Iops(2000.0), Arrival::Poisson));
    let bytes = load("rw=write\nrate=,10m").rate.unwrap();
    assert_eq!(bytes.rate, Rate::BytesPerSecond(10_485_760.0));
}

#[test]
fn a_rate_in_a_mixed_job_limits_each_direction_and_so_makes_the_mix() {
    let split = load("rw=randrw\nrwmixwrite=30\nrate_iops=700,300");
    assert_eq!((split.rate.unwrap().rate, split.write_percent), (Rate::Iops(1000.0), 30));
    // fio really issues 1000 reads and 1000 writes a second here.
    let one_number = read("rw=randrw\nrwmixwrite=30\nrate_iops=1000");
    assert_eq!(
        (one_number.profile.rate.unwrap().rate, one_number.profile.write_percent),
        (Rate::Iops(2000.0), 50)
    );
    assert!(
        one_number.notes.iter().any(|note| note.contains("the mix is 50.0 % writes")),
        "{:?}",
        one_number.notes
    );
    assert!(error("rw=randrw\nrate_iops=,300").contains("leaves one of reads and writes without a limit"));
    assert!(error("rw=read\nrate=1m\nrate_iops=100").contains("both rate and rate_iops"));
}

#[test]
fn clones_share_their_depth_among_their_files() {
    let two = read("filename=/dev/sdb:/dev/sdc\niodepth=32\nnumjobs=2");
    assert_eq!((two.profile.threads, two.profile.outstanding), (2, 16));
    assert_eq!(two.targets, ["/dev/sdb", "/dev/sdc"]);
    assert!(
        error("filename=/dev/sdb:/dev/sdc\niodepth=3").contains("3 outstanding I/Os shared among 2 files")
    );
    assert_eq!(read("filename=/tmp/a\\:b").targets, ["/tmp/a:b"]);
}

#[test]
fn without_a_filename_each_clone_has_a_file_of_its_own() {
    let jobs = parse("[scratch]\ndirectory=/mnt/test\nsize=1g\nnumjobs=2\n").unwrap();
    assert_eq!(jobs[0].targets, ["/mnt/test/scratch.0.0", "/mnt/test/scratch.1.0"]);
    assert_eq!((jobs[0].profile.threads, jobs[0].create_size), (1, Some(ByteSize(1 << 30))));
}

#[test]
fn size_is_the_part_that_is_used_and_filesize_goes_before_it() {
    let size = read("filename=/mnt/file\noffset=1g\nsize=4g");
    assert_eq!(size.profile.working_set, Some(Extent::Bytes(ByteSize(4 << 30))));
    assert_eq!(size.create_size, Some(ByteSize(5 << 30)));
    let both = read("filename=/mnt/file\nfilesize=8g\nsize=1g");
    assert_eq!(both.profile.working_set, Some(Extent::Bytes(ByteSize(8 << 30))));
    assert!(both.notes.iter().any(|note| note.contains("only how much is done")), "{:?}", both.notes);
    assert_eq!(load("size=10%").working_set, Some(Extent::Percent(10.0)));
    assert_eq!(read("size=4g").create_size, None, "a device is not created");
}

#[test]
fn patterns_steps_and_data_have_fios_meaning() {
    assert_eq!(load("rw=randread\npercentage_random=70").pattern, Pattern::Mixed { random_percent: 70 });
    assert_eq!(load("rw=read:12k").alignment, Some(ByteSize::kib(16)), "12k are skipped after each 4k");
    assert_eq!(load("rw=randread\nba=8k").alignment, Some(ByteSize::kib(8)));
    assert_eq!(load("buffer_compress_percentage=50").data, Data::Compressible { ratio: 2.0 });
    assert_eq!(load("zero_buffers").data, Data::Zeros);
    assert!(load("sync=dsync").write_through && !load("sync=0").write_through);
    assert_eq!(load("fsync=8").flush_every, Some(8));
    let absolute = load("rw=randread\nsize=10g\nrandom_distribution=zoned_abs:90/1g:10/9g");
    assert_eq!(absolute.hot_spots, [HotSpot { io_percent: 90, extent: Extent::Bytes(ByteSize(1 << 30)) }]);
}

#[test]
fn options_that_say_only_how_fio_reports_are_accepted_and_noted() {
    for option in [
        "--output-format=json",
        "--output=/tmp/result.json",
        "--eta=never",
        "--eta-newline=10",
        "--status-interval=1",
        "--minimal",
        "--append-terse",
        "--terse-version=3",
        "--bandwidth-log",
        "--aux-path=/tmp",
        "--idle-prof=system",
        "--readonly",
    ] {
        let plain = parse_command("fio --name=a --filename=/dev/sdb --rw=randread").unwrap();
        // Before the first job and after it: in fio these belong to the whole command line.
        for line in [
            format!("fio {option} --name=a --filename=/dev/sdb --rw=randread"),
            format!("fio --name=a --filename=/dev/sdb --rw=randread {option}"),
        ] {
            let read = parse_command(&line).expect(option);
            assert_eq!(read[0].profile, plain[0].profile, "{line}");
            let shown = option.trim_start_matches('-');
            assert!(read[0].notes.iter().any(|note| note.starts_with(shown)), "{line}: {:?}", read[0].notes);
        }
    }
    assert!(
        parse_command("fio --readonly --name=a --rw=randwrite")
            .unwrap_err()
            .to_string()
            .contains("readonly with a job that writes, which fio refuses")
    );
}

#[test]
fn one_hyphen_does_and_a_value_may_be_the_next_word() {
    let plain =
        parse_command("fio --name=x --rw=randread --iodepth=1 --direct=1 --time_based --bs=8k").unwrap();
    for line in [
        "fio -name=x -rw=randread -iodepth 1 -direct=1 -time_based -bs 8k",
        "fio --name x --rw randread --iodepth 1 --direct 1 --time_based --bs 8k",
        "-name=x -rw=randread -iodepth 1 -direct 1 -time_based -bs=8k",
    ] {
        let read = loadline_profile::read(line).expect(line);
        assert_eq!(read.notation, loadline_profile::Notation::FioCommand, "{line}");
        assert_eq!(read.invocations, plain, "{line}");
    }
    // As in fio, a switch takes no next word.
    let stray = parse_command("fio --name=x --time_based 1").unwrap_err().to_string();
    assert!(stray.contains("word 4: \"1\" is not an option"), "{stray}");
}

#[test]
fn a_job_is_called_after_its_section_unless_it_has_a_name_of_its_own() {
    let text = "[global]\nname=all\nrw=randread\ndirectory=/mnt\nsize=1m\n[one]\n[two]\nname=second\n";
    let jobs = parse(text).unwrap();
    let called: Vec<_> = jobs.iter().map(|job| job.name.as_deref().unwrap()).collect();
    assert_eq!(called, ["one", "second"]);
    // A name of its own is for the report; files are called after the section.
    assert_eq!(jobs[1].targets, ["/mnt/two.0.0"]);
    assert!(jobs[0].notes.iter().any(|note| note.starts_with("name=all in [global] has no effect")));
}

#[test]
fn zones_without_a_size_share_what_the_others_leave() {
    let spot = |io_percent, share| HotSpot { io_percent, extent: Extent::Percent(share) };
    for (zones, spots) in [
        ("50/10:50/", vec![spot(50, 10.0)]),
        ("50/10:50", vec![spot(50, 10.0)]),
        ("60/:20/20:20/0", vec![spot(60, 40.0), spot(20, 20.0)]),
        // (100 - 25) / 2 is 37 in fio's whole numbers, so 1 % of the disk is not used.
        ("50/:30/:20/25", vec![spot(50, 37.0), spot(30, 37.0), spot(20, 25.0)]),
    ] {
        let read = load(&format!("rw=randread\nrandom_distribution=zoned:{zones}"));
        assert_eq!(read.hot_spots, spots, "{zones}");
    }
    for zones in ["100/", "50/100:50/"] {
        let says = error(&format!("rw=randread\nrandom_distribution=zoned:{zones}"));
        assert!(says.contains("leaves nothing for a zone without a size"), "{says}");
    }
}

#[test]
fn a_share_that_compresses_goes_before_zeros_and_a_pattern() {
    let pattern: String = (0..=255).map(|byte| format!("{byte:02x}")).collect();
    for (options, data) in [
        ("zero_buffers\nbuffer_compress_percentage=50".to_string(), Data::Compressible { ratio: 2.0 }),
        ("buffer_compress_percentage=50\nzero_buffers".into(), Data::Compressible { ratio: 2.0 }),
        ("zero_buffers\nbuffer_compress_percentage=0".into(), Data::Zeros),
        ("zero_buffers=0".into(), Data::Random),
        ("buffer_compress_percentage=100".into(), Data::Zeros),
        (format!("zero_buffers\nbuffer_pattern=0x{pattern}"), Data::CountingBytes),
        (
            format!("buffer_pattern=0x{pattern}\nbuffer_compress_percentage=75"),
            Data::Compressible { ratio: 4.0 },
        ),
    ] {
        assert_eq!(load(&format!("rw=write\n{options}")).data, data, "{options}");
    }
    let notes = read("rw=write\nzero_buffers\nbuffer_compress_percentage=50").notes;
    assert!(notes.iter().any(|note| note.contains("zero_buffers has no effect")), "{notes:?}");
}

#[test]
fn options_without_a_job_change_only_what_they_say() {
    let over = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse_options(&words).expect(line)
    };
    assert_eq!(over(""), Invocation::default());
    let read = over("--bs=8k --iodepth=16 --numjobs=4 --rw=randrw --rwmixwrite=30 --runtime=60");
    assert_eq!(read.profile, "B8-T4-O16-W30-PR".parse().unwrap());
    assert_eq!((read.measure, read.notes), (Some(TimeSpan::seconds(60)), vec![]));
    let refused = parse_options(&["--bssplit=4k/60:8k/40".into()]).unwrap_err().to_string();
    assert!(refused.starts_with("fio option --bssplit=4k/60:8k/40: the option bssplit"), "{refused}");
}

#[test]
fn a_name_prints_as_the_job_and_the_command_that_run_the_same() {
    let invocation = Invocation {
        targets: vec!["/dev/sdb".into()],
        measure: Some(TimeSpan::seconds(60)),
        ..Invocation::of("B4-T2-O32-W30-PR".parse().unwrap())
    };
    let command = print_command(&invocation).unwrap();
    assert_eq!(
        command.text,
        "fio --name=B4-T2-O32-W30-PR --filename=/dev/sdb --rw=randrw --rwmixwrite=30 --norandommap=1 --bs=4k --numjobs=2 \
         --ioengine=io_uring --iodepth=32 --direct=1 --refill_buffers=1 --time_based=1 --runtime=60s --group_reporting=1"
    );
    assert_eq!(command.notes, Vec::<String>::new());
    assert!(print_job(&invocation).unwrap().text.ends_with("\n[B4-T2-O32-W30-PR]\nfilename=/dev/sdb\n"));
}

#[test]
fn several_targets_are_several_jobs_that_share_the_rate() {
    let invocation = Invocation {
        targets: vec!["/dev/sdb".into(), "/mnt/my file".into()],
        measure: Some(TimeSpan::seconds(10)),
        ..Invocation::of(Profile { rate: "1000iops".parse().ok(), .."B4-T5-O32-W0-PR".parse().unwrap() })
    };
    for jobs in [
        parse(&print_job(&invocation).unwrap().text).unwrap(),
        parse_command(&print_command(&invocation).unwrap().text).unwrap(),
    ] {
        assert_eq!(
            jobs.iter().map(|job| job.targets[0].as_str()).collect::<Vec<_>>(),
            ["/dev/sdb", "/mnt/my file"]
        );
        for job in jobs {
            assert_eq!(job.profile, Profile { rate: "500iops".parse().ok(), ..invocation.profile.clone() });
        }
    }
}

#[test]
fn what_a_job_cannot_say_is_a_note() {
    let profile = Profile {
        rate: Some("1000iops".parse().unwrap()),
        data: Data::Compressible { ratio: 3.0 },
        .."B4-T3-O32-W100-PSI".parse().unwrap()
    };
    let printed =
        print_job(&Invocation { cool_down: Some(TimeSpan::seconds(5)), ..Invocation::of(profile) }).unwrap();
    for about in
        ["do not share an offset", "whole numbers", "3.03 to 1", "no cool-down", "add filename", "runtime"]
    {
        assert!(printed.to_string().contains(about), "{about}: {printed}");
    }
    let named = Invocation { targets: vec!["/tmp/a;b".into()], ..Invocation::default() };
    assert!(print_job(&named).is_err() && print_command(&named).is_ok(), "; begins a comment in a job file");
}

/// What of a profile a fio job can say.
fn within_fio(mut profile: Profile) -> Profile {
    let random = matches!(profile.pattern, Pattern::Random | Pattern::Mixed { .. });
    if !random {
        profile.pattern = Pattern::Sequential;
    }
    if profile.write_percent == 0 {
        profile.data = Data::Random;
    }
    // Hot spots by size need a working set by size, to know what the rest is.
    if profile.working_set.is_none()
        && profile.hot_spots.iter().any(|spot| matches!(spot.extent, Extent::Bytes(_)))
    {
        profile.hot_spots.clear();
    }
    profile
}

fn invocation(profile: Profile, seed: u64, micros: u64) -> Invocation {
    Invocation {
        profile,
        name: Some("job".into()),
        targets: vec!["/dev/disk/by-path/pci-0000:00".into()],
        measure: Some(TimeSpan(std::time::Duration::from_micros(micros))),
        warm_up: Some(TimeSpan::seconds(3)),
        seed: Some(seed),
        ..Invocation::default()
    }
}

proptest! {
    #[test]
    fn what_fio_can_say_is_printed_and_read_back(profile in any_profile(), seed: u64, micros in 1..1u64 << 40) {
        let said = invocation(within_fio(profile), seed, micros);
        let job = print_job(&said).unwrap().text;
        let command = print_command(&said).unwrap().text;
        for mut jobs in [parse(&job).expect(&job), parse_command(&command).expect(&command)] {
            prop_assert_eq!(jobs.len(), 1);
            let mut read = jobs.remove(0);
            read.notes.clear();
            // 100 / (100 - p) is not always the same float after it has been a percentage.
            if let (Data::Compressible { ratio: a }, Data::Compressible { ratio: b }) = (read.profile.data, said.profile.data) {
                prop_assert!((a - b).abs() < 1e-9);
                read.profile.data = said.profile.data;
            }
            prop_assert_eq!(&read, &said, "{}", job);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(
        text in "\\PC*",
        nearly in "(\\[(global|a)\\]\n((bs|rw|size|rate|rate_iops|filename|random_distribution|runtime|iodepth|x)=[0-9a-z%/:.,]{0,9}\n){0,4}){1,3}",
        command in "(--(name|bs|rw|size|rate)=?[0-9a-z'\"\\\\]{0,5} ?){0,5}",
    ) {
        let _ = (parse(&text), parse_command(&text), parse_command(&command));
        for read in parse(&nearly).unwrap_or_default() {
            prop_assert_eq!(read.profile.validate(), Ok(()));
            let _ = (print_job(&read), print_command(&read));
        }
    }
}

/// The other half of the truth: that fio understands what is printed. Run with `--ignored` where fio 3.33 or
/// later is installed.
#[test]
fn fio_itself_accepts_what_is_printed() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(50));
    runner
        .run(&any_profile(), |profile| {
            let said = Invocation {
                targets: vec!["/tmp/loadline-never-created".into()],
                ..invocation(within_fio(profile), 7, 1_500_000)
            };
            let line = print_command(&said).unwrap().text;
            let fio = Command::new("sh").arg("-c").arg(format!("{line} --parse-only")).output().unwrap();
            let said =
                String::from_utf8_lossy(&fio.stderr).into_owned() + &String::from_utf8_lossy(&fio.stdout);
            prop_assert!(fio.status.success() && !said.contains("failed"), "{}\n{}", line, said);
            Ok(())
        })
        .unwrap();
}
