//! The history of runs in the console: real runs, by its API and in a real browser.

#[path = "support/console.rs"]
mod driver;
mod support;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

use driver::{Console, LIMIT, browse};
use serde_json::{Value, json};
use support::{eventually, finish, folder, run, start};

/// How long a browser may look at all pages.
const BROWSER: Duration = Duration::from_secs(480);
/// What a name of a folder must not become on a page.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

/// A console of the runs in this folder.
fn start_console(cache: &Path, runs: &Path) -> Console {
    let words = ["--port", "0", "lab=127.0.0.1:9", "--runs"].map(OsStr::new);
    Console::start_in(Path::new("."), cache, words.into_iter().chain([runs.as_os_str()]))
}

fn get(console: &Console, path: &str) -> Value {
    let (status, _, content) = console.ask(&format!("GET {path}"), "", "");
    assert_eq!(status, 200, "{path}: {content}");
    serde_json::from_str(&content).unwrap_or_else(|e| panic!("{e}: {content}"))
}

/// The id of the run in the folder of this name.
fn id(console: &Console, name: &str) -> String {
    let all = get(console, "/api/runs?count=200");
    let runs = all["runs"].as_array().expect("it is a list");
    let run = runs.iter().find(|run| run["path"].as_str().is_some_and(|path| path.ends_with(name)));
    run.unwrap_or_else(|| panic!("{name} in {all:#}"))["id"].as_str().expect("it is a text").to_owned()
}

/// A study on no storage at all, whose loads take a second for each repeat.
fn study(place: &Path, name: &str, repeats: u32, more: &str) -> String {
    let path = place.join(format!("{name}.toml"));
    let text = format!(
        "name = \"{name}\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{more}[target]\ndevices = [\"null:1GiB\"]\n\
         [phases]\nwarm_up = \"0s\"\nmeasure = \"1s\"\ncool_down = \"0s\"\n[run]\nrepeats = {repeats}\n"
    );
    fs::write(&path, text).expect("it is ours");
    path.display().to_string()
}

