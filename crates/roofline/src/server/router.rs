//! Which path leads where, and what every request passes on its way.

use std::time::{Duration, Instant};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State as Extract},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};

use roofline_verbs::{chart, predict};

use super::{
    answers, catalogue,
    compat::{benchmark, hardware, imports, nvml, products},
    docs,
    jobs::routes,
    limits,
    listener::Client,
    openapi, page, picture,
    refusal::Refusal,
    state::{Shared, State},
    trace,
};

/// The whole server but for its sockets.
pub(super) fn router(state: Shared) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/assets/{*path}", get(page::asset))
        .route("/docs", get(docs::page))
        .route("/docs/style.css", get(docs::style))
        .route("/api/openapi.json", get(openapi::document))
        .route("/api/health", get(catalogue::health))
        .route("/api/devices", get(catalogue::devices))
        .route("/api/devices/{key}", get(catalogue::device))
        .route("/api/models", get(catalogue::models))
        .route("/api/models/{key}", get(catalogue::model))
        .route("/api/formats", get(catalogue::formats))
        .route("/api/formats/{key}", get(catalogue::format))
        .route("/api/precisions", get(catalogue::precisions))
        .route("/api/jobs", get(routes::list).post(routes::create))
        .route("/api/jobs/{id}", get(routes::show).delete(routes::remove))
        .route("/api/jobs/{id}/cancel", post(routes::cancel))
        .route("/api/jobs/{id}/events", get(routes::events))
        .route("/api/nvml/status", get(nvml::look))
        .route("/api/nvml/stream", get(nvml::watch))
        .route("/api/hardware", get(hardware::list).post(hardware::describe))
        .route("/api/public/hardware", get(hardware::list))
        .route("/api/import-benchmarks", post(imports::import).layer(imports::limit()))
        .route("/api/public/import-benchmarks", post(imports::import).layer(imports::limit()))
        .route("/api/validate", post(imports::validate).layer(imports::limit()))
        .route("/api/benchmark/stream", get(benchmark::run).post(benchmark::run).head(wrong_method))
        .route("/api/analyze", post(products::analyze))
        .route("/api/public/analyze", post(products::public_analyze))
        .route("/api/recommend", post(products::recommend))
        .route("/api/public/recommend", post(products::recommend))
        .route("/api/sweep", post(products::sweep))
        .route("/api/tiling", post(products::tiling))
        .route("/api/predict", answers::post(predict::predict))
        .route("/api/roofline", answers::post(chart::chart))
        .route("/api/plot", post(picture::plot))
        .route("/api/measure", post(routes::measure))
        .route("/api/compare", post(routes::compare))
        .route("/api/trace", post(trace::compare).layer(trace::limit()))
        .fallback(missing)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(limits::BODY))
        .layer(from_fn_with_state(state.clone(), admit))
        .with_state(state)
}

async fn missing(request: Request) -> Response {
    if request.uri().path().starts_with("/api") {
        let shown: String = request.uri().path().chars().take(80).collect();
        let hint = "/docs lists the routes, /api/openapi.json describes them";
        return Refusal::new(StatusCode::NOT_FOUND, format!("there is no `{shown}`"), hint).into_response();
    }
    page::file(request.uri().path(), request.headers())
}

async fn wrong_method(request: Request) -> Refusal {
    let detail = format!("`{}` cannot be asked like this: {}", request.uri().path(), request.method());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, detail, "/docs lists the routes with their methods")
}

/// Checks who asks and how often, ends what takes too long, and tells browsers what the answer may do.
async fn admit(Extract(state): Extract<Shared>, request: Request, next: Next) -> Response {
    let interface = request.uri().path().starts_with("/api");
    limits::count();
    let allowed = state.guard.check(request.uri(), request.headers()).and_then(|()| match request.extensions().get() {
        Some(Client(address)) => state.rates.check(address.ip(), Instant::now()),
        None => Ok(()),
    });
    let mut response = match allowed {
        Err(refusal) => refusal.into_response(),
        Ok(()) => {
            tokio::time::timeout(patience(&state, request.uri().path()), next.run(request)).await.unwrap_or_else(|_| {
                let hint = "send the body at once, and ask for less";
                Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request took too long", hint).into_response()
            })
        }
    };
    protect(response.headers_mut(), interface);
    response
}

/// Measuring while the caller waits takes as long as it takes.
const MEASURING: Duration = Duration::from_mins(30);

fn patience(state: &State, path: &str) -> Duration {
    let measures = state.allow_measure && matches!(path, "/api/analyze" | "/api/sweep");
    match path {
        _ if measures => MEASURING,
        "/api/trace" => state.request_timeout.max(trace::PATIENCE),
        _ => state.request_timeout,
    }
}

/// What a page of this server may load, and who may show it: itself, and nobody.
const POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

fn protect(headers: &mut HeaderMap, interface: bool) {
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    if interface {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
}
