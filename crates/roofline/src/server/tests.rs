//! Every route through the router, without a socket.

mod same;
mod trace;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use clap::Parser;
use roofline_verbs::{
    compare,
    request::{Caller, schema},
};
use serde_json::Value;
use tower::ServiceExt;

use super::{
    openapi::{OPERATIONS, dangling, value},
    router::router,
    state::State,
};
use crate::cli::{Cli, Command};

fn app(name: &str) -> Router {
    let folder = std::env::temp_dir().join(format!("roofline-server-{}-{name}", std::process::id()));
    let folder = folder.to_str().unwrap();
    let cli = Cli::try_parse_from(["roofline", "serve", "--allow-measure", "--state", folder]).ok().unwrap();
    let Command::Serve(args) = cli.command else { panic!("not serve") };
    router(State::new(&args).ok().unwrap())
}

async fn ask(app: &Router, method: &str, path: &str, body: Option<&str>) -> (StatusCode, String, String) {
    let request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
    let request = request.header(header::CONTENT_TYPE, "application/json");
    let request = request.body(body.map_or_else(Body::empty, |body| Body::from(body.to_owned()))).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned());
    let status = response.status();
    let stream = kind.as_deref() == Some("text/event-stream");
    // A stream that goes on is not read to its end.
    let text = if stream {
        String::new()
    } else {
        String::from_utf8(to_bytes(response.into_body(), 1 << 24).await.unwrap().to_vec()).unwrap()
    };
    (status, kind.unwrap_or_default(), text)
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(future)
}

#[test]
fn every_route_that_is_documented_answers_its_example() {
    let app = app("examples");
    wait(async {
        for operation in OPERATIONS {
            let path = operation.path.replace("{key}", "h200").replace("{id}", "none");
            let (status, kind, text) = ask(&app, &operation.method.to_uppercase(), &path, operation.example).await;
            let expected = match operation.path {
                "/api/models/{key}" | "/api/formats/{key}" => continue,
                path if path.contains("{id}") => "404",
                "/api/nvml/status" | "/api/nvml/stream" if status == StatusCode::SERVICE_UNAVAILABLE => "503",
                _ => operation.status,
            };
            assert_eq!(status.as_str(), expected, "{} {path}: {text}", operation.method);
            if expected == operation.status {
                assert!(kind.starts_with(operation.kind), "{} {path}: {kind}", operation.method);
            }
        }
        let (status, _, text) = ask(&app, "GET", "/api/models/llama-3-8b", None).await;
        assert!(status.is_success() && text.contains("\"kv_bytes_per_token\""), "{text}");
        let (status, _, text) = ask(&app, "GET", "/api/formats/nvfp4", None).await;
        assert!(status.is_success() && text.contains("\"codebook\""), "{text}");
    });
}

#[test]
fn queries_select_devices() {
    let app = app("queries");
    wait(async {
        let (status, _, text) = ask(&app, "GET", "/api/devices?vendor=nvidia&has=fp8&sort=bandwidth", None).await;
        assert!(status.is_success(), "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(answer["devices"].as_array().unwrap().iter().all(|device| device["vendor"] == "NVIDIA"));
        let (status, _, text) = ask(&app, "GET", "/api/devices?vendr=nvidia", None).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(text.contains("did you mean `vendor`?"), "{text}");
        assert_eq!(ask(&app, "GET", "/api/precisions?on=t4", None).await.0, StatusCode::OK);
    });
}

#[test]
fn references_of_the_document_lead_somewhere() {
    assert_eq!(dangling(), Vec::<String>::new());
    assert!(value().to_string().contains("$ref"));
}

#[test]
fn files_are_nobody_elses_to_name() {
    let forms = schema::<compare::Request>(Caller::Elsewhere)["oneOf"].as_array().unwrap();
    assert!(forms.len() > 5);
    for form in forms {
        assert!(!form["properties"]["backend"].is_null() && form["additionalProperties"] == false, "{form}");
        for file in ["from", "measured", "report", "out", "resume"] {
            assert!(form["properties"][file].is_null(), "{file}");
        }
    }
}
