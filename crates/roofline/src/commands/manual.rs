//! `roofline completions` and `roofline man`, generated from the command line itself.

use std::io::{self, Write};

use crate::{cli, failure::Failure};

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "roofline", &mut script);
    io::stdout().write_all(&script).map_err(Failure::Output)
}

pub(crate) fn manual(name: Option<&str>) -> Result<(), Failure> {
    let mut root = cli::command();
    root.build();
    let mut command = &root;
    for word in name.into_iter().flat_map(|name| name.split('-')) {
        command = command.find_subcommand(word).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            Failure::usage(format!("there is no command `{word}`"), format!("commands: {}", known.join(", ")))
        })?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).map_err(Failure::Output)?;
    io::stdout().write_all(&page).map_err(Failure::Output)
}
