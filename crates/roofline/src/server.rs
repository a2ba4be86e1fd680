//! `roofline serve`: the verbs over HTTP, and the page.
//!
//! A route extracts a request, calls its verb once and returns the answer: the same types that the command line parses and
//! prints. Nothing here computes.

mod answers;
mod catalogue;
mod compat;
mod docs;
mod extent;
mod extract;
mod guard;
mod jobs;
mod limits;
mod listener;
mod openapi;
mod page;
mod picture;
mod refusal;
mod router;
mod state;
mod trace;
mod write_timeout;

use std::net::{IpAddr, SocketAddr};

use roofline_core::{Model, Registry};

pub(crate) use listener::signal;
use roofline_verbs::Error;

use crate::{cli::ServeArgs, failure::Failure};

/// The OpenAPI document.
pub(crate) fn document() -> &'static serde_json::Value {
    openapi::value()
}

/// How many routes it has, and which of its references lead nowhere.
pub(crate) fn routes() -> (usize, Vec<String>) {
    (openapi::OPERATIONS.len(), openapi::dangling())
}

/// Answers until it is told to stop.
pub(crate) fn serve(args: &ServeArgs) -> Result<(), Failure> {
    if !args.host.is_loopback() && args.token.is_none() {
        let hint = "give a token (`--token \"$(openssl rand -hex 32)\"`), or leave out --host and reach it by `ssh -L`";
        return Err(Failure::usage(format!("{} can be reached by others, and no token protects it", args.host), hint));
    }
    let state = state::State::new(args)?;
    Registry::preload();
    Model::preload();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::file("the runtime of the server"))?;
    runtime.block_on(async {
        let address = SocketAddr::new(args.host, args.port);
        let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| taken(address, &error))?;
        announce(listener.local_addr().map_err(|error| taken(address, &error))?, args);
        let input = args.until_eof.then(end_of_input);
        let stop = async {
            match input {
                Some(ended) => tokio::select! { () = signal() => {}, _ = ended => {} },
                None => signal().await,
            }
        };
        listener::serve(listener, router::router(state.clone()), &state, stop).await;
        state.jobs.stop();
        Ok(())
    })
}

/// Told when standard input ends. A thread of its own reads it: nothing can stop a read, and nothing waits for the thread.
fn end_of_input() -> tokio::sync::oneshot::Receiver<()> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = sender.send(());
    });
    receiver
}

fn taken(address: SocketAddr, error: &std::io::Error) -> Failure {
    let hint = "`--port 0` takes any free port";
    Failure::usage(format!("cannot listen on {address}: {error}"), hint)
}

/// Where it is, on standard output, so that whoever started it can read the port.
fn announce(address: SocketAddr, args: &ServeArgs) {
    let name = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => "localhost".to_owned(),
        IpAddr::V6(ip) if ip.is_unspecified() => "localhost".to_owned(),
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    };
    println!("roofline serve: http://{name}:{}", address.port());
    let measuring = if args.allow_measure { "jobs may run kernels here" } else { "measuring is off (--allow-measure)" };
    println!("{measuring}; documentation at /docs; Ctrl-C stops");
}

#[cfg(test)]
mod tests;
