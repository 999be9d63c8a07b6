//! Tables as people publish them.

mod common;

use std::path::Path;

use common::{error, findings, near, sample, text};
use loadline_import::{Options, read};
use loadline_measure::analysis::{Axis, analyse};
use loadline_measure::audit::{FindingKind, Severity};
use loadline_measure::point::LatencyOf;

#[test]
fn a_table_of_workers_and_word_profiles_is_read() {
    let imported = sample("vsan-4-node-diskspd-stripes-1.csv");
    assert_eq!((imported.format, imported.points.len()), ("CSV", 120));
    assert_eq!(findings(&imported), []);
    let point = &imported.points[0];
    assert_eq!(point.place, "vsan-4-node-diskspd-stripes-1.csv, line 2");
    assert_eq!((point.workers, point.profile.as_str()), (Some(1), "4k-randwrite"));
    assert_eq!((point.block_bytes, point.write_percent), (Some(4096.0), Some(100.0)));
    assert_eq!(point.iops.unwrap().value, 37321.0);
    let throughput = point.throughput.as_ref().unwrap();
    assert_eq!((throughput.unit.as_str(), throughput.unit_bytes), ("MB/s", 1e6));
    assert_eq!(throughput.bytes_per_s.value, 146e6);
    assert_eq!(throughput.bytes_per_s.half_digit, 0.5e6);
    near(point.mean_us.unwrap().value, 1220.0);
    near(point.mean_us.unwrap().half_digit, 5.0);
    assert_eq!((point.outstanding, point.repeat, point.window_s), (None, 0, None));
    assert_eq!(imported.points[4].write_percent, Some(30.0));
    assert_eq!(sample("vsan-4-node-diskspd-stripes-2.csv").points.len(), 120);
}

#[test]
fn a_profile_of_ours_says_block_share_and_outstanding() {
    let imported = sample("azure-stack-hci-4-node.csv");
    assert_eq!((imported.points.len(), findings(&imported)), (16, vec![]));
    let point = &imported.points[0];
    assert_eq!(
        (point.nodes, point.workers, point.condition.as_deref()),
        (Some(4), Some(256), Some("healthy"))
    );
    assert_eq!(point.outstanding, Some(2.0 * 32.0 * 256.0));
    assert_eq!((point.latency_of, point.mean_us.unwrap().value), (LatencyOf::Read, 1300.0));
    let sequential = &imported.points[2];
    assert_eq!((sequential.iops, sequential.mean_us), (None, None));
    assert_eq!(sequential.throughput.as_ref().unwrap().bytes_per_s.value, 105e9);
    assert_eq!(sequential.block_bytes, Some(524288.0));
}

#[test]
fn ceilings_and_stated_percents_are_read() {
    let imported = sample("starwind-12-node.csv");
    assert_eq!((imported.points.len(), findings(&imported)), (5, vec![]));
    let point = &imported.points[0];
    assert_eq!(point.ceiling_iops.unwrap().value, 26_400_000.0);
    assert_eq!((point.stated_percent.unwrap().value, point.window_s), (101.5, Some(1500.0)));
    assert_eq!(point.outstanding, Some(16.0 * 32.0 * 48.0));
    assert_eq!(imported.points[1].write_percent, Some(10.0));
    near(imported.points[3].ceiling_bytes_per_s.unwrap().value, 112.5e9);
}

#[test]
fn what_the_user_states_counts_only_where_the_table_does_not_say_it() {
    let options = Options { outstanding_per_worker: Some(8.0) };
    let of =
        |content: &str| read(Path::new("t.csv"), content.as_bytes(), &options).unwrap().points[0].outstanding;
    assert_eq!(of("vms,iops\n3,100\n"), Some(24.0));
    assert_eq!(of("vms,profile,iops\n3,B4-T1-O2-W0-PR,100\n"), Some(6.0));
    assert_eq!(of("vms,iops,rate_iops\n3,100,200\n"), None, "a rate is no closed loop");
    assert_eq!(of("iops\n100\n"), None);
}

