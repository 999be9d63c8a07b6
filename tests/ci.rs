//! `loadline run --baseline` as a CI uses it: the shell lines of both recipes, run by a plain bash in fresh clones of a
//! repository with an origin; and what is refused before a load.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::server::{Server, Serves};
use support::{Said, folder, loadline, run};

const GITHUB: &str = include_str!("../docs/ci/github.yml");
const GITLAB: &str = include_str!("../docs/ci/gitlab.yml");
/// How long each I/O takes, in milliseconds: so long, and so much longer, that what else the host does changes no verdict.
const BEFORE: u64 = 40;
const SLOWER: u64 = 200;
/// In the place of what the recipes allow, for the same reason.
const ALLOWED_PERCENT: &str = "40";

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Storage whose latency can be changed.
struct Storage {
    server: Server,
    takes: Arc<AtomicU64>,
}

impl Storage {
    fn start() -> Storage {
        let takes = Arc::new(AtomicU64::new(BEFORE));
        let shared = Arc::clone(&takes);
        let time = move |_: Duration| Duration::from_millis(shared.load(Ordering::Relaxed));
        Storage { server: Server::start(Serves::Each(Box::new(time))), takes }
    }

    /// A study of four short repeats on it.
    fn study(&self, name: &str) -> String {
        format!(
            "name = \"{name}\"\nprofiles = [\"B4-T1-O4-W0-PR\"]\n[target]\ndevices = [\"{}\"]\n[phases]\nwarm_up = \
             \"0s\"\nmeasure = \"1s\"\ncool_down = \"0s\"\n[run]\nrepeats = 4\n",
            self.server.uri
        )
    }

    fn takes(&self, milliseconds: u64) {
        self.takes.store(milliseconds, Ordering::Relaxed);
    }
}

