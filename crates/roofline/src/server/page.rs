//! The page, as it was built into the program; a plain one that says how to get it where it was not.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    plain: &'static [u8],
    /// Compressed, where that is smaller.
    gzip: Option<&'static [u8]>,
    /// Whether its name changes with its content, so that a browser may keep it for ever.
    hashed: bool,
}

/// Every file of `web/dist`, sorted by path; none where it was not built.
static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

const UNBUILT: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>roofline</title>\
    <link rel=\"stylesheet\" href=\"/docs/style.css\"></head><body><main><h1>roofline</h1>\
    <p>The server runs; the page was not built into it.</p>\
    <p>From the repository, <code>cargo xtask serve</code> builds the page and starts the server again.</p>\
    <p>The interface is there: <a href=\"/docs\">its documentation</a>, <a href=\"/api/health\">its health</a>.</p>\
    </main></body></html>";

pub(super) async fn index(headers: HeaderMap) -> Response {
    file("/index.html", &headers)
}

pub(super) async fn asset(request: Request) -> Response {
    file(request.uri().path(), request.headers())
}

/// A file of the page by its path.
pub(super) fn file(path: &str, headers: &HeaderMap) -> Response {
    let name = path.trim_start_matches('/');
    match FILES.binary_search_by(|file| file.path.cmp(name)) {
        Ok(at) => send(&FILES[at], headers),
        Err(_) if name == "index.html" => html(StatusCode::OK, UNBUILT),
        Err(_) => html(StatusCode::NOT_FOUND, "<!doctype html><title>404</title><p>There is no such page."),
    }
}

fn html(status: StatusCode, text: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))], text).into_response()
}

fn send(file: &'static File, headers: &HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let gzip = file.gzip.filter(|_| accepts.split(',').any(|one| one.trim().starts_with("gzip")));
    let lifetime = if file.hashed { "public, max-age=31536000, immutable" } else { "no-cache" };
    let mut response = gzip.unwrap_or(file.plain).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(lifetime));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if gzip.is_some() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}