#[test]
fn depths_multiply_up_to_what_is_outstanding_in_all() {
    let of = |header: &str, row: &str| {
        text("t", format!("{header},iops\n{row},1\n").as_bytes()).unwrap().points[0].outstanding
    };
    assert_eq!(of("vms,threads,outstanding_per_thread", "4,2,8"), Some(64.0));
    assert_eq!(of("vms,outstanding_per_worker", "4,8"), Some(32.0));
    assert_eq!(of("vms,iodepth", "4,8"), Some(32.0));
    assert_eq!(of("vms,threads,iodepth", "4,2,8"), Some(64.0));
    assert_eq!(of("vms,outstanding_per_thread", "4,8"), None, "nothing states how many threads there are");
    assert_eq!(of("outstanding", "12"), Some(12.0));
    assert_eq!(of("iodepth", "12"), None, "nothing states how many workers there are");
}

#[test]
fn percentiles_come_in_order_and_in_microseconds() {
    let imported = text("t", b"iops,p99.9_ms,p50_us,max_ms,p99_9_us\n1,2,3,4,5\n").unwrap_err();
    assert!(imported.problem.contains("state the same"), "{imported}");
    let imported = text("t", b"iops,p99.9_ms,p50_us,max_s,min_ns\n1,2,3,4,500\n").unwrap();
    let point = &imported.points[0];
    let values: Vec<_> =
        point.percentiles_us.iter().map(|(percent, stated)| (*percent, stated.value)).collect();
    assert_eq!(values, [(50.0, 3.0), (99.9, 2000.0)]);
    assert_eq!((point.max_us.unwrap().value, point.min_us.unwrap().value), (4e6, 0.5));
}

#[test]
fn other_separators_byte_order_marks_quotes_and_blank_lines_are_fine() {
    for content in [
        "\u{feff}vms,iops\r\n\r\n1,2.5\r\n\r\n",
        "vms;iops\n1;2.5\n;\n",
        "vms\tiops\n1\t2.5\n",
        "\n\"vms\",\"iops\"\n\"1\",\"2.5\"\n",
        "VMs , IOPS \n 1 , 2.5 \n",
    ] {
        let imported = text("t", content.as_bytes()).unwrap();
        assert_eq!(imported.points.len(), 1, "{content:?}");
        assert_eq!(imported.points[0].iops.unwrap().value, 2.5);
        assert_eq!(imported.points[0].workers, Some(1));
    }
}

#[test]
fn a_comma_as_decimal_mark_is_an_error_and_never_another_figure() {
    let quoted = error("t", "vms,latency_ms,iops\n1,0.5,3\n1,\"1,22\",3\n");
    assert_eq!(quoted.place, "t, line 3, column \"latency_ms\"");
    assert!(quoted.problem.contains("1,22") && quoted.advice.contains("point"), "{quoted}");
    let semicolons = error("t", "vms;latency_ms;iops\n1;1,22;3\n");
    assert_eq!(semicolons.place, "t, line 2, column \"latency_ms\"");
    let windows = error("t", "vms,iops\r\n\r\n1,1\r\n\r\n1,x\r\n");
    assert_eq!(windows.place, "t, line 5, column \"iops\"");
    let bare = error("t", "vms,latency_ms,iops\n1,1,22,3\n");
    assert_eq!(bare.place, "t, line 2");
    assert!(bare.problem.contains("4 fields under 3 columns"), "{bare}");
}

#[test]
fn what_is_no_figure_is_an_error_with_its_place() {
    for cell in ["-1", "NaN", "inf", "1e999", "12 ms", "1_000", "0x10", "1e18000"] {
        let error = error("t", &format!("vms,iops\n1,{cell}\n"));
        assert_eq!(error.place, "t, line 2, column \"iops\"", "{cell}");
    }
    for (header, cell) in [
        ("vms", "1.5"),
        ("vms", "99999999999"),
        ("read_pct", "101"),
        ("latency_of", "both"),
        ("errors", "-1"),
        ("block_kib", "0"),
    ] {
        error("t", &format!("{header},iops\n{cell},1\n"));
    }
}