/// A command in a folder, which must succeed; what it printed.
fn git(folder: &Path, words: &[&str]) -> String {
    let output = Command::new("git").arg("-C").arg(folder).args(words).output().expect("git is here");
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

/// The top-level keys of one indentation below a key, such as the environment of a recipe.
fn environment(recipe: &str, key: &str) -> BTreeMap<String, String> {
    let lines = recipe.lines().skip_while(|line| *line != format!("{key}:")).skip(1);
    let pair = |line: &str| {
        let (key, value) = line.trim().split_once(": ").filter(|(key, _)| !key.starts_with('#'))?;
        Some((key.into(), value.trim_matches('"').into()))
    };
    lines.take_while(|line| line.starts_with("  ")).filter_map(pair).collect()
}

/// The shell of a job, by the key or the name of the step that it follows: every block that begins with `|` after a line
/// that ends with `after`, below the line `job:`.
fn blocks(recipe: &str, job: &str, begin: &str) -> Vec<String> {
    let job_line = |line: &&str| line.trim_end_matches(':').trim() == job && line.ends_with(':');
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = recipe.lines().skip_while(|line| !job_line(line));
    let level = indent(lines.next().unwrap_or_else(|| panic!("no job {job}")));
    let of_job: Vec<&str> = lines.take_while(|line| line.is_empty() || indent(line) > level).collect();
    let mut blocks = Vec::new();
    for (at, line) in of_job.iter().enumerate() {
        if line.trim() != begin {
            continue;
        }
        // `script:` has its block one line below.
        let at = if begin.ends_with('|') { at } else { at + 1 };
        let inside = indent(of_job[at]);
        let block = of_job[at + 1..].iter().take_while(|line| indent(line) > inside);
        blocks.push(block.map(|line| format!("{}\n", line.trim_start_matches(' '))).collect());
    }
    blocks
}

/// An origin with a study on main, and a place for clones and for programs that stand in for a CI's.
struct Project {
    folder: tempfile::TempDir,
    clones: usize,
    environment: BTreeMap<String, String>,
}

impl Project {
    fn new(study: &str, environment: BTreeMap<String, String>) -> Project {
        let folder = folder();
        let (origin, first) = (folder.path().join("origin.git"), folder.path().join("first"));
        git(folder.path(), &["init", "--quiet", "--bare", "--initial-branch=main", text(&origin)]);
        git(folder.path(), &["clone", "--quiet", text(&origin), text(&first)]);
        let path = first.join(&environment["STUDY"]);
        fs::create_dir_all(path.parent().expect("it has a folder")).unwrap();
        fs::write(path, study).unwrap();
        git(&first, &["checkout", "--quiet", "-b", "main"]);
        git(&first, &["add", "."]);
        git(
            &first,
            &["-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "--quiet", "-m", "study"],
        );
        git(&first, &["push", "--quiet", "origin", "main"]);
        fs::create_dir(folder.path().join("bin")).unwrap();
        let mut project = Project { folder, clones: 0, environment };
        let program = PathBuf::from(env!("CARGO_BIN_EXE_loadline"));
        let path = [
            project.at("bin"),
            program.parent().expect("it is in a folder").to_path_buf(),
            PathBuf::from(std::env::var("PATH").unwrap_or_default()),
        ];
        let path = path.map(|path| path.display().to_string()).join(":");
        project.environment.insert("PATH".into(), path);
        let allowed = project.environment.insert("ALLOWED_PERCENT".into(), ALLOWED_PERCENT.into());
        assert_eq!(allowed.as_deref(), Some("5"), "the recipe's own");
        project
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program that stands in for one of a CI's: it notes its words.
    fn stand_in(&self, name: &str, answer: &str) {
        let path = self.at("bin").join(name);
        let calls = self.at(&format!("{name}.calls"));
        fs::write(&path, format!("#!/bin/sh\necho \"$*\" >> '{}'\n{answer}\n", calls.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// What a stand-in was called with since it was asked last.
    fn calls(&self, name: &str) -> String {
        let path = self.at(&format!("{name}.calls"));
        let calls = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        calls
    }

    /// A fresh clone, as a CI makes one for a job: one commit, no branch checked out.
    fn checkout(&mut self) -> PathBuf {
        self.clones += 1;
        let clone = self.at(&format!("job-{}", self.clones));
        let origin = format!("file://{}", self.at("origin.git").display());
        git(self.folder.path(), &["clone", "--quiet", "--depth", "1", &origin, text(&clone)]);
        git(&clone, &["checkout", "--quiet", "--detach"]);
        git(&clone, &["branch", "--quiet", "-D", "main"]);
        clone
    }

    /// Runs shell lines in a clone, as a runner's bash does.
    fn shell(&self, clone: &Path, lines: &str) -> Said {
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", lines]).current_dir(clone);
        let output = command.envs(&self.environment).output().expect("bash is here");
        Said {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The files that origin keeps under a name, and how many commits there are.
    fn kept(&self, reference: &str) -> (Vec<String>, usize) {
        let origin = self.at("origin.git");
        let files = git(&origin, &["ls-tree", "--name-only", reference, "storage/"]);
        let count = git(&origin, &["rev-list", "--count", reference]);
        (files.lines().map(String::from).collect(), count.parse().expect("a number"))
    }
}

#[test]
fn both_recipes_gate_a_change_and_keep_what_main_measures() {
    // Each waits for its storage most of the time.
    std::thread::scope(|scope| {
        scope.spawn(github);
        scope.spawn(gitlab);
    });
}

fn github() {
    let storage = Storage::start();
    let environment = environment(GITHUB, "env");
    let reference = environment["BASELINE_REF"].clone();
    let mut project = Project::new(&storage.study("storage"), environment);
    let summary = project.at("summary");
    for (key, value) in [
        ("GITHUB_STEP_SUMMARY", text(&summary)),
        ("GITHUB_REPOSITORY", "owner/project"),
        ("NUMBER", "7"),
        ("GH_TOKEN", "x"),
    ] {
        project.environment.insert(key.into(), value.into());
    }
    let [fetch, measure, push] = <[String; 3]>::try_from(blocks(GITHUB, "main", "run: |")).unwrap();
    let of_request = <[String; 3]>::try_from(blocks(GITHUB, "compare", "run: |")).unwrap();

    // Main: the first result.
    let clone = project.checkout();
    assert_eq!(project.shell(&clone, &fetch).code, Some(0));
    let said = project.shell(&clone, &measure);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.out.contains("This run is the pinned result"), "{}", said.out);
    assert_eq!(project.shell(&clone, &push).code, Some(0));
    let first = project.kept(&reference);
    assert_eq!((first.0.len(), first.1), (2, 1), "{first:?}");
    assert!(git(&clone, &["status", "--porcelain"]).lines().all(|line| line.starts_with("?? loadline")));

    // A pull request that changes nothing, then one that is slower.
    let [fetch, measure, comment] = of_request;
    project.stand_in("gh", "");
    for (takes, code, title) in [(BEFORE, 0, "storage: no"), (SLOWER, 99, "storage: slower")] {
        storage.takes(takes);
        let clone = project.checkout();
        assert_eq!(project.shell(&clone, &fetch).code, Some(0));
        let said = project.shell(&clone, &measure);
        assert_eq!(said.code, Some(code), "{}{}", said.out, said.err);
        assert!(said.out.contains("This run is not kept"), "{}", said.out);
        let page = fs::read_to_string(clone.join("loadline.md")).unwrap();
        assert!(page.starts_with("<!-- loadline-baseline storage -->\n"), "{page}");
        let commit = &git(&clone, &["rev-parse", "HEAD"])[..12];
        assert!(page.contains(&format!("commit {commit}")), "{page}");
        assert!(page.contains(title) && page.contains("detectable") && page.contains("Trend: "), "{page}");
        let junit = fs::read_to_string(clone.join("loadline.xml")).unwrap();
        assert!(junit.contains(&format!("failures=\"{}\"", usize::from(code == 99))), "{junit}");
        assert!(fs::read_to_string(&summary).unwrap().ends_with(&page));
        let said = project.shell(&clone, &comment);
        assert_eq!(said.code, Some(0), "{}", said.err);
        let calls = project.calls("gh");
        match code {
            0 => assert!(calls.contains("pr comment 7 --body-file loadline.md"), "{calls}"),
            _ => assert!(
                calls.contains("PATCH repos/owner/project/issues/comments/123 --field body=@"),
                "{calls}"
            ),
        }
        // From now on the comment is there.
        project.stand_in("gh", "printf '123\\n124\\n'");
    }
    assert_eq!(project.kept(&reference), first, "pull requests keep nothing");

    // The slowness is known and wanted: main accepts it.
    let [fetch, measure, push] = <[String; 3]>::try_from(blocks(GITHUB, "main", "run: |")).unwrap();
    project.environment.insert("ACCEPT".into(), "--accept".into());
    let clone = project.checkout();
    assert_eq!(project.shell(&clone, &fetch).code, Some(0));
    let said = project.shell(&clone, &measure);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.out.contains("  slower\n") && said.out.contains("The run is accepted"), "{}", said.out);
    assert_eq!(project.shell(&clone, &push).code, Some(0));
    let accepted = project.kept(&reference);
    assert_eq!((accepted.0.len(), accepted.1), (3, 2), "{accepted:?}");
    another_job_pushes_first(&mut project, &reference, [&fetch, &measure, &push]);
    let pinned = git(&project.at("origin.git"), &["show", &format!("{reference}:storage/pinned.json")]);
    assert!(!pinned.contains(first.0[0].trim_start_matches("storage/")), "{pinned}");
}

/// Another job pushes between the measurement and the push of this one: both results are kept. A result that was never
/// pushed survives the next job.
fn another_job_pushes_first(project: &mut Project, reference: &str, [fetch, measure, push]: [&str; 3]) {
    project.environment.insert("ACCEPT".into(), String::new());
    let before = project.kept(reference);
    let clone = project.checkout();
    assert_eq!(project.shell(&clone, fetch).code, Some(0));
    let said = project.shell(&clone, measure);
    assert!(matches!(said.code, Some(0 | 99)), "{}{}", said.out, said.err);
    moved_by_another(project, reference);
    let said = project.shell(&clone, push);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let after = project.kept(reference);
    assert_eq!((after.0.len(), after.1), (before.0.len() + 1, before.1 + 2), "{after:?}");

    // Nothing new is kept here: nothing is measured again, and nothing is pushed.
    moved_by_another(project, reference);
    git(&clone, &["update-ref", reference, &format!("{reference}~1")]);
    fs::remove_dir_all(clone.join("loadline-run")).unwrap();
    assert_eq!(project.shell(&clone, push).code, Some(0));

    // A job that never pushed, then one in the same clone.
    let unpushed = moved(&clone, reference);
    assert_eq!(project.shell(&clone, fetch).code, Some(0));
    let origin = git(&project.at("origin.git"), &["rev-parse", reference]);
    assert_eq!(git(&clone, &["rev-parse", reference]), origin);
    assert_eq!(git(&clone, &["rev-parse", &format!("refs/unpushed/{unpushed}")]), unpushed);
    // Nothing is on the origin yet: what is kept here stays, and is pushed.
    git(&project.at("origin.git"), &["update-ref", "-d", reference]);
    assert_eq!(project.shell(&clone, fetch).code, Some(0));
    assert_eq!(project.shell(&clone, push).code, Some(0));
    assert_eq!(git(&project.at("origin.git"), &["rev-parse", reference]), origin);
}

/// Moves the ref of a repository to a further commit of the same files; the commit.
fn moved(repository: &Path, reference: &str) -> String {
    let who = ["-c", "user.name=x", "-c", "user.email=x@localhost"];
    let tree = format!("{reference}^{{tree}}");
    let make = ["commit-tree", &tree, "-p", reference, "-m", "another"];
    let commit = git(repository, &[&who[..], &make].concat());
    git(repository, &["update-ref", reference, &commit]);
    commit
}

fn moved_by_another(project: &Project, reference: &str) {
    moved(&project.at("origin.git"), reference);
}

#[test]
fn a_page_of_an_earlier_run_does_not_outlive_a_refusal() {
    let place = folder();
    let study = place.path().join("study.toml");
    fs::write(&study, "name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\ndevices = [\"null:1GiB\"]\n")
        .unwrap();
    let (page, xml) = (place.path().join("x.md"), place.path().join("x.xml"));
    let results = place.path().join("results");
    fs::create_dir_all(results.join("x")).unwrap();
    fs::write(results.join("x/20260101-000000-1-0.json"), "{").unwrap();
    let words = ["run", text(&study), "--baseline", "x", "--baselines", text(&results)];
    let pages = ["--markdown", text(&page), "--junit", text(&xml)];
    let earlier = || {
        fs::write(&page, "<!-- loadline-baseline x -->\n# Loadline: x: no difference shown\n").unwrap();
        fs::write(
            &xml,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"loadline compare\">\n",
        )
        .unwrap();
    };
    earlier();
    run(words.iter().chain(&pages).chain(&["--plan"])).refused(2, &["move it away"]);
    assert!(page.exists() && xml.exists(), "a plan writes nothing");
    run(words.iter().chain(&pages)).refused(2, &["move it away"]);
    assert!(!page.exists() && !xml.exists());
}

#[test]
fn what_git_refuses_of_a_commit_is_said_before_the_load() {
    let place = folder();
    let study = place.path().join("study.toml");
    fs::write(&study, "name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\ndevices = [\"null:1GiB\"]\n")
        .unwrap();
    git(place.path(), &["init", "--quiet", "--initial-branch=main", "."]);
    // The ref is there, as an earlier run left it.
    fs::write(place.path().join("loadline-baselines.txt"), "").unwrap();
    let blob = git(place.path(), &["hash-object", "-w", "loadline-baselines.txt"]);
    git(
        place.path(),
        &["update-index", "--add", "--cacheinfo", &format!("100644,{blob},loadline-baselines.txt")],
    );
    let tree = git(place.path(), &["write-tree"]);
    let who = ["-c", "user.name=x", "-c", "user.email=x@localhost"];
    let commit = git(place.path(), &[&who[..], &["commit-tree", &tree, "-m", "x"]].concat());
    git(place.path(), &["update-ref", "refs/loadline/x", &commit]);
    for (name, value) in [("GIT_AUTHOR_NAME", ""), ("GIT_AUTHOR_DATE", "yesterday morning?")] {
        let mut command = loadline();
        command.args(["run", text(&study), "--baseline", "x", "--baselines", "git:refs/loadline/x"]);
        let output = command.env(name, value).current_dir(place.path()).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {err}");
        assert!(err.contains("git:refs/loadline/x") && !err.contains("run folder"), "{err}");
    }
}

fn gitlab() {
    let storage = Storage::start();
    let environment = environment(GITLAB, "variables");
    let reference = format!("refs/heads/{}", environment["BASELINE_BRANCH"]);
    let mut project = Project::new(&storage.study("storage"), environment);
    for (key, value) in [
        ("BASELINE_TOKEN", "token"),
        ("CI_SERVER_HOST", "gitlab.invalid"),
        ("CI_PROJECT_PATH", "group/project"),
        ("CI_PROJECT_ID", "5"),
        ("CI_MERGE_REQUEST_IID", "7"),
        ("CI_API_V4_URL", "https://gitlab.invalid/api/v4"),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_VALUE_0", "https://loadline:token@gitlab.invalid/group/project.git"),
    ] {
        project.environment.insert(key.into(), value.into());
    }
    // The address that the recipe pushes to is the origin here, which accepts options of a push.
    let origin = project.at("origin.git");
    git(&origin, &["config", "receive.advertisePushOptions", "true"]);
    project.environment.insert("GIT_CONFIG_KEY_0".into(), format!("url.{}.insteadOf", origin.display()));
    let block = |job: &str, key: &str| blocks(GITLAB, job, key).concat();
    let fetch = block(".storage", "before_script:");
    let main = format!("{fetch}{}", block("storage", "script:"));
    let request = format!("{fetch}{}", block("storage of a merge request", "script:"));
    let note = block("storage of a merge request", "after_script:");

    // A merge request before anything is kept: doubtful, and not a failure.
    project.stand_in("curl", "echo '[{\"id\": 1, \"body\": \"another\"}]'");
    let clone = project.checkout();
    let said = project.shell(&clone, &request);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.out.contains("Nothing to compare with"), "{}", said.out);
    assert!(fs::read_to_string(clone.join("loadline.xml")).unwrap().contains("skipped=\"1\""));
    assert_eq!(project.shell(&clone, &note).code, Some(0));
    let calls = project.calls("curl");
    assert!(calls.contains("--request POST") && calls.contains("/merge_requests/7/notes\n"), "{calls}");

    let clone = project.checkout();
    let said = project.shell(&clone, &main);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}{}{}", said.code, said.out, said.err);
    let (first, count) = project.kept(&reference);
    assert_eq!((first.len(), count), (2, 1), "{first:?}");

    // Main became slower: that is said, kept, and not what later runs are compared with. Another job pushes meanwhile, as a
    // hook of the first push does it.
    storage.takes(SLOWER);
    let clone = project.checkout();
    let hook = clone.join(".git/hooks/pre-push");
    let moves = format!(
        "rm .git/hooks/pre-push; cd '{}'; git update-ref {reference} $(git -c user.name=x -c user.email=x@localhost \
         commit-tree {reference}^{{tree}} -p {reference} -m another)",
        origin.display()
    );
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, format!("#!/bin/sh\nunset GIT_DIR\n{moves}\n")).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let said = project.shell(&clone, &main);
    assert_eq!(said.code, Some(99), "{}{}", said.out, said.err);
    let (second, count) = project.kept(&reference);
    assert_eq!((second.len(), count), (3, 3), "{second:?}{}", said.err);
    let pinned = git(&origin, &["show", &format!("{reference}:storage/pinned.json")]);
    assert!(pinned.contains(first[0].trim_start_matches("storage/")), "{pinned}");

    let existing = "[{\"id\": 1, \"body\": \"another\"}, {\"id\": 9, \"body\": \"<!-- loadline-baseline storage -->\\\\n\"}]";
    project.stand_in("curl", &format!("printf '{existing}'"));
    assert_eq!(project.shell(&clone, &note).code, Some(0));
    let calls = project.calls("curl");
    assert!(calls.contains("--request PUT") && calls.contains("/notes/9\n"), "{calls}");
}

#[test]
fn both_recipes_are_plain_yaml_whose_shell_has_no_errors() {
    for recipe in [GITHUB, GITLAB] {
        for line in recipe.lines() {
            let indent = line.len() - line.trim_start().len();
            assert!(!line.contains('\t') && line == line.trim_end() && indent % 2 == 0, "{line}");
        }
    }
    let jobs = [
        (GITHUB, "main", "run: |", 3),
        (GITHUB, "compare", "run: |", 3),
        (GITLAB, ".storage", "before_script:", 1),
        (GITLAB, "storage", "script:", 1),
        (GITLAB, "storage of a merge request", "script:", 1),
        (GITLAB, "storage of a merge request", "after_script:", 1),
    ];
    for (recipe, job, key, count) in jobs {
        let found = blocks(recipe, job, key);
        assert_eq!(found.len(), count, "{job}: {key}");
        for block in found {
            let output = Command::new("bash").args(["-n", "-c", &block]).output().unwrap();
            assert!(output.status.success(), "{block}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn a_run_is_kept_once_and_can_be_accepted_later() {
    let (storage, place) = (Storage::start(), folder());
    let study = place.path().join("study.toml");
    fs::write(&study, storage.study("kept")).unwrap();
    let (first, second) = (place.path().join("first"), place.path().join("second"));
    let results = place.path().join("results");
    let options = ["--baseline", "main", "--baselines", text(&results)];
    let on = |words: &[&str], more: &[&str]| run([words, options.as_slice(), more].concat());
    let kept = || fs::read_dir(results.join("main")).unwrap().count();

    let said = on(&["run", text(&study), "--out", text(&first)], &["--json"]);
    let json = said.json();
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    assert_eq!((&json["format"], &json["kept"]), (&"loadline-gate".into(), &"pinned".into()));
    assert!(json["comparison"].is_null());
    assert_eq!(kept(), 2);

    // What is on the disk has no key that its published schema refuses.
    let result =
        fs::read_dir(results.join("main")).unwrap().flatten().map(|entry| entry.path()).min().unwrap();
    for (what, path) in [("kept", result), ("run", first.join("run.json"))] {
        let schema = run(["schema", what]).json();
        let file: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        for key in file.as_object().unwrap().keys() {
            assert!(schema["properties"][key].is_object(), "{what}: {key}");
        }
    }

    // The same run again, also when only compared.
    let resume = ["run", "--resume", text(&first)];
    let again = on(&resume, &[]);
    assert!(
        again.out.contains("was kept before") && matches!(again.code, Some(0 | 3)),
        "{}{}",
        again.out,
        again.err
    );
    let said = on(&resume, &["--compare-only", "--json"]);
    assert_eq!((said.code, said.json()["kept"].as_str()), (Some(3), Some("pinned")), "{}", said.err);
    assert!(said.json()["notes"].to_string().contains("this run is the pinned result"), "{}", said.out);
    assert_eq!(kept(), 2);

    // Slower, measured without a baseline; then compared, kept and accepted without another load.
    storage.takes(SLOWER);
    let said = run(["run", text(&study), "--out", text(&second)]);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    let resume = ["run", "--resume", text(&second)];
    let said = on(&resume, &["--compare-only", "--json"]);
    assert_eq!((said.code, said.json()["kept"].as_str()), (Some(99), Some("not_kept")), "{}", said.err);
    assert_eq!(kept(), 2);
    assert_eq!(on(&resume, &["--allow-slower", ALLOWED_PERCENT]).code, Some(99));
    assert_eq!(kept(), 3);
    let said = on(&resume, &["--accept", "--json"]);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    assert_eq!(said.json()["kept"], "pinned");
    assert_eq!(kept(), 3);

    // The earlier run is faster than what is pinned now.
    let said = on(&["run", "--resume", text(&first)], &["--compare-only", "--json"]).json();
    assert_eq!(said["comparison"]["loads"][0]["verdict"], "faster");
    assert_eq!(said["trend"][0]["results"].as_array().unwrap().len(), 1, "itself left out");

    // A damaged result and another study are refused before the load.
    let other = place.path().join("other.toml");
    fs::write(&other, storage.study("other")).unwrap();
    let new = place.path().join("new");
    on(&["run", text(&other), "--out", text(&new)], &[])
        .refused(2, &["study kept", "study other", "--accept"]);
    let said = on(&["run", text(&other), "--out", text(&new), "--plan"], &["--accept"]);
    assert_eq!(said.code, Some(0), "a renamed study can be accepted: {}", said.err);
    let files = fs::read_dir(results.join("main")).unwrap().flatten().map(|entry| entry.path());
    let damaged = files.filter(|path| !path.ends_with("pinned.json")).max().unwrap();
    fs::write(&damaged, "{").unwrap();
    on(&["run", text(&study), "--out", text(&new)], &[]).refused(2, &[text(&damaged), "move it away"]);
    assert_eq!(fs::read_to_string(&damaged).unwrap(), "{");
    assert!(!new.exists(), "nothing was begun");
}

#[test]
fn what_cannot_be_kept_is_refused_before_the_load() {
    let place = folder();
    let (study, out) = (place.path().join("study.toml"), place.path().join("out"));
    fs::write(&study, "name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\ndevices = [\"null:1GiB\"]\n")
        .unwrap();
    git(place.path(), &["init", "--quiet", "--initial-branch=main", "."]);
    let file = place.path().join("file");
    fs::write(&file, "precious").unwrap();
    let in_place = |words: &[&str], path: Option<&str>| {
        let mut command = loadline();
        command.args(["run", text(&study), "--out", text(&out)]).args(words).current_dir(place.path());
        command.env("PATH", path.map_or_else(|| std::env::var("PATH").unwrap_or_default(), String::from));
        let output = command.output().unwrap();
        Said {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    };
    for (words, expected) in [
        (vec!["--baseline", ""], vec!["--baseline", "letters, digits"]),
        (vec!["--baseline", "a/b"], vec!["--baseline", "letters, digits"]),
        (vec!["--baseline", "a.b"], vec!["--baseline", "letters, digits"]),
        (vec!["--baselines", "x"], vec!["--baseline <NAME>"]),
        (vec!["--accept"], vec!["--baseline <NAME>"]),
        (vec!["--baseline", "x", "--accept", "--compare-only"], vec!["--accept", "--compare-only"]),
        (vec!["--junit", "x.xml"], vec!["--junit x.xml", "--baseline NAME"]),
        (vec!["--allow-slower", "5"], vec!["--allow-slower 5", "--baseline NAME"]),
        (vec!["--baseline", "x", "--markdown", "file"], vec!["--markdown", "not overwritten"]),
        (vec!["--baseline", "x", "--baselines", "file"], vec!["file", "is a file"]),
        (vec!["--baseline", "x", "--baselines", "git:main"], vec!["git:main", "checked out"]),
        (vec!["--baseline", "x", "--baselines", "git:a..b"], vec!["git:a..b", "does not accept"]),
    ] {
        in_place(&words, None).refused(2, &expected);
    }
    let on_ref = ["--baseline", "x", "--baselines", "git:refs/loadline/x"];
    in_place(&on_ref, Some("/nowhere")).refused(2, &["git is not installed"]);
    fs::rename(place.path().join(".git"), place.path().join("no-git")).unwrap();
    in_place(&on_ref, None).refused(2, &["not a git repository"]);
    let said = in_place(&["--baseline", "x", "--plan"], None);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(!out.exists() && !place.path().join("baselines").exists(), "nothing was begun");
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}