#[test]
fn runs_are_listed_compared_and_noted_and_a_figure_is_shown_over_many_of_them() {
    let place = folder();
    let runs = place.path().canonicalize().unwrap().join("runs");
    fs::create_dir(&runs).unwrap();
    let out = |name: &str| runs.join(name).display().to_string();
    let paced = study(place.path(), "paced", 4, "");
    let short = study(place.path(), "short", 1, "");
    let measure = |study: &str, name: &str| {
        let said = finish(start(["run", study, "--out", &out(name)]), LIMIT);
        assert!(matches!(said.code, Some(0 | 3)), "{:?}: {}{}", said.code, said.out, said.err);
    };
    // No figure has to be right, so that the runs are at the same time. The names say which of them began first.
    std::thread::scope(|scope| {
        scope.spawn(|| ["before", "after"].map(|name| measure(&paced, name)));
        (0..7).for_each(|n| measure(&short, &format!("short-{n}")));
    });
    fs::create_dir(runs.join(HOSTILE)).unwrap();
    fs::write(runs.join(HOSTILE).join("run.json"), "{\"<b>\":").unwrap();

    let nothing = place.path().join("nothing");
    fs::create_dir(&nothing).unwrap();
    let cache = place.path().join("cache");
    let (console, empty) = (start_console(&cache, &runs), start_console(&cache, &nothing));
    eventually("all runs are listed", LIMIT, || get(&console, "/api/runs")["total"] == 10);
    assert!(cache.join("loadline/runs-1.sqlite").exists());
    let list = get(&console, "/api/runs?count=3&from=1");
    assert_eq!((list["runs"].as_array().unwrap().len(), &list["studies"]), (3, &json!(["paced", "short"])));

    // The comparison is that of the command, whose folders are given as the console has them.
    let [before, after] = ["/before", "/after"].map(|name| id(&console, name));
    let compared = get(&console, &format!("/api/compare?base={before}&new={after}"));
    let said = run(["compare", &out("before"), &out("after"), "--json"]);
    assert_eq!(compared["comparison"], said.json());

    // What another page could send is refused.
    let path = format!("PUT /api/runs/{after}/notes");
    let body = "{\"tags\":[\"x\"],\"note\":\"\"}";
    let key = format!("Authorization: Bearer {}\r\n", console.key());
    let json = &format!("{key}Content-Type: application/json\r\n");
    assert_eq!(console.ask(&path, "Content-Type: application/json\r\n", body).0, 401);
    assert_eq!(console.ask(&path, &format!("{key}Content-Type: text/plain\r\n"), body).0, 415);
    assert_eq!(console.ask(&path, &format!("{json}Origin: http://evil.example\r\n"), body).0, 403);
    assert_eq!(console.ask(&path, json, "{\"tags\":[\"\"]}").0, 400);
    assert_eq!(console.ask(&path, json, &"x".repeat(100 << 10)).0, 413);
    assert_eq!(console.ask("PUT /api/runs/none/notes", json, body).0, 404);
    let (status, _, content) = console.ask("GET /api/runs/none", "", "");
    assert!(status == 404 && content.contains("there is no run"), "{content}");
    assert_eq!(console.ask(&format!("GET /api/compare?base={after}&new={after}"), "", "").0, 400);
    assert_eq!(console.ask("GET /api/trend", "", "").0, 400);
    assert!(!runs.join("after/notes.json").exists());

    let shown = browse("console_runs.mjs", [&*console.url(), &*empty.url(), console.key()], BROWSER).json();
    let list = shown["list"].as_array().unwrap();
    let row =
        |name: &str| list.iter().find(|row| row[1] == name).unwrap_or_else(|| panic!("{name} in {shown:#}"));
    assert_eq!(row(HOSTILE)[3], "cannot be read");
    assert!(row(HOSTILE)[5].as_str().unwrap().contains("run.json"), "{shown:#}");
    let report = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(runs.join(name).join("report/report.json")).unwrap())
            .unwrap()
    };
    let of_run = report("after");
    assert_eq!(row("after")[5], of_run["tiles"]["answer"]["headline"]);
    assert_eq!(shown["found"].as_array().unwrap().len(), 1);
    assert_eq!(shown["tiles"][0], of_run["tiles"]["answer"]["headline"]);
    // Every figure is the file's.
    let load = &of_run["loads"][0];
    let figures = json!([
        load["repeats"].as_f64(),
        load["iops"]["median"],
        load["mean_us"]["median"],
        load["p99_us"]["median"]
    ]);
    assert_eq!(numbers(&shown["run"]), numbers(&figures));
    let load = &said.json()["loads"][0];
    let [iops, p99] = ["iops", "p99_us"].map(|name| load[name].clone());
    let ratio = |of: &Value| of["ratio"]["estimate"].clone();
    let figures = json!([iops["a"], iops["b"], ratio(&iops), p99["a"], p99["b"], ratio(&p99)]);
    assert_eq!(numbers(&shown["compared"]["figures"]), numbers(&figures));
    // Why a change is not the quotient of the two medians; and none is shown where there are too few repeats for an interval.
    let legend = shown["legend"].as_str().unwrap();
    assert!(
        legend.contains("the change is over whole repeats") && legend.contains("need not be"),
        "{legend}"
    );
    let texts = shown["uncompared"].as_array().unwrap();
    assert!(texts[0] == "too few repeats", "{texts:?}");
    assert!(texts.iter().all(|text| !text.as_str().unwrap().contains('%')), "no change: {texts:?}");
    assert_eq!(shown["report"], format!("/runs/{after}"));
    // Tags and note are in the run's folder, and are text on the page.
    assert_eq!(shown["tags"], "<b>bold</b>, gold");
    let kept: Value =
        serde_json::from_str(&fs::read_to_string(runs.join("after/notes.json")).unwrap()).unwrap();
    assert_eq!(kept["tags"], json!(["<b>bold</b>", "gold"]));
    assert!(kept["note"].as_str().unwrap().contains("<script>alert(1)</script>"));
    assert!(shown["tagged"][0][7].as_str().unwrap().contains("<script>"), "{shown:#}");
    // The trend has every run, and the noise from the sixth on.
    let trend = shown["trend"].as_array().unwrap();
    assert_eq!((trend.len(), &shown["areas"]), (7, &json!(2)));
    let begun = |row: &Value| row[0].as_str().unwrap().lines().next().unwrap().to_owned();
    assert!(trend.windows(2).all(|pair| begun(&pair[0]) <= begun(&pair[1])), "{trend:#?}");
    assert!(
        trend[..5].iter().all(|row| row[4] == "–") && trend[5..].iter().all(|row| row[5] != "–"),
        "{trend:#?}"
    );
    assert!(shown["address"].as_str().unwrap().ends_with("/mean_us"), "{shown:#}");
    let again = &shown["again"];
    assert_eq!(again["first"], "The console does not answer. The page asks again in 1 s.");
    assert_eq!(again["second"], "the index of runs is not open yet. The page asks again in 2 s.");
    assert_eq!(again["left"], 0, "{again:#}");
    let empty = shown["empty"].as_str().unwrap();
    assert!(
        empty.contains(&nothing.file_name().unwrap().to_string_lossy()[..]) && empty.contains("loadline run"),
        "{empty}"
    );

    // A folder that is gone leaves the list.
    fs::remove_dir_all(runs.join("short-0")).unwrap();
    eventually("a run that is gone is not listed", LIMIT, || get(&console, "/api/runs")["total"] == 9);
}

