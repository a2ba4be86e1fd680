//! Who may ask. Three doors, each for a different stranger:
//!
//! - `Host` must be a name of this server: a page whose name was pointed at this machine (DNS rebinding) sends its own.
//! - `Origin`, which browsers add when a page asks, must be this server: no other page may use the browser's reach.
//! - `Authorization` must carry the token, where there is one; compared in constant time.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority};

use super::refusal::Refusal;

pub(super) struct Guard {
    hosts: Vec<String>,
    token: Option<String>,
}

impl Guard {
    pub(super) fn new(address: IpAddr, names: &[String], token: Option<String>) -> Self {
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec();
        if !address.is_unspecified() {
            hosts.push(if address.is_ipv6() { format!("[{address}]") } else { address.to_string() });
        }
        hosts.extend(names.iter().map(|name| name.trim().to_ascii_lowercase()));
        Self { hosts, token }
    }

    pub(super) fn needs_token(&self) -> bool {
        self.token.is_some()
    }

    /// Lets a request pass, or says why not.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = self.host(uri, headers)?;
        origin(&host, headers)?;
        let protected = uri.path().starts_with("/api/") || uri.path() == "/api";
        if !protected {
            return Ok(());
        }
        sites(headers)?;
        self.token(headers)
    }

    fn host(&self, uri: &Uri, headers: &HeaderMap) -> Result<String, Refusal> {
        let mut sent = headers.get_all(header::HOST).iter();
        let named = sent.next().and_then(|host| host.to_str().ok()).or(uri.authority().map(Authority::as_str));
        let authority = named.unwrap_or_default().to_ascii_lowercase();
        let name = match authority.rfind(':') {
            Some(at) if !authority.ends_with(']') => &authority[..at],
            _ => &authority,
        };
        if sent.next().is_none() && self.hosts.iter().any(|known| known == name) {
            return Ok(authority);
        }
        let shown: String = authority.chars().take(80).collect();
        let hint = "ask for localhost, or start the server with `--allow-host NAME`";
        Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, format!("this server is not `{shown}`"), hint))
    }

    fn token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|value| {
            let (scheme, rest) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
        });
        if sent.is_some_and(|sent| same(sent.as_bytes(), token.as_bytes())) {
            return Ok(());
        }
        let detail = if sent.is_some() { "the token is wrong" } else { "a token is needed" };
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            detail,
            "send `Authorization: Bearer TOKEN`, with the token of --token",
        ))
    }
}

/// A page may ask only the server it came from.
fn origin(host: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut sent = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = sent.next() else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    if sent.next().is_none() && authority == Some(host) {
        return Ok(());
    }
    let shown: String = origin.chars().take(80).collect();
    let hint = "open the page from this server; a proxy in front of it must keep the Host header";
    Err(Refusal::new(StatusCode::FORBIDDEN, format!("pages of `{shown}` may not ask this server"), hint))
}

/// A picture or a form of another page sends no `Origin`, but browsers say where it comes from.
fn sites(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => {
            let hint = "open the page from this server";
            Err(Refusal::new(StatusCode::FORBIDDEN, "another page may not ask this server", hint))
        }
    }
}

/// Whether two texts are the same, in a time that tells nothing of where they differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other.iter().cycle()).fold(0, |differ, (a, b)| differ | (a ^ b));
    std::hint::black_box(differ) == 0 && one.len() == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect::<HeaderMap>()
    }

    fn status(guard: &Guard, path: &str, pairs: &[(&'static str, &str)]) -> u16 {
        let uri: Uri = path.parse().unwrap();
        guard.check(&uri, &headers(pairs)).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_its_own_names_are_served() {
        let guard = Guard::new("127.0.0.1".parse().unwrap(), &["gpu-box".to_owned()], None);
        for host in ["localhost:8000", "127.0.0.1", "[::1]:9000", "LOCALHOST", "gpu-box:8000"] {
            assert_eq!(status(&guard, "/api/health", &[("host", host)]), 200, "{host}");
        }
        for host in
            ["evil.example:8000", "localhost.evil.example", "", "127.0.0.1.nip.io", "[::2]:8000", "0.0.0.0:8000"]
        {
            assert_eq!(status(&guard, "/", &[("host", host)]), 421, "{host}");
        }
        assert_eq!(status(&guard, "/", &[]), 421);
    }

    #[test]
    fn only_its_own_pages_may_ask() {
        let guard = Guard::new("127.0.0.1".parse().unwrap(), &[], None);
        let ask = |origin| status(&guard, "/api/health", &[("host", "localhost:8000"), ("origin", origin)]);
        assert_eq!(ask("http://localhost:8000"), 200);
        assert_eq!(ask("HTTP://LOCALHOST:8000"), 200);
        for origin in ["https://evil.example", "null", "http://localhost:5173", "http://127.0.0.1:8000", ""] {
            assert_eq!(ask(origin), 403, "{origin}");
        }
        let from = |site| status(&guard, "/api/health", &[("host", "localhost"), ("sec-fetch-site", site)]);
        assert_eq!((from("same-origin"), from("none")), (200, 200));
        assert_eq!((from("cross-site"), from("same-site")), (403, 403));
    }

    #[test]
    fn the_token_opens_the_interface_and_the_page_needs_none() {
        let guard = Guard::new("0.0.0.0".parse().unwrap(), &[], Some("0123456789abcdef".to_owned()));
        let ask = |path, sent| status(&guard, path, &[("host", "localhost"), ("authorization", sent)]);
        assert_eq!(ask("/api/health", "Bearer 0123456789abcdef"), 200);
        assert_eq!(ask("/api/health", "bearer 0123456789abcdef"), 200);
        for wrong in [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer ",
            "0123456789abcdef",
            "Bearer 0123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(ask("/api/health", wrong), 401, "{wrong}");
        }
        assert_eq!(status(&guard, "/", &[("host", "localhost")]), 200);
    }
}
