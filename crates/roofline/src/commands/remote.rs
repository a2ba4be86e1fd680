//! `roofline remote`: the page of a machine far away, by the system's ssh.
//!
//! One ssh connection carries everything: it starts `roofline serve` on the loopback of the other machine, and the same
//! connection is then told to forward a port. The server there stops when its standard input ends, which it does when the
//! connection does, however that comes about.

mod connection;
mod health;

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Command, Stdio},
    time::Instant,
};

use crate::{cli::RemoteArgs, failure::Failure, report::style};
use connection::Connection;
use health::Health;

pub(crate) fn run(args: &RemoteArgs) -> Result<(), Failure> {
    let deadline = Instant::now() + args.timeout;
    let port = local_port(args.port)?;
    style::talk("note", &format!("connecting to {}", args.host));
    let mut connection = Connection::open(args, deadline)?;
    connection.forward(port)?;
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let there = Health::ask(here, deadline)?;
    check(&there, args)?;
    println!("roofline remote: http://{here}");
    println!("{}; Ctrl-C stops both ends", describe(&there, args));
    if !args.no_open {
        open(&format!("http://{here}"));
    }
    connection.wait()
}

/// A free port here, which ssh then listens on.
fn local_port(wanted: Option<u16>) -> Result<u16, Failure> {
    let wanted = wanted.unwrap_or(0);
    let taken = |error| {
        Failure::usage(format!("cannot listen on port {wanted} here: {error}"), "leave out --port to take any free one")
    };
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, wanted))
        .and_then(|listener| listener.local_addr())
        .map_err(taken)?
        .port())
}

/// Pages and answers of another version may not fit together.
fn check(there: &Health, args: &RemoteArgs) -> Result<(), Failure> {
    let own = Health::own();
    if args.any_version || there.same_version(&own) {
        return Ok(());
    }
    let message = format!("{} has roofline {there}, and here is {own}", args.host);
    Err(Failure::usage(message, "install the same version on both, or say `--any-version`"))
}

fn describe(there: &Health, args: &RemoteArgs) -> String {
    let gpu = there.gpu.as_deref().unwrap_or("no GPU");
    let measuring =
        if args.allow_measure { "jobs may run kernels there" } else { "measuring is off (--allow-measure)" };
    format!("{} with {gpu}; {measuring}", args.host)
}

/// Opens the page, where there is somebody to open it for.
fn open(address: &str) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let screen =
        cfg!(target_os = "macos") || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if screen {
        let quiet =
            Command::new(program).arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        if quiet.is_err() {
            style::talk("note", &format!("{program} is not here: open the page yourself"));
        }
    }
}
