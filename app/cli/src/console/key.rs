//! `loadline console key`: the sign-in keys of those who may use a console.

use std::path::PathBuf;

use loadline_console::access::keys;
use loadline_console::access::role::Role;

use crate::output::{eprint_line, print_error, print_line};
use crate::process::exit::Exit;

/// Sign-in keys, for --keys of 'loadline console'.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a key, and add its hash to a file, which is made if there is none. The key is printed once, and is in no file: give it to its
    /// owner alone.
    ///
    /// To take a key back, remove its line from the file: a console that runs refuses the key at once, and ends its sessions.
    #[command(after_help = "Examples:\n  \
        loadline console key add keys --role operator anna\n  \
        loadline console key add keys --role viewer screen-in-the-hall")]
    Add {
        /// The file: other users must not be able to read it.
        file: PathBuf,
        /// What the owner of the key may do: viewer (see), operator (also volumes, scrubs and drains) or admin (everything).
        #[arg(long, value_name = "ROLE")]
        role: Role,
        /// Who owns the key: events name it.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

pub(super) fn run(args: &Args) -> Exit {
    let Command::Add { file, role, name } = &args.command;
    match keys::add(file, *role, name) {
        Ok(key) => {
            eprint_line!("this is the key of {name} ({role}); it is shown this once:");
            print_line!("{}", key.text());
            Exit::Done
        }
        Err(why) => print_error(Exit::Usage, &why),
    }
}
