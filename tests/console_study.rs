//! A study that the console starts: from a question to a run, in a real browser and by the API.

#[path = "support/console.rs"]
mod driver;
mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use driver::{Console, LIMIT, browse};
use serde_json::{Value, json};
use support::{eventually, folder};

/// How long a browser may look at all pages.
const BROWSER: Duration = Duration::from_secs(240);

/// The status and the content of an answer to a request with the key of the link.
fn ask(console: &Console, request: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let lines = format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\n", console.key());
    let (status, _, content) = console.ask(request, &lines, &body);
    (status, serde_json::from_str(&content).unwrap_or(Value::Null))
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap_or_default()).unwrap_or_default()
}

#[test]
fn a_question_becomes_a_run_that_is_stopped_from_its_page_and_one_that_outlives_the_console() {
    let place = folder();
    let root = place.path().canonicalize().unwrap();
    let (runs, data) = (root.join("runs"), root.join("data"));
    fs::create_dir(&data).unwrap();
    let console = Console::start_in(&root, &root.join("cache"), ["--port", "0", "lab=127.0.0.1:9"]);

    // What `loadline run` would refuse is the answer, also before the start, and leaves nothing.
    let mut answers = json!({
        "question": "slower", "storage": "folder", "folder": root.join("none"), "effort": "quick", "load": "file-server",
        "machines": "1", "disk_size": "16MiB"
    });
    let (status, content) = ask(&console, "POST /api/studies", &json!({ "answers": answers }));
    let why = content["message"].as_str().unwrap_or_default();
    assert!(status == 409 && why.contains("none") && why.contains("Make the folder"), "{status} {content}");
    let (status, drafted) = ask(&console, "POST /api/studies/draft", &json!({ "answers": answers }));
    assert_eq!((status, &drafted["study"]["refused"]), (200, &content["message"]), "{drafted}");
    assert!(!runs.exists());

    let arguments = [console.url(), console.key().to_owned(), data.display().to_string()];
    let shown = browse("console_study.mjs", arguments, BROWSER).json();
    assert!(shown["guest"].as_str().unwrap().contains("To act, sign in"), "{shown:#}");
    assert!(shown["fault"][0].as_str().unwrap().contains("begin it with /"), "{shown:#}");
    assert_eq!(shown["fault"][1], "true");
    assert!(shown["tiles"][0].as_str().unwrap().contains('8'), "two loads, four times each: {shown:#}");
    assert_eq!(shown["file"], json!(["evening.toml", true]));
    let lasting = shown["danger"][0].as_str().unwrap();
    assert!(lasting.contains("All data on /dev/loadline-none are lost"), "{lasting}");
    assert_eq!((&shown["danger"][1], &shown["danger"][2]), (&json!(true), &json!(false)));
    assert!(shown["dialog"].as_str().unwrap().contains("It goes on if this page is closed"), "{shown:#}");
    let row =
        shown["list"].as_array().unwrap().iter().find(|row| row[1].as_str().unwrap().starts_with("evening-"));
    let row = row.unwrap_or_else(|| panic!("{shown:#}"));
    assert!(row[3].as_str().unwrap().starts_with("interrupted"), "{row}");
    let name = row[1].as_str().unwrap();
    assert_eq!(
        fs::read_to_string(runs.join(format!("{name}.toml"))).unwrap(),
        shown["text"].as_str().unwrap()
    );
    let log = fs::read_to_string(runs.join(format!("{name}.log"))).unwrap();
    assert!(
        log.starts_with("started at the console by ") && log.lines().next().unwrap().ends_with("(admin)"),
        "{log}"
    );
    assert_eq!(read(&runs.join(name).join("run.json"))["state"], "begun", "it can be resumed");
    // The page shows the command that the run has printed, and where it is typed.
    let run = runs.join(name);
    let resume = format!("loadline run --resume {} --baseline evening", run.display());
    assert!(log.contains(&format!("to go on: {resume}\n")), "{log}");
    assert_eq!(shown["resume"], json!([resume, root]), "{shown:#}");
    let (_, last) = ask(&console, "GET /api/studies", &Value::Null);
    assert_eq!((&last["in_progress"], &last["exit_code"]), (&json!(false), &json!(130)), "{last}");

    // A run goes on without the console.
    answers["folder"] = json!(data);
    let (status, begun) = ask(&console, "POST /api/studies", &json!({ "answers": answers }));
    assert_eq!(status, 200, "{begun}");
    let (status, content) = ask(&console, "POST /api/studies", &json!({ "answers": answers }));
    assert!(status == 409 && content["message"].as_str().unwrap().contains("in progress"), "{content}");
    let (_, last) = ask(&console, "GET /api/studies", &Value::Null);
    assert_eq!((&last["id"], &last["in_progress"]), (&begun["id"], &json!(true)));
    drop(console);
    let run = runs.join(last["name"].as_str().unwrap());
    let at = || read(&run.join("live.json"))["at"].as_u64();
    eventually("the run is alive", LIMIT, || at().is_some());
    let before = at();
    eventually("the run goes on", LIMIT, || at() > before);
    fs::write(run.join("stop"), "").unwrap();
    eventually("the run ends", LIMIT, || !run.join("live.json").exists());
}