#[test]
fn columns_without_unit_or_twice_are_errors_that_name_them() {
    for (header, column) in [
        ("iops,latency", "latency"),
        ("iops,p99", "p99"),
        ("iops,mean", "mean"),
        ("vms,throughput", "throughput"),
        ("vms,MB", "MB"),
        ("iops,bandwidth", "bandwidth"),
    ] {
        let error = error("t", &format!("{header}\n1,1\n"));
        assert!(error.problem.contains(&format!("\"{column}\"")), "{error}");
        assert!(error.advice.contains("name it"), "{error}");
    }
    assert!(error("t", "iops,vms,workers\n1,1,1\n").problem.contains("\"workers\""));
    assert!(error("t", "iops,mb_per_s,mib_per_s\n1,1,1\n").problem.contains("state the same"));
}

#[test]
fn tables_without_rows_or_figures_are_errors() {
    assert!(error("t", "vms,iops\n").problem.contains("no rows"));
    assert!(error("t", "vms,latency_us\n1,2\n").problem.contains("IOPS or throughput"));
    assert!(error("t", "").problem.contains("empty"));
    assert!(error("t", "some words\n").advice.contains("CSV"));
}

#[test]
fn unknown_columns_are_named_in_one_note() {
    let imported = text("t", b"iops,color,taste\n1,red,\n").unwrap();
    assert_eq!(findings(&imported), [(FindingKind::Adjusted, Severity::Note)]);
    assert!(imported.findings[0].found.contains("\"color\", \"taste\""));
}

#[test]
fn a_column_that_contradicts_the_profile_makes_it_doubtful_once() {
    let imported =
        text("t", b"profile,block_kib,iops\nB4-T1-O1-W0-PR,8,1\nB4-T1-O1-W0-PR,8,2\n8k-read,8,2\n").unwrap();
    let doubts: Vec<_> = imported.findings.iter().filter(|f| f.severity == Severity::Doubt).collect();
    assert_eq!(doubts.len(), 1);
    assert!(
        doubts[0].expected.contains("B4-T1-O1-W0-PR") && doubts[0].found.contains("8192"),
        "{}",
        doubts[0]
    );
    assert_eq!(imported.points[0].block_bytes, Some(8192.0));
    let mix = text("t", b"read_pct,write_pct,iops\n70,40,1\n").unwrap();
    assert_eq!(findings(&mix), [(FindingKind::Adjusted, Severity::Doubt)]);
}

