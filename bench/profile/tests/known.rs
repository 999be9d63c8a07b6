//! Names that people know, each checked against what its source says.

use loadline_base::units::ByteSize;
use loadline_profile::known::known;
use loadline_profile::{Extent, Notation, Profile, diskspd, read};

fn load(name: &str) -> Profile {
    name.parse().expect(name)
}

fn named(name: &str) -> Profile {
    name.parse().expect(name)
}

#[test]
fn a_size_and_a_direction_are_a_name() {
    for (name, letters) in [
        ("4k-randread", "B4-T1-O32-W0-PR"),
        ("4k-randwrite", "B4-T1-O32-W100-PR"),
        ("8k-70-30", "B8-T1-O32-W30-PR"),
        ("4K-50-50", "B4-T1-O32-W50-PR"),
        ("256k-write", "B256-T1-O32-W100-PS"),
        ("1m-seqread", "B1024-T1-O32-W0-PS"),
    ] {
        assert_eq!(load(name), named(letters), "{name}");
        let reading = read(name).unwrap();
        assert_eq!((reading.notation, reading.invocations.len()), (Notation::Name, 1));
    }
    for (name, says) in [
        ("8k-70-40", "reads and writes do not make 100 %"),
        ("8k-sideways", "\"sideways\" is no direction; write randread"),
        ("0k-randread", "0 is not a block size"),
        ("99999999999999999999k-read", "the block size is too large"),
        ("3m-randread", ""),
    ] {
        let result = name.parse::<Profile>();
        match says {
            "" => assert!(result.is_ok(), "{result:?}"),
            says => assert!(result.unwrap_err().to_string().contains(says), "{name}"),
        }
    }
}

/// The command lines stand in VMFleet's `Profile.psm1` above each workload; its XML adds `-Suw` to all of them.
#[test]
fn vmfleets_workloads_are_those_of_its_command_lines() {
    for (name, line) in [
        ("vmfleet-peak", "-t1 -b4k -o32 -w0 -r -Suw -D -L -Z10m"),
        ("vmfleet-general", "-t1 -b4k -o32 -w0 -r -Suw -D -L -Z10m -rdpct95/5:4/10"),
        ("vmfleet-vdi-write", "-t1 -o8 -b32k -w100 -g6i -rs20 -rdpct95/5:4/10 -Z10m -f10g -Suw"),
        ("vmfleet-sql-oltp", "-t4 -o32 -r -b8k -g1500i -w30 -rdpct95/5:4/10 -B5g -Z10m -Suw"),
        ("vmfleet-sql-log", "-t1 -o1 -s -b32k -g300i -w100 -f5g -Z10m -Suw"),
    ] {
        assert_eq!(load(name), diskspd::parse(line).unwrap().profile, "{name}");
    }
    // Reads write nothing, so what they would write does not matter.
    let read = diskspd::parse("-t1 -o8 -b8k -w0 -g6i -rs80 -rdpct95/5:4/10 -f8g -Suw").unwrap().profile;
    assert_eq!(load("vmfleet-vdi-read"), Profile { data: Profile::default().data, ..read });
    assert_eq!(load("General"), load("vmfleet-general"));
    assert_eq!(load("PEAK"), load("vmfleet-peak"));
}

#[test]
fn two_loads_at_once_are_shown_as_two_and_name_their_parts_where_one_is_wanted() {
    let both = read("vmfleet-sql").unwrap().invocations;
    let names: Vec<_> = both.iter().map(|load| load.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["vmfleet-sql-oltp", "vmfleet-sql-log"]);
    let refused = "vmfleet-vdi".parse::<Profile>().unwrap_err().to_string();
    assert_eq!(
        refused,
        "profile name \"vmfleet-vdi\": it is two loads at once; give one of them, vmfleet-vdi-read or \
         vmfleet-vdi-write, or run both at the same time"
    );
}

/// `easy-run.rb`: 8 disks, 32 / 8 = 4 threads for each, and a quarter of them for 256 KiB.
#[test]
fn hcibenchs_easy_run_has_four_workloads() {
    for (name, letters) in [
        ("4k70r", "B4-T1-O4-W30-PR"),
        ("4k100r", "B4-T1-O4-W0-PR"),
        ("8k50r", "B8-T1-O4-W50-PR"),
        ("256k0r", "B256-T1-O1-W100-PS"),
    ] {
        assert_eq!(load(name), named(letters), "{name}");
        assert_eq!(load(&format!("hcibench-{name}")), named(letters), "{name}");
    }
}

#[test]
fn oltp_sql_and_vdi_are_one_load_each_on_the_whole_disk() {
    assert_eq!(load("oltp"), named("B8-T1-O32-W30-PR"));
    let sql = Profile { rate: None, base_offset: ByteSize(0), ..load("vmfleet-sql-oltp") };
    assert_eq!(load("SQL"), sql);
    let (vdi, parts) = (load("vdi"), [load("vmfleet-vdi-read"), load("vmfleet-vdi-write")]);
    let mean: u64 = parts.iter().map(|part| part.block_size.bytes()).sum::<u64>() / 2;
    assert_eq!((vdi.block_size.bytes(), vdi.write_percent, vdi.working_set), (mean, 50, None::<Extent>));
}

#[test]
fn every_known_name_is_sound_described_and_found_in_any_case() {
    for profile in known() {
        assert!(profile.what.len() > 20 && !profile.what.contains('\n'), "{}", profile.name);
        for name in profile.aliases.iter().chain([&profile.name]) {
            let reading = read(&name.to_uppercase()).expect(name);
            for invocation in reading.invocations {
                assert_eq!(invocation.profile.validate(), Ok(()), "{name}");
            }
        }
    }
}

#[test]
fn an_unknown_name_says_which_was_probably_meant_and_where_all_are_shown() {
    let says = "oltpp".parse::<Profile>().unwrap_err().to_string();
    assert!(
        says.starts_with(
            "profile name \"oltpp\": there is no such profile; did you mean oltp? `loadline profile list` shows the names"
        ),
        "{says}"
    );
    let says = "bananas".parse::<Profile>().unwrap_err().to_string();
    assert!(says.contains("there is no such profile; `loadline profile list`"), "{says}");
}
