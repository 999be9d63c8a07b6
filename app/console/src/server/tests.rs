//! Who is let in, asked of the router itself.

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Method, Request};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::*;
use crate::access::Peer;
use crate::access::keys::{self, Keys};
use crate::access::role::Role;
use crate::openapi::ROUTES;

const HOST: &str = "127.0.0.1:7480";
const ORIGIN: &str = "http://127.0.0.1:7480";

/// A console without clusters.
struct Asked {
    router: TowerToHyperService<Router>,
    peer: Peer,
}

/// An answer: its status, its head and its content.
type Answer = (u16, axum::http::HeaderMap, String);

impl Asked {
    fn new(access: Access) -> Asked {
        let router = Console::new(Vec::new(), Runs::new(Vec::new(), None), access).router(7480, false, &[]);
        Asked { router: TowerToHyperService::new(router), peer: Peer::default() }
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header("host", HOST);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request =
            request.extension(ConnectInfo(self.peer.clone())).body(Body::from(body.to_owned())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let answer = self.router.call(request).await.unwrap_or_else(|never| match never {});
            let (head, body) = answer.into_parts();
            let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            (head.status.as_u16(), head.headers, String::from_utf8(bytes.to_vec()).unwrap())
        })
    }

    /// The cookie and the secret of a session that has begun with this key.
    fn sign_in(&self, key: &str) -> (String, String) {
        let body = format!("{{\"key\":\"{key}\"}}");
        let (status, headers, text) = self.ask("POST", "/api/session", &[JSON, ("origin", ORIGIN)], &body);
        assert_eq!(status, 200, "{text}");
        let line = headers["set-cookie"].to_str().unwrap().to_owned();
        assert!(line.contains("; HttpOnly; SameSite=Strict") && !line.contains("Secure"), "{line}");
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        (line.split(';').next().unwrap().to_owned(), answer["csrf"].as_str().unwrap().to_owned())
    }
}

const JSON: (&str, &str) = ("content-type", "application/json");

/// A request of the description, with a name in its path.
fn routes() -> Vec<(String, String)> {
    let filled = |path: &str| path.replace("{name}", "lab").replace("{id}", "1");
    ROUTES.iter().map(|(method, path, ..)| (method.to_uppercase(), filled(path))).collect()
}

#[test]
fn nothing_but_a_get_is_carried_out_without_session_secret_json_and_a_page_of_the_console() {
    let (access, link) = Access::local("root".into(), None, None);
    let asked = Asked::new(access);
    let (cookie, csrf) = asked.sign_in(link.text());
    let all = [JSON, ("origin", ORIGIN), ("cookie", &*cookie), ("x-loadline-csrf", &*csrf)];
    let mut acting: Vec<_> =
        routes().into_iter().filter(|(method, path)| method != "GET" && path != "/api/session").collect();
    assert!(acting.len() >= 3, "{acting:?}");
    // Also what there is not, and methods that there are not: one layer is before all of them.
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
        for path in ["/api/added-later", "/api/session", "/api/clusters", "/"] {
            if !(method == Method::POST && path == "/api/session") {
                acting.push((method.to_string(), path.into()));
            }
        }
    }
    acting.sort_by_key(|(_, path)| path == "/api/session/end");
    for (method, path) in acting {
        let ask = |headers: &[(&str, &str)]| asked.ask(&method, &path, headers, "{}");
        for (left_out, status) in
            [("content-type", 415), ("origin", 403), ("cookie", 401), ("x-loadline-csrf", 403)]
        {
            let rest: Vec<_> = all.into_iter().filter(|(name, _)| *name != left_out).collect();
            let (is, _, text) = ask(&rest);
            assert_eq!(is, status, "{method} {path} without {left_out}: {text}");
        }
        for (changed, value, status) in [
            ("content-type", "text/plain", 415),
            ("content-type", "application/x-www-form-urlencoded", 415),
            ("origin", "http://evil.example", 403),
            ("origin", "https://127.0.0.1:7480", 403),
            ("origin", "http://127.0.0.1:8080", 403),
            ("origin", "null", 403),
            ("cookie", "loadline-7480=wrong", 401),
            ("cookie", "loadline-7481=wrong", 401),
            ("x-loadline-csrf", "wrong", 403),
            ("x-loadline-csrf", "", 403),
            ("x-loadline-csrf", cookie.split_once('=').unwrap().1, 403),
        ] {
            let other: Vec<_> =
                all.into_iter().map(|(name, of)| (name, if name == changed { value } else { of })).collect();
            let (is, _, text) = ask(&other);
            assert_eq!(is, status, "{method} {path} with {changed}: {value}: {text}");
        }
        let foreign = [&all[..], &[("sec-fetch-site", "cross-site")]].concat();
        assert_eq!(ask(&foreign).0, 403, "{method} {path}");
        // With all of it the request gets through to where it is missed.
        let (is, _, text) = ask(&all);
        assert!(![401, 403, 415].contains(&is), "{method} {path}: {is} {text}");
    }
}

