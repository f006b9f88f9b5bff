//! `preemptprof completions` and `preemptprof man`: from the definitions that
//! `--help` prints.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use super::args::{Cli, CompletionsArgs, ManArgs};
use super::terminal;
use crate::output;

/// Prints a completion script.
pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    terminal::print(&String::from_utf8(script).context("the script is not UTF-8")?)?;
    Ok(0)
}

/// Prints the manual page, or writes all.
pub(super) fn man(args: &ManArgs) -> anyhow::Result<u8> {
    let mut command = Cli::command();
    command.build();
    match &args.directory {
        None => {
            let page = String::from_utf8(render(command)?).context("the page is not UTF-8")?;
            terminal::print(&page)?;
        }
        Some(directory) => {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
            write_pages(command, directory, args.force)?;
        }
    }
    Ok(0)
}

fn render(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}

/// Writes the page of a command and those of the commands below it.
fn write_pages(command: Command, directory: &Path, force: bool) -> anyhow::Result<()> {
    for inner in command.get_subcommands() {
        if inner.get_name() != "help" {
            write_pages(inner.clone(), directory, force)?;
        }
    }
    // `preemptprof-bench-pipe`, as git has it.
    let name = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let page = render(command)?;
    output::write_file(&directory.join(format!("{name}.1")), force, &page)
}
