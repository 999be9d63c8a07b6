//! `loadline compare`: two real runs, of which one is certainly faster, and everything that is no two runs.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::{finish, folder, number, run, start};

const LIMIT: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A study of four repeats on a file of its own, or on nothing at all, which is faster than any storage.
fn study(folder: &Path, name: &str, target: &str) -> PathBuf {
    let path = folder.join(format!("{name}.toml"));
    let content = format!(
        "name = \"{name}\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{target}\n[phases]\nwarm_up = \"0s\"\n\
         measure = \"1s\"\ncool_down = \"0s\"\n[run]\nrepeats = 4\n"
    );
    fs::write(&path, content).unwrap();
    path
}

#[test]
fn a_file_is_slower_than_nothing_and_ci_is_told() {
    let place = folder();
    let (on_null, on_file) = (place.path().join("on-null"), place.path().join("on-file"));
    let null = study(place.path(), "null", "[target]\ndevices = [\"null:1GiB\"]");
    let file = study(place.path(), "file", "[fleet]\ndisk_size = \"4MiB\"");
    let begun = [(&null, &on_null), (&file, &on_file)]
        .map(|(study, out)| start(["run", text(study), "--out", text(out)]));
    for child in begun {
        let said = finish(child, LIMIT);
        assert!(matches!(said.code, Some(0 | 3)), "{:?}: {}{}", said.code, said.out, said.err);
    }

    // Slower, in every form.
    let (xml, page) = (place.path().join("compare.xml"), place.path().join("compare.md"));
    let forms = ["--junit", text(&xml), "--markdown", text(&page)];
    let words = ["compare", text(&on_null), text(&on_file)];
    let said = run(words.iter().chain(&forms));
    assert_eq!(said.code, Some(99), "{}{}", said.out, said.err);
    assert!(said.out.contains("B4-T1-O1-W0-PR") && said.out.contains("  slower\n"), "{}", said.out);
    assert!(said.out.contains("target.devices: null:1GiB -> not given"), "{}", said.out);
    let junit = fs::read_to_string(&xml).unwrap();
    assert!(junit.contains("failures=\"1\"") && junit.contains("name=\"B4-T1-O1-W0-PR\""), "{junit}");
    let markdown = fs::read_to_string(&page).unwrap();
    assert!(markdown.contains("| B4-T1-O1-W0-PR | 4"), "{markdown}");
    let json = run(words.iter().chain(&["--json"])).json();
    assert_eq!(json["loads"][0]["verdict"], "slower");
    assert!(number(&json, "loads/0/iops/ratio/high") < 1.0, "{json}");
    let allowed = run(words.iter().chain(&["--allow-slower", "100"]));
    assert_eq!(allowed.code, Some(3), "it is slower, as is allowed, by another engine: {}", allowed.out);

    // The other way round it is faster; files of before are written over, as in a CI that is run again.
    let said = run(["compare", text(&on_file), text(&on_null)].iter().chain(&forms));
    assert_eq!(said.code, Some(3), "faster, by another engine: {}{}", said.out, said.err);
    assert!(said.out.contains("  faster\n"), "{}", said.out);
    assert!(fs::read_to_string(&xml).unwrap().contains("failures=\"0\""));

    // What is not ours stays as it is, and nothing else is made.
    let precious = place.path().join("precious.txt");
    fs::write(&precious, "precious").unwrap();
    for (option, path, why) in [
        ("--junit", precious.as_path(), "not overwritten"),
        ("--markdown", precious.as_path(), "not overwritten"),
        ("--markdown", xml.as_path(), "not overwritten"),
        ("--junit", place.path(), "is a directory"),
        ("--junit", Path::new("/dev/null"), "no regular file"),
        ("--markdown", Path::new("/nowhere/compare.md"), "Make the folder first"),
    ] {
        run(words.iter().chain(&[option, text(path)])).refused(2, &[option, text(path), why]);
    }
    let new = place.path().join("new");
    run(words.iter().chain(&["--junit", text(&new), "--markdown", text(&new)])).refused(2, &["named twice"]);
    assert!(!new.exists());
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 7, "nothing temporary is left");

    // The same run twice, by whatever name; no run; a run that is damaged.
    let other_name = place.path().join("on-null/../on-null");
    run(["compare", text(&on_null), text(&other_name)]).refused(2, &["the same run"]);
    run(["compare", text(&on_null), text(place.path())]).refused(2, &["B: ", "run.json"]);
    run(["compare", "/nowhere/run", text(&on_null)]).refused(2, &["A: ", "/nowhere/run"]);
    run(["compare", text(&on_null)]).refused(2, &["<B>"]);

    // Unfinished: as far as it is. A step that is damaged is a missing one, and is counted.
    let last = fs::read_dir(on_file.join("steps")).unwrap().flatten().map(|e| e.path()).max().unwrap();
    fs::remove_dir_all(&last).unwrap();
    let said = run(words);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.out.contains("B is unfinished: 3 of 4 steps are complete"), "{}", said.out);
    assert!(said.out.contains("too few repeats to tell"), "{}", said.out);
    let first = fs::read_dir(on_file.join("steps")).unwrap().flatten().map(|e| e.path()).min().unwrap();
    fs::write(first.join("result.json"), "{").unwrap();
    let said = run(words);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    for part in ["B has damaged steps (1)", "B is unfinished: 2 of 4 steps are complete"] {
        assert!(said.out.contains(part), "no \"{part}\" in {}", said.out);
    }
}