#[test]
fn a_viewer_does_not_act_an_operator_does_and_the_end_of_a_session_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let [viewer, operator] = [(Role::Viewer, "eve"), (Role::Operator, "anna")]
        .map(|(role, name)| keys::add(&path, role, name).unwrap());
    let (access, _) = Access::local("root".into(), Some(Keys::open(&path).unwrap()), None);
    let asked = Asked::new(access);
    let act = |cookie: &str, csrf: &str| {
        let headers = [JSON, ("origin", ORIGIN), ("cookie", cookie), ("x-loadline-csrf", csrf)];
        asked.ask("POST", "/api/clusters/lab/actions", &headers, r#"{"scrub_volume":{"volume":"a"}}"#)
    };
    let (cookie, csrf) = asked.sign_in(viewer.text());
    let (status, _, text) = act(&cookie, &csrf);
    assert!(status == 403 && text.contains("needs the role operator"), "{text}");
    let (cookie, csrf) = asked.sign_in(operator.text());
    assert_eq!(act(&cookie, &csrf).0, 404, "there is no such cluster");
    // A program sends the key itself.
    let bearer = |key: &str| format!("Bearer {key}");
    let program = |key: &str| {
        let path = "/api/clusters/lab/actions/preview";
        asked.ask(
            "POST",
            path,
            &[JSON, ("authorization", &bearer(key))],
            r#"{"scrub_volume":{"volume":"a"}}"#,
        )
    };
    assert_eq!(program(operator.text()).0, 404);
    assert_eq!(program(viewer.text()).0, 403);
    // Nothing is seen without a proof either, if there are keys.
    assert_eq!(asked.ask("GET", "/api/clusters", &[], "").0, 401);
    assert_eq!(asked.ask("GET", "/api/clusters", &[("cookie", &cookie)], "").0, 200);
    assert_eq!(asked.ask("GET", "/api/clusters", &[("authorization", &bearer(viewer.text()))], "").0, 200);
    assert_eq!(asked.ask("GET", "/", &[], "").0, 200, "the page on which one signs in");
    let (status, _, text) = asked.ask("GET", "/api/session", &[], "");
    assert!(status == 200 && text.contains("\"sees\":false") && !text.contains("anna"), "{text}");
    // The secret of the page is in the answer to its signing in alone.
    let (_, _, text) = asked.ask("GET", "/api/session", &[("cookie", &cookie)], "");
    assert!(text.contains("anna") && !text.contains(&csrf), "{text}");
    let headers = [JSON, ("origin", ORIGIN), ("cookie", &*cookie), ("x-loadline-csrf", &*csrf)];
    let (status, headers, _) = asked.ask("POST", "/api/session/end", &headers, "{}");
    assert!(status == 200 && headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(act(&cookie, &csrf).0, 401);
}

#[test]
fn a_study_is_started_only_by_a_role_that_may_and_with_all_that_it_needs_permitted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let [operator, admin] = [(Role::Operator, "anna"), (Role::Admin, "root")]
        .map(|(role, name)| keys::add(&path, role, name).unwrap());
    // It has no folder of runs, so that what comes through is refused for that.
    let asked = Asked::new(Access::local("root".into(), Some(Keys::open(&path).unwrap()), None).0);
    let start = |key: &crate::access::secret::Secret, body: &str| {
        let bearer = format!("Bearer {}", key.text());
        let (status, _, text) = asked.ask("POST", "/api/studies", &[JSON, ("authorization", &bearer)], body);
        (status, text)
    };
    let answers = r#"{"question":"slower","storage":"devices","devices":"/dev/sdb"}"#;
    let body = |permits: &str| format!(r#"{{"answers":{answers},"permits":{permits}}}"#);
    for (key, body, status, part) in [
        (&operator, body(r#"["destroy_data"]"#), 403, "needs the role admin"),
        (&admin, body("[]"), 409, "All data on /dev/sdb are lost"),
        (&admin, body(r#"["run_commands","use_hosts"]"#), 409, "the permission destroy_data"),
        (&admin, body(r#"["destroy_data"]"#), 409, "no folder of runs"),
        (&operator, r#"{"answers":{"question":"slower"}}"#.into(), 409, "no folder of runs"),
        (&operator, r#"{"answers":{}}"#.into(), 422, "question: give one of"),
        (&operator, r#"{"answers":{"question":"slower"},"out":"/etc"}"#.into(), 400, "unknown field"),
        (
            &admin,
            r#"{"answers":{"question":"node-down","storage":"folder","folder":"/x"}}"#.into(),
            409,
            "a person at a terminal",
        ),
    ] {
        let (is, text) = start(key, &body);
        assert!(is == status && text.contains(part), "{body}: {is} {text}");
    }
}

#[test]
fn wrong_keys_are_answered_with_429_and_the_seconds_to_wait() {
    let (access, link) = Access::local("root".into(), None, None);
    let mut asked = Asked::new(access);
    let wrong = |asked: &Asked| asked.ask("POST", "/api/session", &[JSON], r#"{"key":"wrong"}"#);
    let (status, headers, text) = wrong(&asked);
    assert!(
        status == 401 && headers.contains_key("www-authenticate") && text.contains("the key is wrong"),
        "{text}"
    );
    for _ in 0..10 {
        wrong(&asked);
    }
    let (status, headers, text) = wrong(&asked);
    let wait: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(status == 429 && (1..=60).contains(&wait) && text.contains("try again in"), "{text}");
    // Users of the machine do not shut its owner out; and a program's wrong key counts as well.
    asked.sign_in(link.text());
    assert_eq!(asked.ask("GET", "/api/clusters", &[("authorization", "Bearer wrong")], "").0, 429);
    // Elsewhere a valid key waits too.
    asked.peer.address = std::net::Ipv4Addr::new(10, 0, 0, 1).into();
    for _ in 0..10 {
        wrong(&asked);
    }
    let body = format!("{{\"key\":\"{}\"}}", link.text());
    assert_eq!(asked.ask("POST", "/api/session", &[JSON], &body).0, 429);
}

#[test]
fn what_is_no_action_is_named_and_a_long_one_is_refused() {
    let (access, link) = Access::local("root".into(), None, None);
    let asked = Asked::new(access);
    let bearer = format!("Bearer {}", link.text());
    let ask = |body: &str| {
        asked.ask("POST", "/api/clusters/lab/actions", &[JSON, ("authorization", &bearer)], body)
    };
    let (status, _, text) = ask(r#"{"format":{}}"#);
    assert!(status == 400 && text.contains("unknown variant"), "{text}");
    assert_eq!(ask(&format!("\"{}\"", "x".repeat(100_000))).0, 413);
    assert_eq!(ask("").0, 400);
}

#[test]
fn browsers_that_use_tls_get_a_cookie_for_tls_alone() {
    let guard = Guard::new(Arc::new(Access::remote(None, None)), 443, true);
    let line = guard.set_cookie("x", std::time::Duration::from_secs(5));
    assert_eq!(line, "__Host-loadline-443=x; Path=/; Max-Age=5; HttpOnly; SameSite=Strict; Secure");
}

#[test]
fn a_console_says_whether_it_has_a_list_of_runs_and_whose_run_is_its_own() {
    let place = tempfile::tempdir().unwrap();
    let view = |folders: Vec<PathBuf>, run: Option<&str>| {
        let (access, _) = Access::local("root".into(), None, None);
        let console = Console::new(Vec::new(), Runs::new(folders, None), access);
        run.map_or(console.clone(), |id| console.with_run(id, place.path())).view()
    };
    let own = view(Vec::new(), Some("run-1"));
    assert!(!own.lists_runs && own.run.as_deref() == Some("run-1") && own.clusters.is_empty());
    let of_folders = view(vec![place.path().to_path_buf()], None);
    assert!(of_folders.lists_runs && of_folders.run.is_none());
}

#[test]
fn an_index_of_runs_that_lets_wait_keeps_no_other_answer_waiting() {
    let (access, _) = Access::local("root".into(), None, None);
    let runs = Runs::new(Vec::new(), None);
    let console = Console::new(Vec::new(), runs.clone(), access);
    let router = TowerToHyperService::new(console.router(7480, false, &[]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for path in ["/runs/1/report/report.html", "/runs/1/run.json", "/api/runs/1/stream", "/api/runs/1"] {
        let ask = |path: &str| {
            let request = Request::builder().uri(path).header("host", HOST);
            router.call(request.extension(ConnectInfo(Peer::default())).body(Body::empty()).unwrap())
        };
        // The only thread of the server answers another request meanwhile.
        let waits = runs.held(|| {
            let waits = runtime.spawn(ask(path));
            let other = runtime.block_on(async {
                tokio::task::yield_now().await;
                ask("/api/clusters").await.unwrap()
            });
            assert_eq!(other.status(), StatusCode::OK);
            waits
        });
        assert_ne!(runtime.block_on(waits).unwrap().unwrap().status(), StatusCode::OK, "{path}");
    }
}

#[test]
fn a_browser_gets_a_page_in_place_of_a_fault_and_a_program_json() {
    let asked = Asked::new(Access::local("root".into(), None, None).0);
    let browser = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let path = "/runs/gone/report/report.html";
    let (status, head, page) = asked.ask("GET", path, &[browser], "");
    assert_eq!((status, head["content-type"].to_str().unwrap()), (404, "text/html; charset=utf-8"), "{page}");
    assert!(page.contains("<p>There is no run of this id here: its folder was moved or removed"), "{page}");
    assert!(page.contains("<a href=\"/\">") && !page.contains("<script"), "{page}");
    let policy = head["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("script-src"), "{policy}");
    for (path, headers) in [(path, &[][..]), ("/api/none", &[browser])] {
        let (status, head, text) = asked.ask("GET", path, headers, "");
        assert_eq!((status, head["content-type"].to_str().unwrap()), (404, "application/json"), "{text}");
    }
    // One who has to sign in first is led there.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    keys::add(&file, Role::Viewer, "eve").unwrap();
    let asked = Asked::new(Access::remote(Some(Keys::open(&file).unwrap()), None));
    let (status, _, page) = asked.ask("GET", path, &[browser], "");
    assert!(status == 401 && page.contains("<a href=\"/#/sign-in\">Sign in</a>"), "{page}");
}
