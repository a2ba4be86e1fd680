//! What a server says of itself, over the forwarded port.

use std::{
    fmt,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;

use crate::failure::Failure;

/// The part of `GET /api/health` that matters here.
#[derive(Deserialize)]
pub(super) struct Health {
    version: String,
    commit: Option<String>,
    #[serde(default)]
    pub(super) gpu: Option<String>,
}

/// Longest answer that is read.
const LONGEST: u64 = 64 * 1024;

impl Health {
    /// What the server of this program would say.
    pub(super) fn own() -> Self {
        let commit = roofline_run::environment::COMMIT;
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), commit: commit.map(str::to_owned), gpu: None }
    }

    /// Whether both were built from the same state; where one does not know its commit, the number decides.
    pub(super) fn same_version(&self, other: &Self) -> bool {
        let commits = self.commit.as_deref().zip(other.commit.as_deref());
        self.version == other.version && commits.is_none_or(|(one, other)| one == other)
    }

    /// Asks until there is an answer: a port is forwarded a moment before it works.
    pub(super) fn ask(address: SocketAddr, deadline: Instant) -> Result<Self, Failure> {
        loop {
            match Self::request(address) {
                Ok(body) => {
                    return serde_json::from_str(&body).map_err(|error| {
                        Failure::usage(
                            format!("what answers there is no roofline: {error}"),
                            "is another program on that port?",
                        )
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    let hint = "ROOFLINE_TOKEN is set there: unset it, or start the server by hand and tunnel to it";
                    return Err(Failure::usage("the server there wants a token", hint));
                }
                Err(error) if error.kind() != std::io::ErrorKind::Other && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(100));
                }
                Err(error) => {
                    let hint = "give it longer with `--timeout`";
                    return Err(Failure::usage(format!("the server there does not answer: {error}"), hint));
                }
            }
        }
    }

    fn request(address: SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /api/health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let fine = head.starts_with("HTTP/1.1 200");
        let refused = || {
            let kind = match head.split(' ').nth(1) {
                Some("401") => std::io::ErrorKind::PermissionDenied,
                Some(_) => std::io::ErrorKind::Other,
                None => std::io::ErrorKind::UnexpectedEof,
            };
            std::io::Error::new(kind, head.lines().next().unwrap_or("nothing was said").to_owned())
        };
        fine.then(|| body.to_owned()).ok_or_else(refused)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.version)?;
        self.commit.as_ref().map_or(Ok(()), |commit| write!(f, " ({commit})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_match_by_commit_where_both_know_it() {
        let health = |version: &str, commit: Option<&str>| Health {
            version: version.to_owned(),
            commit: commit.map(str::to_owned),
            gpu: None,
        };
        assert!(health("0.1.0", Some("a")).same_version(&health("0.1.0", Some("a"))));
        assert!(health("0.1.0", None).same_version(&health("0.1.0", Some("a"))));
        assert!(!health("0.1.0", Some("a")).same_version(&health("0.1.0", Some("b"))));
        assert!(!health("0.1.0", None).same_version(&health("0.2.0", None)));
    }
}
