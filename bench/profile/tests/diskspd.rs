//! DISKSPD command lines: each flag with its true meaning, both ways.

mod common;

use common::any_profile;
use loadline_base::units::{ByteSize, Rate, TimeSpan};
use loadline_profile::diskspd::{parse, parse_over, print};
use loadline_profile::{
    Arrival, Data, ErrorKind, Extent, HotSpot, Invocation, OfferedRate, Pattern, Profile,
};
use proptest::prelude::*;

fn load(line: &str) -> Profile {
    parse(line).expect(line).profile
}

fn error(line: &str) -> String {
    parse(line).expect_err(line).to_string()
}

fn percent(io_percent: u8, share: f64) -> HotSpot {
    HotSpot { io_percent, extent: Extent::Percent(share) }
}

#[test]
fn a_line_from_real_life_reads_as_diskspd_runs_it() {
    let read = parse(r"diskspd -b4K -t2 -o32 -w0 -r -Suw -D -L -d60 -W15 -c10G X:\file.dat").unwrap();
    let load =
        Profile { write_through: true, data: Data::CountingBytes, ..("B4-T2-O32-W0-PR".parse().unwrap()) };
    assert_eq!(read.profile, load);
    assert_eq!(read.targets, [r"X:\file.dat"]);
    assert_eq!(read.create_size, Some(ByteSize(10 << 30)));
    assert_eq!(read.warm_up, Some(TimeSpan::seconds(15)));
    assert_eq!(read.measure, Some(TimeSpan::seconds(60)));
    // What changes nothing about the load is said, not swallowed.
    assert!(read.notes.iter().any(|note| note.starts_with("-D ")), "{:?}", read.notes);
    assert!(read.notes.iter().any(|note| note.starts_with("-L ")), "{:?}", read.notes);
}

