//! `loadline san service`: a node as a service of systemd. The unit of a node is that of the package, or the same one written for
//! another folder or another program.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use loadline_san_node::config::url::StoreUrl;
use loadline_san_node::settings::NodeSettings;

use crate::output::{print_error, print_line};
use crate::process::exit::Exit;

/// The unit that the package has.
const PACKAGED: &str = include_str!("../../../../packaging/loadline-node@.service");
/// Where the package has it, by the usual two names of one folder.
const PACKAGED_AT: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];
/// Where an administrator's units are.
const UNITS: &str = "/etc/systemd/system";
/// Exists where systemd runs (`sd_booted`).
const BOOTED: &str = "/run/systemd/system";
/// The folder that the unit lets nodes write: their folders are in it, if no others are named. And the program that it runs.
pub(super) const STATE: &str = "/var/lib/loadline";
const PROGRAM: &str = "/usr/bin/loadline";
/// The first line of a unit that this command has written.
const MARK: &str =
    "# Written by 'loadline san service' or 'loadline san join --service', which may write it again.";
/// Folders that the unit hides from the node.
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

/// Run a node as a service of systemd: write a unit for the node's folder, and enable and start it.
///
/// The node then starts with the host, and again after a failure. The service is loadline-node@NAME. If the package is installed and the
/// folder is /var/lib/loadline/NAME, the unit of the package is used, and nothing is written. Otherwise the unit is written to
/// /etc/systemd/system. A unit of that name which this command has not written is left as it is. The command needs root.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline san service --config /var/lib/loadline/node-1/node.toml\n  \
    systemctl status loadline-node@node-1\n  \
    journalctl -u loadline-node@node-1")]
pub(super) struct Service {
    /// The node.toml of the node.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn service(args: &Service) -> Exit {
    let settings = match NodeSettings::read(&args.config) {
        Ok(settings) => settings,
        Err(why) => return print_error(Exit::Usage, &why.to_string()),
    };
    let config = std::path::absolute(&args.config).unwrap_or_else(|_| args.config.clone());
    let unit = match Unit::plan(&settings.name, &config, &settings.folder, &settings.cluster) {
        Ok(unit) => unit,
        Err(why) => return print_error(Exit::Usage, &format!("{why}. Nothing was changed")),
    };
    match unit.start() {
        Ok(()) => {
            print_line!("{}", unit.done());
            Exit::Done
        }
        Err(why) => print_error(Exit::Failed, &why),
    }
}

/// The unit of a node.
#[derive(Debug)]
pub(super) struct Unit {
    /// `loadline-node@NAME.service`.
    name: String,
    /// The text to write; `None` if the unit of the package is the right one.
    text: Option<String>,
}

impl Unit {
    /// The unit of a node with this `node.toml`. An error if it could not run here, or is another's; nothing is written.
    pub(super) fn plan(node: &str, config: &Path, folder: &Path, store: &StoreUrl) -> Result<Unit, String> {
        if !Path::new(BOOTED).is_dir() {
            return Err(format!(
                "systemd does not run on this host ({BOOTED} is missing), so there is no service to make: have the service manager of this host \
                 run 'loadline san serve --config {}'",
                config.display()
            ));
        }
        if !nix::unistd::geteuid().is_root() {
            return Err("making a service needs root: run the command with sudo".into());
        }
        let name = format!("loadline-node@{node}.service");
        let program = std::env::current_exe().map_err(|why| format!("the path of this program: {why}"))?;
        for path in [program.as_path(), config, folder].into_iter().chain(store.files()) {
            if let Some(hidden) = HIDDEN.into_iter().find(|hidden| path.starts_with(hidden)) {
                return Err(format!(
                    "{} is below {hidden}, which is hidden from the service: the program belongs to /usr/bin or /usr/local/bin, a node's folder and \
                     the file of a configuration store to /var/lib/loadline or /srv, and certificates of an etcd to /etc",
                    path.display()
                ));
            }
        }
        let packaged =
            PACKAGED_AT.iter().any(|folder| Path::new(folder).join("loadline-node@.service").exists());
        let as_packaged = program == Path::new(PROGRAM)
            && config == Path::new(STATE).join(node).join("node.toml")
            && writes(folder, store).is_empty();
        let at = Path::new(UNITS).join(&name);
        let own = std::fs::read_to_string(&at).is_ok_and(|text| text.starts_with(MARK));
        if at.symlink_metadata().is_ok() && !own {
            return Err(format!(
                "{} exists, and was not written by this command: move it away, or enable it yourself ('systemctl enable --now {name}')",
                at.display()
            ));
        }
        // One that was written before would hide that of the package, and has the same content or an older one.
        let text =
            if packaged && as_packaged && !own { None } else { Some(text(&program, config, folder, store)?) };
        Ok(Unit { name, text })
    }

