//! A trace that is sent has the answer of one that lies on disk, and what is none is refused.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use clap::Parser;
use roofline_core::wording;
use roofline_verbs::{Context, compare, context::Home, note::Nobody};
use serde_json::Value;
use tower::ServiceExt;

use super::{app, wait};
use crate::cli::{Cli, Command};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../roofline-verbs/src/trace/fixtures").join(name)
}

async fn send(app: &Router, query: &str, kind: &str, body: Vec<u8>) -> (StatusCode, Value) {
    let request = Request::post(format!("/api/trace{query}")).header(header::HOST, "localhost");
    let request = request.header(header::CONTENT_TYPE, kind).body(Body::from(body)).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = to_bytes(response.into_body(), 1 << 24).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap())
}

/// What the command line would print as JSON.
fn typed(arguments: &[&str]) -> Value {
    let all = [&["roofline", "compare"][..], arguments].concat();
    let Command::Compare(args) = Cli::try_parse_from(all).ok().unwrap().command else { panic!("not compare") };
    let context = Context::local(Arc::new(Home::of_user()), Arc::new(Nobody));
    // Through text, as both are printed: numbers of 32 bit have fewer digits there, and names of fields are spelled.
    let text = serde_json::to_string(&compare::compare(&context, &args.request).unwrap()).unwrap();
    serde_json::from_str(&wording::fields(&text)).unwrap()
}

#[test]
fn a_trace_has_one_answer_whoever_brings_it() {
    let app = app("traces");
    wait(async {
        for (name, on, tier) in [
            ("gpu.json", None, None),
            ("gpu.json", Some("a100"), Some("ideal")),
            ("processor.json", Some("h200"), None),
        ] {
            let path = fixture(name);
            let path = path.to_str().unwrap();
            let mut arguments = vec!["--trace", path];
            let mut query = format!("?name={}", path.replace('/', "%2F"));
            for (field, value) in [("on", on), ("tier", tier)].into_iter().filter_map(|(one, two)| Some((one, two?))) {
                query += &format!("&{field}={value}");
                arguments.extend([if field == "on" { "--on" } else { "--tier" }, value]);
            }
            let expected = typed(&arguments);
            for kind in ["application/json", "application/octet-stream"] {
                let (status, answer) = send(&app, &query, kind, std::fs::read(path).unwrap()).await;
                assert_eq!(status, StatusCode::OK, "{answer}");
                assert_eq!(answer, expected, "{name} {kind}");
            }
            assert!(!expected["trace"]["operators"].as_array().unwrap().is_empty());
            assert!(!expected["trace"]["first"].as_array().unwrap().is_empty());
        }
        let table = "\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n\
                     \"0\",\"gemm\",\"gpu__time_duration.sum\",\"usecond\",\"42.5\"\n";
        let (status, answer) = send(&app, "?on=h200", "text/csv", table.as_bytes().to_vec()).await;
        assert_eq!((status, &answer["trace"]["source"]), (StatusCode::OK, &"ncu".into()), "{answer}");
        assert_eq!(answer["subject"], "trace");
    });
}

#[test]
fn what_is_no_trace_is_refused() {
    let app = app("no-traces");
    wait(async {
        let trace = std::fs::read(fixture("gpu.json")).unwrap();
        let long = format!("?name={}", "a".repeat(201));
        for (query, kind, body, expected, words) in [
            ("", "text/plain", trace.clone(), 415, "`text/plain`"),
            ("", "application/json", Vec::new(), 400, "it is empty"),
            ("", "application/json", b"{\"traceEvents\": [".to_vec(), 400, "trace: "),
            ("", "application/gzip", [0x1f, 0x8b, 8, 0, 0].to_vec(), 400, "trace: "),
            ("?on=h20O", "application/json", trace.clone(), 404, "h20O"),
            ("?of=h200", "application/json", trace.clone(), 422, "`of`"),
            ("?tier=idle", "application/json", trace.clone(), 422, "idle"),
            (&long, "application/json", trace.clone(), 400, "the name of the trace"),
            ("?name=a%0Ab", "application/json", trace.clone(), 400, "the name of the trace"),
            ("", "application/json", vec![b' '; (64 << 20) + 1], 413, "too large"),
        ] {
            let (status, answer) = send(&app, query, kind, body).await;
            assert_eq!(status.as_u16(), expected, "{query} {kind}: {answer}");
            assert!(answer["detail"].as_str().unwrap().contains(words), "{query} {kind}: {answer}");
        }
        // More than other routes take.
        let mut padded = vec![b' '; 4 << 20];
        padded.extend(trace);
        assert_eq!(send(&app, "", "application/json", padded).await.0, StatusCode::OK);
    });
}