#[test]
fn more_lines_from_real_life() {
    let read =
        parse(r#""C:\Tools\DiskSpd.exe" -c2G -w100 -b4K -F8 -r -o32 -W60 -d60 -Sh "my file.dat""#).unwrap();
    assert_eq!((read.profile.threads, read.profile.write_percent), (8, 100));
    assert!(read.profile.direct && read.profile.write_through);
    assert_eq!(read.targets, ["my file.dat"]);

    let old = load(r"diskspd.exe -b8K -d30 -o4 -t8 -h -r -w25 -L -Z1G -c20G T:\iotest.dat");
    assert_eq!((old.direct, old.write_through, old.data), (true, true, Data::Random));

    let sweep = load("diskspd.exe -z -b64K -t1 -o8 -w30 -si -Suw -g250 -Rxml #1");
    assert_eq!(sweep.pattern, Pattern::SequentialInterleaved);
}

#[test]
fn what_a_line_does_not_say_is_as_diskspd_has_it() {
    let read = parse("file.dat").unwrap();
    assert_eq!(
        read.profile,
        Profile {
            block_size: ByteSize::kib(64),
            threads: 1,
            outstanding: 2,
            write_percent: 0,
            pattern: Pattern::Sequential,
            data: Data::CountingBytes,
            direct: false,
            ..Profile::default()
        }
    );
    assert_eq!(read.warm_up, Some(TimeSpan::seconds(5)));
    assert_eq!(read.measure, Some(TimeSpan::seconds(10)));
    assert_eq!(read.cool_down, Some(TimeSpan::seconds(0)));
}

#[test]
fn a_rate_is_per_thread_and_target_and_the_profile_has_the_total() {
    let two_targets_of_four_threads = load("-b4K -t4 -g1000i a.dat b.dat");
    let total = OfferedRate { rate: Rate::Iops(8000.0), arrival: Arrival::Uniform };
    assert_eq!(two_targets_of_four_threads.rate, Some(total));

    let bytes_a_millisecond = load("-b4K -t2 -g100 a.dat");
    assert_eq!(bytes_a_millisecond.rate.unwrap().rate, Rate::BytesPerSecond(200_000.0));
}

#[test]
fn sizes_may_count_in_blocks_and_f_counts_from_the_beginning() {
    let load = load("-b8K -r2b -B1M -f1G file");
    assert_eq!(load.alignment, Some(ByteSize::kib(16)));
    assert_eq!(load.base_offset, ByteSize(1 << 20));
    assert_eq!(load.working_set, Some(Extent::Bytes(ByteSize((1 << 30) - (1 << 20)))));
    let newer = parse("-b8K -r -B1G:2G file").unwrap().profile;
    assert_eq!(newer, parse("-b8K -r -B1G -f3G file").unwrap().profile);
}

#[test]
fn distributions_are_hot_spots_in_percent_or_in_bytes() {
    assert_eq!(load("-r -rdpct95/5:4/10 f").hot_spots, [percent(95, 5.0), percent(4, 10.0)]);
    let hole = load("-r -rdpct90/10:0/10:5/20 f");
    assert_eq!(hole.hot_spots[1], percent(0, 10.0));
    let absolute = load("-r -rdabs90/10G f");
    assert_eq!(absolute.hot_spots, [HotSpot { io_percent: 90, extent: Extent::Bytes(ByteSize(10 << 30)) }]);
}

#[test]
fn random_among_sequential_is_a_mix_and_all_of_it_is_random() {
    assert_eq!(load("-rs70 f").pattern, Pattern::Mixed { random_percent: 70 });
    assert_eq!(load("-rs100 f").pattern, Pattern::Random);
    assert_eq!(load("-b4K -rs70 -r8K f").alignment, Some(ByteSize::kib(8)));
}

#[test]
fn caching_is_what_s_says() {
    for (flag, direct, write_through) in [
        ("-S", true, false),
        ("-Su", true, false),
        ("-Sh", true, true),
        ("-Swu", true, true),
        ("-h", true, true),
    ] {
        let load = load(&format!("{flag} f"));
        assert_eq!((load.direct, load.write_through), (direct, write_through), "{flag}");
    }
    assert_eq!((load("-Sb f").direct, load("-Sbw f").write_through), (false, true));
    assert!(
        error("-Su -Sb f").contains("word 2 \"-Sb\": -Sb says something about caching that was said before")
    );
}

#[test]
fn a_flag_without_a_counterpart_is_an_error_that_names_it_and_its_place() {
    let refused = parse("diskspd -b4K -T1M -t4 f").unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert_eq!(
        refused.to_string(),
        "DISKSPD line, word 3 \"-T1M\": the flag -T with this value is not supported; threads that start apart have \
         no counterpart; use -si, where they share one offset"
    );
    for flag in [
        "-O4",
        "-i10",
        "-j5",
        "-p",
        "-Xp.xml",
        "-Nv",
        "-I1",
        "-ysevent",
        "-Sm",
        "-Sr",
        "-Z1M,file",
        "-q",
        "-é",
    ] {
        assert_eq!(parse(&format!("{flag} f")).unwrap_err().kind, ErrorKind::Unsupported, "{flag}");
    }
}

#[test]
fn a_line_that_is_wrong_says_what_and_where() {
    for (line, says) in [
        ("-b4Q f", "word 1 \"-b4Q\": the block size cannot be read"),
        ("-b4K -w f", "the share of writes is not a percentage; write -w0 to -w100"),
        ("-b4K -w130 f", "not a percentage"),
        ("f -b4K", "word 2 \"-b4K\": a flag after a target"),
        ("-t2 -F4 f", "the number of threads is given a second time"),
        ("-b4K -b8K f", "-b is given a second time"),
        ("-r -s f", "sequential -s with random -r"),
        ("-rs0 f", "0 % random I/O"),
        ("-rdpct90 f", "\"90\" has no slash"),
        ("-rdzipf1/2 f", "neither pct nor abs"),
        ("-s -rdpct90/10 f", "hot_spots: sequential I/O has no hot spots"),
        ("-r -rdpct90/10:20/10 f", "hot_spots: together they receive 110 %"),
        ("-g0 f", "a rate of 0"),
        ("-d0 f", "a measurement of 0 seconds"),
        ("-B2G -f1G f", "ends at 1GiB, before it begins at 2GiB"),
        ("-t0 f", "DISKSPD line, threads: 0 threads"),
        ("-b4K \"f", "a double quote is not closed"),
        ("–b8K f", "a dash that is not a hyphen"),
        ("/b4K f", "a flag written with a slash"),
        ("-s0 f", "a step of 0"),
        ("-B1G:2G -f3G f", "-f with a length in -B"),
        ("-Sq f", "-S has no mode 'q'"),
        ("- f", "a hyphen without a flag"),
    ] {
        assert!(error(line).contains(says), "{line}: {}", error(line));
    }
}

#[test]
fn flags_that_change_only_how_diskspd_works_are_accepted_and_said() {
    for flag in [
        "-bsn",
        "-oc4",
        "-v",
        "-n",
        "-ag0,1",
        "-l",
        "-x",
        "-P100",
        "-eDISK_IO",
        "-Rxml",
        "-fr",
        "-D100",
        "-z",
    ] {
        let read = parse(&format!("-b4K {flag} f")).expect(flag);
        assert_eq!(read.profile, load("-b4K f"), "{flag}");
        assert!(read.notes.len() == 1 && read.notes[0].starts_with(flag), "{flag}: {:?}", read.notes);
    }
}

#[test]
fn a_linux_device_is_a_target() {
    assert_eq!(parse("-b4K -r /dev/nvme0n1 /dev/sdb").unwrap().targets, ["/dev/nvme0n1", "/dev/sdb"]);
}

#[test]
fn flags_over_a_load_change_only_what_they_say() {
    let base = Profile::default();
    let over = |line: &str| parse_over(line, &base).expect(line);
    let read = over("-b4k -o32 -w30 -t4 -d60");
    assert_eq!(read.profile, "B4-T4-O32-W30-PR".parse().unwrap());
    assert_eq!((read.measure, read.warm_up), (Some(TimeSpan::seconds(60)), None));
    assert_eq!(over("-w0").profile, base);
    assert_eq!(
        over("-s -Sb").profile,
        Profile { pattern: Pattern::Sequential, direct: false, ..base.clone() }
    );
}

#[test]
fn a_name_prints_as_the_line_that_runs_the_same() {
    let invocation = Invocation {
        targets: vec!["#1".into()],
        measure: Some(TimeSpan::seconds(60)),
        warm_up: Some(TimeSpan::seconds(15)),
        ..Invocation::of("B4-T2-O32-W30-PR".parse().unwrap())
    };
    let printed = print(&invocation).unwrap();
    assert_eq!(printed.text, "diskspd -b4K -t2 -o32 -w30 -r -Su -Zr -W15 -d60 -L #1");
    assert_eq!(printed.notes, Vec::<String>::new());
}

#[test]
fn what_a_line_cannot_say_is_a_note() {
    let profile = Profile {
        rate: Some("1000iops poisson".parse().unwrap()),
        flush_every: Some(4),
        working_set: Some(Extent::Percent(10.0)),
        data: Data::Compressible { ratio: 2.0 },
        ..("B4-T3-O32-W30-PR".parse().unwrap())
    };
    let printed = print(&Invocation::of(profile)).unwrap();
    for about in
        ["Poisson", "-g333i", "whole numbers", "flush", "-f with", "compresses 2 to 1", "add the target"]
    {
        assert!(printed.to_string().contains(about), "{about}: {printed}");
    }
}

proptest! {
    #[test]
    fn what_diskspd_can_say_is_printed_and_read_back(profile in any_profile(), seed: u32, times in [1u64..999, 0..999, 0..999]) {
        let data = match profile.data {
            Data::Compressible { .. } => Data::Zeros,
            other => other,
        };
        let rate = profile.rate.map(|rate| OfferedRate { arrival: Arrival::Uniform, ..rate });
        let profile = Profile { data, rate, flush_every: None, ..profile };
        let invocation = Invocation {
            profile,
            targets: vec!["/dev/sdb".into()],
            measure: Some(TimeSpan::seconds(times[0])),
            warm_up: Some(TimeSpan::seconds(times[1])),
            cool_down: Some(TimeSpan::seconds(times[2])),
            create_size: Some(ByteSize(1 << 44)),
            seed: Some(seed.into()),
            ..Invocation::default()
        };
        let text = print(&invocation).unwrap().text;
        let read = parse(&text).unwrap();
        prop_assert_eq!(Invocation { notes: Vec::new(), ..read }, invocation, "{}", text);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC*", nearly in "(-[btowrsdWCDFgLSZcfBRzhI][0-9a-zA-Z/:,.]{0,9} ?){0,6}f?") {
        let _ = parse(&text);
        if let Ok(read) = parse(&nearly) {
            prop_assert_eq!(read.profile.validate(), Ok(()));
            let _ = print(&read);
        }
    }
}