    /// Writes the unit, enables it and starts it. Waits until the node is ready.
    pub(super) fn start(&self) -> Result<(), String> {
        if let Some(text) = &self.text {
            let at = Path::new(UNITS).join(&self.name);
            let new = Path::new(UNITS).join(format!(".{}.new", self.name));
            let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &at));
            written.map_err(|why| format!("{}: {why}", at.display()))?;
        }
        self.systemctl(&["daemon-reload"])?;
        self.systemctl(&["enable", "--now", &self.name])
    }

    fn systemctl(&self, words: &[&str]) -> Result<(), String> {
        let line = words.join(" ");
        // What it prints is for people, on standard error.
        let ended = Command::new("systemctl").args(words).stdout(std::io::stderr()).status();
        let fails = |why: String| {
            format!(
                "'systemctl {line}' failed: {why}. 'journalctl -u {}' may show the reason; after it is gone, run 'loadline san service' for this node",
                self.name
            )
        };
        let status = ended.map_err(|why| fails(why.to_string()))?;
        if status.success() { Ok(()) } else { Err(fails(status.to_string())) }
    }

    /// What was done.
    pub(super) fn done(&self) -> String {
        let name = &self.name;
        let unit = match self.text {
            Some(_) => format!("{UNITS}/{name}"),
            None => "that of the package".into(),
        };
        format!(
            "service {name} runs, and starts with the host (its unit: {unit}); its log: journalctl -u {name}"
        )
    }
}

/// What a node writes and the unit of the package does not let it write.
fn writes(folder: &Path, store: &StoreUrl) -> Vec<PathBuf> {
    let mut all = vec![folder.to_owned()];
    if let StoreUrl::Sqlite(file) = store {
        // SQLite makes files beside it.
        all.extend(file.parent().map(Path::to_owned));
    }
    all.retain(|path| !path.starts_with(STATE));
    all.dedup();
    all
}

/// The unit of the package, for this program and this folder.
fn text(program: &Path, config: &Path, folder: &Path, store: &StoreUrl) -> Result<String, String> {
    let mut text = format!("{MARK}\n");
    // The comment before the first section is about the unit as an instance of the package's.
    let body = PACKAGED.lines().skip_while(|line| !line.starts_with('['));
    for line in body {
        let line = match line.split_once('=').map_or("", |(key, _)| key) {
            "ExecStart" => {
                // In a command line, and only there, a $ begins the name of a variable.
                let words = format!("{} san serve --config {}", quoted(program)?, quoted(config)?);
                format!("ExecStart={}", words.replace('$', "$$"))
            }
            "RequiresMountsFor" => format!("RequiresMountsFor={}", quoted(folder)?),
            "StateDirectory" => {
                let mut lines = String::from(line);
                for path in writes(folder, store) {
                    let _ = write!(lines, "\nReadWritePaths={}", quoted(&path)?);
                }
                lines
            }
            _ => line.to_owned(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    Ok(text)
}

/// A path as one word of a unit.
fn quoted(path: &Path) -> Result<String, String> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let text =
        text.ok_or_else(|| format!("{path:?} cannot be in a unit of systemd: it is not plain text"))?;
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    Ok(if escaped.contains([' ', '"', '\\', '\'', ';']) { format!("\"{escaped}\"") } else { escaped })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(folder: &str, store: &str) -> String {
        let (folder, store) = (Path::new(folder), store.parse().unwrap());
        text(Path::new("/usr/local/bin/loadline"), &folder.join("node.toml"), folder, &store).unwrap()
    }

    #[test]
    fn a_unit_names_the_program_the_folder_and_what_the_node_may_write() {
        let unit = made("/srv/a/node-1", "/srv/cluster/cluster.db");
        assert!(unit.starts_with(MARK));
        for line in [
            "ExecStart=/usr/local/bin/loadline san serve --config /srv/a/node-1/node.toml",
            "RequiresMountsFor=/srv/a/node-1",
            "StateDirectory=loadline\nReadWritePaths=/srv/a/node-1\nReadWritePaths=/srv/cluster",
            "ProtectSystem=strict",
            "WantedBy=multi-user.target",
        ] {
            assert!(unit.contains(&format!("\n{line}\n")), "{line} in {unit}");
        }
        assert!(!unit.contains("/usr/bin/loadline"), "{unit}");
        assert!(!made("/var/lib/loadline/a", "etcd://10.0.0.1").contains("ReadWritePaths"));
    }

    #[test]
    fn a_path_is_one_word_of_a_unit_and_means_nothing_else() {
        assert_eq!(quoted(Path::new("/srv/node-1")).unwrap(), "/srv/node-1");
        assert_eq!(quoted(Path::new("/srv/a b/100%/$x\"")).unwrap(), "\"/srv/a b/100%%/$x\\\"\"");
        assert!(quoted(Path::new("/srv/a\nExecStartPre=/bin/false")).is_err());
    }
}