#[test]
fn rows_of_the_same_load_are_counted_as_repeats() {
    let imported = text("t", b"vms,profile,iops\n1,a,5\n2,a,6\n1,a,7\n").unwrap();
    assert_eq!(imported.points.iter().map(|point| point.repeat).collect::<Vec<_>>(), [1, 0, 2]);
    assert_eq!(findings(&imported), [(FindingKind::Adjusted, Severity::Note)]);
    let stated = text("t", b"vms,repeat,iops\n1,3,5\n1,4,6\n").unwrap();
    assert_eq!(stated.points.iter().map(|point| point.repeat).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(findings(&stated), []);
}

fn families(content: &str) -> Vec<String> {
    let imported = text("t", content.as_bytes()).unwrap();
    imported.points.iter().map(|point| point.family().to_string()).collect()
}

#[test]
fn rows_that_differ_in_what_no_point_keeps_are_no_repeats() {
    let content = "vms,profile,pattern,iops\n4,x,random,1000\n4,x,sequential,9000\n";
    assert_eq!(families(content), ["x, pattern random", "x, pattern sequential"]);
    let imported = text("t", content.as_bytes()).unwrap();
    assert!(imported.points.iter().all(|point| point.repeat == 0));
    let analysis = analyse(imported.points, &Default::default());
    let most: Vec<_> = analysis.groups.iter().map(|group| group.most.unwrap()).collect();
    assert_eq!(most, [1000.0, 9000.0]);
    for (header, cells, expected) in [
        ("copies", ["2", "3"], ["x, copies 2", "x, copies 3"]),
        ("block_kib", ["4", "64"], ["x, 4 KiB", "x, 64 KiB"]),
        ("write_pct", ["0", "30"], ["x, 0 % writes", "x, 30 % writes"]),
        ("latency_of", ["read", "write"], ["x, latencies of reads", "x, latencies of writes"]),
        ("engine", ["sync", ""], ["x, engine sync", "x, engine not stated"]),
        ("nodes", ["3", "4"], ["x, nodes 3", "x, nodes 4"]),
        ("iodepth", ["1", "8"], ["x, iodepth 1", "x, iodepth 8"]),
    ] {
        let [a, b] = cells;
        let content = format!("profile,{header},iops\nx,{a},1\nx,{b},2\n");
        assert_eq!(families(&content), expected, "{header}");
        let different = format!("profile,{header},iops\nx,{a},1\ny,{b},2\n");
        assert_eq!(families(&different), ["x", "y"], "{header} varies within no load");
    }
}

#[test]
fn a_sweep_keeps_its_name_whatever_results_stand_beside_it() {
    let content =
        "vms,nodes,threads,iodepth,profile,cpu,iops\n4,1,1,1,x,30,1\n8,2,1,1,x,40,2\n8,2,1,4,x,41,3\n";
    assert_eq!(families(content), ["x", "x", "x"]);
    let repeats = "vms,profile,repeat,cpu,iops\n4,x,1,30,1\n4,x,2,31,2\n";
    assert_eq!(families(repeats), ["x", "x"]);
    let unnumbered = text("t", b"vms,profile,cpu,iops\n4,x,30,1\n4,x,31,2\n").unwrap();
    assert!(unnumbered.findings.iter().any(|f| f.found == "rows that are alike but for \"cpu\""));
    let threads = "vms,profile,threads,outstanding_per_thread,iops\n1,x,2,8,1\n1,x,4,4,2\n1,x,4,8,3\n";
    assert_eq!(families(threads), ["x, threads 2", "x, threads 4", "x, threads 4"]);
}

#[test]
fn many_columns_that_tell_rows_apart_do_so_together() {
    let header: Vec<String> = (0..30).map(|column| format!("c{column}")).collect();
    let row = |last: u32| {
        let cells = (0..30).map(|column| if column == 29 { last } else { 0 }.to_string());
        cells.collect::<Vec<_>>().join(",")
    };
    let varied = vec!["9"; 30].join(",");
    let content =
        format!("profile,{},iops\nx,{},1\nx,{},2\ny,{varied},3\n", header.join(","), row(1), row(2));
    let found = families(&content);
    assert_ne!(found[0], found[1]);
    assert_eq!(found[2], "y");
    let long = "z".repeat(100);
    let found = families(&format!("profile,c,iops\nx,{long}1,1\nx,{long}2,2\n"));
    assert_ne!(found[0], found[1], "they differ beyond what is shown");
}

#[test]
fn names_of_ours_that_differ_in_depth_are_one_sweep() {
    let content = "vms,profile,iops\n4,B4-T1-O1-W0-PR,100\n4,B4-T1-O8-W0-PR,500\n4,B4-T1-O1-W30-PR,90\n";
    assert_eq!(families(content), ["B4-W0-PR", "B4-W0-PR", "B4-T1-O1-W30-PR"]);
    let analysis = analyse(text("t", content.as_bytes()).unwrap().points, &Default::default());
    assert_eq!((analysis.groups[0].axis, analysis.groups[0].points), (Some(Axis::Outstanding), 2));
    let apart = "vms,profile,pattern,iops\n4,B4-T1-O1-W0-PR,a,1\n4,B4-T1-O8-W0-PR,b,5\n";
    assert_eq!(families(apart), ["B4-W0-PR, pattern a", "B4-W0-PR, pattern b"]);
    let open = "profile,iops\nB4-T1-O1-W0-PR,100\nB4-T1-O8-W0-PR,500\n";
    assert_eq!(families(open), ["B4-T1-O1-W0-PR", "B4-T1-O8-W0-PR"], "nothing else distinguishes them");
}

#[test]
fn megabits_are_never_taken_for_megabytes() {
    for (name, unit) in [("throughput (Mb/s)", "mb_per_s"), ("Gb/s", "gb_per_s"), ("Kb/s", "kb_per_s")] {
        let error = error("t", &format!("vms,{name}\n1,5\n"));
        assert!(error.problem.contains("bits or in bytes") && error.advice.contains(unit), "{error}");
    }
    assert_eq!(text("t", b"MB/s\n5\n").unwrap().points.len(), 1);
}

#[test]
fn points_that_may_group_thousands_are_doubtful() {
    let doubts = |content: &str| {
        let imported = text("t", content.as_bytes()).unwrap();
        let doubts = imported.findings.into_iter().filter(|f| f.severity == Severity::Doubt);
        doubts.map(|f| f.found).collect::<Vec<_>>()
    };
    assert_eq!(
        doubts("vms;iops;latency_ms\n1;1.000;0.430\n2;2.500;1.000\n3;;1.200\n"),
        ["2 figures, each with exactly three digits after the point, such as 1.000"]
    );
    for plain in
        ["vms;iops\n1;1.000\n2;2.5\n", "vms;iops\n1;1000.500\n", "vms;iops\n1;1000\n", "vms,iops\n1,1.000\n"]
    {
        assert!(doubts(plain).is_empty(), "{plain}");
    }
}

#[test]
fn what_is_out_of_bounds_is_said_to_be() {
    for (header, cell, wrong) in [
        ("iops", "-5", "is negative"),
        ("iops", "1e19", "is too large"),
        ("iops", "1e999", "is too large"),
        ("iops,p99_s", "1,1e15", "is too large"),
        ("vms,iops", "99999999999,1", "is too large"),
        ("vms,iops", "-1,1", "is negative"),
        ("vms,iops", "1.5,1", "is not a whole number above 0"),
        ("iops", "x", "is not a number"),
        ("read_pct,iops", "101,1", "is not a percentage, 0 to 100"),
        ("block_kib,iops", "0,1", "is not a number above 0"),
    ] {
        let error = error("t", &format!("{header}\n{cell}\n"));
        assert!(error.problem.ends_with(wrong), "{cell}: {error}");
    }
}

#[test]
fn an_empty_cell_states_nothing() {
    let imported = text("t", b"vms,iops,latency_us,errors\n,5,,\n").unwrap();
    let point = &imported.points[0];
    assert_eq!((point.workers, point.mean_us, point.errors), (None, None, 0));
}

#[test]
fn a_log_of_intervals_is_refused_and_names_are_kept_whole_and_printable() {
    let rows = format!("iops\n{}", "1\n".repeat(200_001));
    assert!(error("t", &rows).problem.contains("more than 200000 rows"));
    let long = "x".repeat(300);
    let imported = text("t", format!("profile,condition,iops\n{long},a\u{1b}[2J,1\n").as_bytes()).unwrap();
    assert_eq!(imported.points[0].profile, long);
    assert_eq!(imported.points[0].condition.as_deref(), Some("a?[2J"));
}

#[test]
fn a_file_that_is_too_large_is_refused_at_once() {
    let large = vec![b'x'; loadline_import::LARGEST_FILE + 1];
    assert!(text("t", &large).unwrap_err().problem.contains("64 MiB"));
}

#[test]
fn rows_of_the_same_repeat_are_doubtful_and_no_workers_are_refused() {
    let twice = text("t", b"profile,repeat,iops\nx,1,100\nx,2,101\nx,2,300\n").unwrap();
    let doubt =
        twice.findings.iter().find(|finding| finding.severity == Severity::Doubt).expect("it is doubtful");
    assert!(doubt.found.contains("2 rows that state the same repeat"), "{doubt}");
    let once = text("t", b"profile,repeat,iops\nx,1,100\nx,2,101\n").unwrap();
    assert!(once.findings.iter().all(|finding| finding.severity != Severity::Doubt));
    assert!(error("t", "profile,workers,iops\nx,0,100\n").problem.contains("a whole number above 0"));
}

#[test]
fn a_line_that_states_the_separator_and_text_of_windows_are_understood() {
    let table = "sep=;\r\nvms;profile;iops;latency_us\r\n1;4k-randread;5;9\r\n";
    let wide: Vec<u8> = table.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for bytes in [table.as_bytes(), &wide] {
        let imported = text("t.csv", bytes).unwrap();
        assert_eq!(imported.points[0].iops.unwrap().value, 5.0);
        assert_eq!(imported.points[0].place, "t.csv, line 3");
    }
    let comma = error("t.csv", &table.replace(";9", ";9,5"));
    assert!(comma.problem.contains("9,5") && comma.place.contains("line 3"), "{comma}");
    for empty in ["", "\u{feff}", "\r\n\r\n", "sep=;\n"] {
        assert!(text("t.csv", empty.as_bytes()).is_err(), "{empty:?}");
    }
}