/// The numbers of a list: 4 and 4.0 are the same.
fn numbers(list: &Value) -> Vec<f64> {
    let number = |of: &Value| of.as_f64().unwrap_or_else(|| panic!("no number in {list}"));
    list.as_array().expect("it is a list").iter().map(number).collect()
}

#[test]
fn pages_whose_key_is_removed_say_that_the_session_has_ended_and_signing_in_leads_back() {
    let place = folder();
    let runs = place.path().canonicalize().unwrap().join("runs");
    fs::create_dir(&runs).unwrap();
    let short = study(place.path(), "short", 1, "");
    let out = runs.join("one").display().to_string();
    let said = finish(start(["run", &short, "--out", &out]), LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}: {}{}", said.code, said.out, said.err);
    let keys = place.path().join("keys");
    let add = |name: &str| {
        let arguments = ["console", "key", "add", keys.to_str().unwrap(), "--role", "operator", name];
        run(arguments).out.trim().to_owned()
    };
    let (anna, eve) = (add("anna"), add("eve"));
    let words = ["--port", "0", "lab=127.0.0.1:9", "--keys"].map(OsStr::new);
    let more = [keys.as_os_str(), OsStr::new("--runs"), runs.as_os_str()];
    let cache = place.path().join("cache");
    let console = Console::start_in(Path::new("."), &cache, words.into_iter().chain(more));
    let url = console.url();
    let arguments = [OsStr::new(&url), OsStr::new(&anna), OsStr::new(&eve), keys.as_os_str()];
    let shown = browse("console_session.mjs", arguments, BROWSER).json();
    for page in ["cluster", "runs", "report"] {
        let text = shown[page].as_str().unwrap_or_default();
        assert!(text.contains("The session has ended: its key was removed"), "{page}: {shown:#}");
    }
    assert_eq!(shown["account"], json!(0), "no page says that anna is signed in: {shown:#}");
    assert_eq!(shown["back"], shown["before"], "{shown:#}");
    assert!(shown["runs_again"].as_str().unwrap().contains("All runs"), "{shown:#}");
}

#[test]
fn a_folder_that_holds_no_runs_is_named() {
    let place = folder();
    let console = |path: &Path| {
        let words = ["console", "--port", "0", "lab=127.0.0.1:9", "--runs"];
        run(words.map(str::to_owned).into_iter().chain([path.display().to_string()]))
    };
    console(&place.path().join("none")).refused(2, &["--runs", "none"]);
    fs::write(place.path().join("run.json"), "").unwrap();
    console(place.path()).refused(2, &["the folder of one run"]);
}
