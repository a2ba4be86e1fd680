//! Connections: as many as allowed, each with a limit on how long it may take to say what it wants, until a signal.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use super::{
    state::{Shared, State},
    write_timeout::Patient,
};

/// Who asks.
#[derive(Clone, Copy)]
pub(super) struct Client(pub(super) SocketAddr);

/// How long requests under way get when the server stops; streams are told to end before.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Longest head of a request.
const HEAD: usize = 64 * 1024;
/// What a connection too many is told.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\n\
    Content-Length: 34\r\nConnection: close\r\n\r\n{\"detail\":\"too many connections\"}\n";

pub(super) async fn serve(listener: TcpListener, router: Router, state: &Shared, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, client)) => connect(stream, client, &router, state, &graceful),
            // Out of file descriptors, mostly: some will be closed soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    drop(listener);
    state.stop();
    let _ = tokio::time::timeout(LAST_WORDS, graceful.shutdown()).await;
}

fn connect(stream: TcpStream, client: SocketAddr, router: &Router, state: &State, graceful: &GracefulShutdown) {
    let Ok(permit) = Arc::clone(&state.connections).try_acquire_owned() else {
        // What was just accepted has room for a line.
        let _ = stream.try_write(FULL);
        return;
    };
    let _ = stream.set_nodelay(true);
    let router = router.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(Client(client));
        router.clone().oneshot(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(state.header_timeout).max_buf_size(HEAD);
    let stream = Patient::new(stream, state.request_timeout);
    let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
    tokio::spawn(async move {
        let _permit = permit;
        // A client that goes away, or says nothing in time, is no news.
        let _ = connection.await;
    });
}

/// Ctrl-C, or what a service manager sends.
pub(crate) async fn signal() {
    #[cfg(unix)]
    if let Ok(mut term) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = term.recv() => {}
        }
        return;
    }
    let _ = tokio::signal::ctrl_c().await;
}
