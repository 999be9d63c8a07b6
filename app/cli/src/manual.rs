//! The man pages and the shell completions that packages hold: a test writes them, so that the program does not carry their
//! generators, and every command is known to have its page.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// The folder into which `./dev package` has them written. Not set, they go to a temporary folder.
const FOLDER: &str = "LOADLINE_MANUAL";

/// Writes the pages of a command and of all commands below it into a folder. Returns how many there are.
fn write_pages(command: &Command, folder: &Path) -> io::Result<usize> {
    let mut pages = 1;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages += write_pages(below, folder)?;
    }
    let page =
        Man::new(command.clone()).source(concat!("loadline ", env!("CARGO_PKG_VERSION"))).manual("Loadline");
    let mut file = File::create(folder.join(page.get_filename()))?;
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    page.render_synopsis_section(&mut file)?;
    page.render_description_section(&mut file)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(&mut file)?;
    }
    if command.has_subcommands() {
        page.render_subcommands_section(&mut file)?;
    }
    if let Some(notes) = command.get_after_help() {
        let mut roff = Roff::default();
        roff.control("SH", ["NOTES"]);
        // Examples are indented, and stay as they are typed; text around them is filled.
        let mut typed = false;
        for line in notes.to_string().lines() {
            if line.starts_with(' ') != typed {
                typed = !typed;
                roff.control(if typed { "nf" } else { "fi" }, []);
            }
            roff.text([roman(line)]);
        }
        roff.to_writer(&mut file)?;
    }
    file.flush()?;
    Ok(pages)
}

#[test]
fn every_command_has_a_page_and_completions() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = std::env::var_os(FOLDER).map_or(temporary.path().to_owned(), PathBuf::from);
    let pages = folder.join("man1");
    fs::create_dir_all(&pages).unwrap();
    let mut command = crate::Cli::command().disable_help_subcommand(true);
    command.build();
    let written = write_pages(&command, &pages).unwrap();
    assert_eq!(fs::read_dir(&pages).unwrap().count(), written, "two commands have one page");
    for known in ["loadline.1", "loadline-bench.1", "loadline-volume-create.1", "loadline-san-dev.1"] {
        let page = fs::read_to_string(pages.join(known)).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{known}: {page}");
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let folder = folder.join(shell.to_string());
        fs::create_dir_all(&folder).unwrap();
        let file = clap_complete::generate_to(shell, &mut command, "loadline", &folder).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("volume") && text.contains("destroy-data"), "{shell}: {text}");
        // Bash looks for a file that is named after the command.
        if file.extension() == Some(OsStr::new("bash")) {
            fs::rename(&file, file.with_extension("")).unwrap();
        }
    }
}
