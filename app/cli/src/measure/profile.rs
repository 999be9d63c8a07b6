//! `loadline profile`: explains a load, in words and in other tools' notation.

use std::path::Path;

use loadline_profile::known::{FORMS, known};
use loadline_profile::{Invocation, Notation, OfferedRate, Profile, Reading, diskspd, fio};

use crate::measure::bench::typed::Typed;
use crate::output::{eprint_line, print_error, print_line};
use crate::process::exit::Exit;

/// A profile file is a few lines; what is larger is something else.
const LARGEST_FILE: u64 = 1 << 20;

/// Explain a load profile.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the well-known names of loads, and describe each load.
    List,
    /// Explain a profile in words, and print the same load as DISKSPD and fio invocations.
    #[command(after_help = "Examples:\n  \
        loadline profile show B4-T2-O32-W30-PR\n  \
        loadline profile show oltp\n  \
        loadline profile show database.fio\n  \
        loadline profile show '-b8K -t2 -o16 -w30 -r -Sh -d60 disk.img'")]
    Show {
        /// A name (`loadline profile list`), a DISKSPD or fio command line, or a file with a TOML profile, a fio job or a command line.
        #[arg(value_name = "NAME|FILE", allow_hyphen_values = true)]
        profile: String,
        /// Print the profile as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// What an argument holds: a file's content if there is such a file, else the argument itself.
pub(crate) fn read(argument: &str) -> Result<Reading, String> {
    let path = Path::new(argument);
    let text = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {
            if metadata.len() > LARGEST_FILE {
                return Err(format!("{argument} has {} bytes, too many for a profile", metadata.len()));
            }
            std::fs::read_to_string(path).map_err(|e| format!("{argument} cannot be read: {e}"))?
        }
        Ok(_) => return Err(format!("{argument} is not a file: name a profile, or a file with one")),
        Err(_) if argument.contains('/') && !argument.contains(' ') => {
            return Err(format!("{argument} does not exist: name a profile, or a file with one"));
        }
        Err(_) => argument.to_string(),
    };
    let place = if path.is_file() { format!("{argument}: ") } else { String::new() };
    loadline_profile::read(&text).map_err(|e| format!("{place}{e}"))
}

/// The one profile that an argument holds, for a command with so many targets. What else the argument holds is reported
/// as not used.
pub(crate) fn one(argument: &str, targets: usize) -> Result<Profile, String> {
    let Reading { notation, mut invocations } = read(argument)?;
    if notation == Notation::Name && invocations.len() > 1 {
        let names: Vec<String> = invocations.into_iter().filter_map(|invocation| invocation.name).collect();
        return Err(format!(
            "{argument} is {} loads at once ({}), and one is needed: name one of them, or run a `loadline bench` for each at \
             the same time",
            names.len(),
            names.join(" and ")
        ));
    }
    if invocations.len() != 1 {
        return Err(format!(
            "{argument} holds {} jobs, but a profile is one job: put one job into a file of its own",
            invocations.len()
        ));
    }
    let invocation = invocations.remove(0);
    let unused = [
        ("its targets", !invocation.targets.is_empty(), "name them in the command"),
        ("its warm-up", invocation.warm_up.is_some(), "use --warm-up"),
        ("its length", invocation.measure.is_some(), "use --for"),
        ("its size of new files", invocation.create_size.is_some(), "use --create"),
        ("its seed", invocation.seed.is_some(), "use --seed"),
    ];
    for (what, is_given, instead) in unused {
        if is_given {
            eprint_line!("loadline: {argument}: {what} is not used: {instead}");
        }
    }
    for note in &invocation.notes {
        eprint_line!("loadline: {argument}: {note}");
    }
    let mut profile = invocation.profile;
    if !matches!(notation, Notation::Name | Notation::Toml) {
        // DISKSPD's and fio's rates are each thread's, which was multiplied with the targets named there.
        let factor = targets as f64 / invocation.targets.len().max(1) as f64;
        profile.rate =
            profile.rate.map(|offered| OfferedRate { rate: offered.rate.times(factor), ..offered });
    }
    Ok(profile)
}

/// The load that is typed in the words of another tool, for a command with so many targets. What of it is not used, and
/// what it is without them, is told.
pub(crate) fn typed(typed: &Typed, targets: usize) -> Result<Invocation, String> {
    let mut load = typed.read().map_err(|e| e.to_string())?;
    if let Some(offered) = load.profile.rate {
        load.profile.rate = Some(OfferedRate { rate: offered.rate.times(targets as f64), ..offered });
    }
    if load.create_size.is_some() {
        load.notes.push("no file is created or enlarged: use --create".into());
    }
    for note in &load.notes {
        eprint_line!("loadline: {note}");
    }
    eprint_line!(
        "loadline: the load is {}; all that the options leave out is as in {}. To use the defaults of {} instead, give its \
         command line as the profile: --profile '{}'",
        load.profile.label(),
        Profile::default().label(),
        typed.tool(),
        typed.line()
    );
    Ok(load)
}

pub(crate) fn run(args: Args) -> Exit {
    let (profile, json) = match args.command {
        Command::List => return list(),
        Command::Show { profile, json } => (profile, json),
    };
    let reading = match read(&profile) {
        Ok(reading) => reading,
        Err(message) => return print_error(Exit::Usage, &message),
    };
    if json {
        let profiles: Vec<&Profile> = reading.invocations.iter().map(|i| &i.profile).collect();
        return match serde_json::to_string_pretty(&profiles) {
            Ok(text) => {
                crate::output::document(&text);
                Exit::Done
            }
            Err(error) => print_error(Exit::Failed, &error.to_string()),
        };
    }
    for (index, invocation) in reading.invocations.iter().enumerate() {
        if index > 0 {
            print_line!();
        }
        show(invocation);
    }
    Exit::Done
}

fn list() -> Exit {
    print_line!("{:<18} {:<9} WHAT", "NAME", "ALSO");
    for profile in known() {
        print_line!("{:<18} {:<9} {}", profile.name, profile.aliases.join(" "), profile.what);
    }
    print_line!();
    for (form, what) in FORMS {
        print_line!("{form:<28} {what}");
    }
    print_line!("{:<28} the load in letters: B4-T2-O32-W30-PR", "B<KiB>-T<N>-O<N>-W<%>-P<R>");
    print_line!();
    print_line!("`loadline profile show NAME` explains one, and prints it for DISKSPD and fio.");
    Exit::Done
}

fn show(invocation: &Invocation) {
    let profile = &invocation.profile;
    print_line!("{}", invocation.name.clone().unwrap_or_else(|| profile.label()));
    print_line!();
    print_line!("{}", profile.explain().trim_end());
    for note in &invocation.notes {
        print_line!("Note: {note}");
    }
    for (tool, printed) in [("DISKSPD", diskspd::print(invocation)), ("fio", fio::print_command(invocation))]
    {
        print_line!();
        match printed {
            Ok(printed) => print_line!("{tool}:\n  {}", printed.to_string().replace('\n', "\n  ")),
            Err(error) => print_line!("{tool}: cannot express this load: {error}"),
        }
    }
}
