//! The same question has the same answer, whoever asks it: a thousand random ones through every verb and over HTTP.

use std::sync::Arc;

use axum::Router;
use clap::Parser;
use roofline_core::{Model, Plan, Registry};
use roofline_verbs::{Context, analyze, context::Home, plot, predict, recommend, request, sweep};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{app, ask, wait};
use crate::cli::{Cli, Command};

/// What every estimate has, and what has to be equal to the last digit.
const FIELDS: [&str; 16] = [
    "tier",
    "stack",
    "basis",
    "predicted_time_us",
    "ideal_time_us",
    "expected_time_us",
    "lo_us",
    "hi_us",
    "bottleneck",
    "predicted_tflops",
    "flops",
    "bytes",
    "ai",
    "critical_ai",
    "speedup",
    "ideal_speedup",
];
const PLANS: [&str; 16] = [
    "bf16",
    "fp16",
    "fp8",
    "int8",
    "w8a16",
    "w4a16",
    "nvfp4",
    "mxfp4a16",
    "q4_k_m",
    "q8_0",
    "INT4",
    "w4a16,head=q8_0,kv=fp8",
    "ffn=int4-g64,attention=w8a16",
    "*=bf16,experts=mxfp4a16",
    "int4-g128/bf16/fp8",
    "q5_k_m,layers.0-1=q8_0",
];

/// A number after another, the same on every machine: xorshift.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.next(of.len())]
    }
}

/// Where, by which plan beside 16 bit, and which time is spoken of.
struct Place {
    device: String,
    plan: &'static str,
    tier: &'static str,
}

impl Place {
    fn arguments(&self) -> Vec<&str> {
        let mut all = vec!["--on", &self.device, "--precision", "bf16", "--precision", self.plan];
        if !self.tier.is_empty() {
            all.extend(["--tier", self.tier]);
        }
        all
    }

    fn body(&self, fields: Value) -> Map<String, Value> {
        let Value::Object(mut body) = fields else { panic!("not an object") };
        body.insert("on".to_owned(), json!(self.device));
        body.insert("precision".to_owned(), json!(["bf16", self.plan]));
        if !self.tier.is_empty() {
            body.insert("tier".to_owned(), json!(self.tier));
        }
        body
    }
}

/// What a command answers, or nothing where it refuses.
fn told(verb: &str, arguments: &[&str]) -> Option<Value> {
    fn value<A: Serialize, E>(answer: Result<A, E>) -> Option<Value> {
        answer.ok().map(|answer| serde_json::to_value(answer).unwrap())
    }
    let context = Context::remote(Arc::new(Home::of_user()));
    let cli = Cli::try_parse_from(["roofline", verb].iter().chain(arguments)).unwrap_or_else(|error| panic!("{error}"));
    match cli.command {
        Command::Predict(request) => value(predict::predict(&context, &request)),
        Command::Sweep(request) => value(sweep::sweep(&context, &request)),
        Command::Plot(args) => value(plot::plot(&context, &args.request)),
        Command::Analyze(request) => value(analyze::analyze(&context, &request)),
        Command::Recommend(subject) => value(recommend::recommend(&context, &subject.request())),
        _ => panic!("no such question: {verb}"),
    }
}

/// What the library answers to the same body as HTTP.
fn asked(body: Map<String, Value>) -> Value {
    let request: predict::Request = request::from_json(Value::Object(body)).unwrap();
    let context = Context::remote(Arc::new(Home::of_user()));
    serde_json::to_value(predict::predict(&context, &request).unwrap()).unwrap()
}

async fn posted(app: &Router, path: &str, body: Map<String, Value>) -> Value {
    let (status, _, text) = ask(app, "POST", path, Some(&Value::Object(body).to_string())).await;
    assert!(status.is_success(), "{text}");
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn same(question: &str, face: &str, one: &Value, other: &Value) {
    for field in FIELDS {
        assert!(!one[field].is_null(), "{question}: predict has no `{field}`");
        assert_eq!(one[field], other[field], "{question}: `{field}` of predict and of {face}");
    }
}

/// The same but for speed-ups, which `recommend` tells over the 16 bit of the device.
#[track_caller]
fn alike(question: &str, face: &str, one: &Value, other: &Value) {
    for field in FIELDS.into_iter().filter(|field| !field.ends_with("speedup")) {
        assert_eq!(one[field], other[field], "{question}: `{field}` of predict and of {face}");
    }
}

/// What must hold of one answer, whoever gives it.
#[track_caller]
fn sensible(question: &str, estimate: &Value, first: &Value) {
    let number = |field: &str| estimate[field].as_f64().unwrap();
    let (ideal, expected) = (number("ideal_time_us"), number("expected_time_us"));
    assert!(expected >= ideal, "{question}: {expected} expected, {ideal} at least");
    assert!(number("lo_us") <= expected && expected <= number("hi_us"), "{question}");
    // A speed-up is a ratio within the tier that is spoken of.
    let ratio = |field: &str| first[field].as_f64().unwrap() / number(field);
    let spoken = if estimate["tier"] == "ideal" { "ideal_time_us" } else { "expected_time_us" };
    assert_eq!(number("predicted_time_us"), number(spoken), "{question}");
    assert!((number("speedup") / ratio(spoken) - 1.0).abs() < 1e-12, "{question}");
    assert!((number("ideal_speedup") / ratio("ideal_time_us") - 1.0).abs() < 1e-12, "{question}");
}

#[test]
fn a_thousand_questions_have_one_answer_each() {
    let devices: Vec<String> = Registry::builtin().devices().map(|device| device.key.clone()).collect();
    let models: Vec<&str> = Model::builtin().iter().map(|model| model.key.as_str()).collect();
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let (app, mut answered, mut advised) = (app("same"), 0, 0);
    wait(async {
        for _ in 0..1000 {
            // The H200 has a calibration; the others have what their class has in common.
            let other = devices[dice.next(devices.len())].clone();
            let device = if dice.next(4) == 0 { "h200_sxm".to_owned() } else { other };
            let place = Place { device, plan: dice.one(&PLANS), tier: dice.one(&["", "", "ideal", "expected"]) };
            let known = if dice.next(3) == 0 {
                product(&app, &mut dice, &place).await
            } else {
                let name = dice.one(&models);
                model(&app, &mut dice, name, &place, &mut advised).await
            };
            answered += usize::from(known);
        }
    });
    // The others ask for units that a device lacks.
    assert!(answered > 600 && advised > 20, "{answered} answered, {advised} advised");
}

async fn product(app: &Router, dice: &mut Dice, place: &Place) -> bool {
    let m = [1, 2, 16, 100, 512, 2048][dice.next(6)];
    let (n, k) = (256_u64 << dice.next(7), 256_u64 << dice.next(7));
    let question = format!("{m} x {n} x {k} {} on {} {}", place.plan, place.device, place.tier);
    let [m_text, n_text, k_text] = [m, n, k].map(|side: u64| side.to_string());
    let shape = ["gemm", "--m", &m_text, "--n", &n_text, "--k", &k_text];
    let place_arguments = place.arguments();
    let Some(predicted) = told("predict", &[&shape[..], &place_arguments].concat()) else { return false };
    let [base, own] = [0, 1].map(|at| &predicted["estimates"][at]);
    if own.is_null() {
        return false;
    }
    sensible(&question, own, base);
    let shapes = format!("{m}x{n}x{k}");
    let swept = told("sweep", &[&["--shapes", &shapes][..], &place_arguments].concat()).unwrap();
    same(&question, "sweep", own, &swept["points"][1]);
    let tier = if place.tier.is_empty() { vec![] } else { vec!["--tier", place.tier] };
    if let Some(advised) = told("recommend", &[&shape[..], &["--on", &place.device], &tier[..]].concat()) {
        let ranked = advised["ranked"].as_array().unwrap();
        let plan = place.plan.parse::<Plan>().unwrap().to_string();
        if let Some(row) = ranked.iter().find(|row| row["plan"] == json!(plan)) {
            alike(&question, "recommend", own, row);
        }
    }
    let body = place.body(json!({ "subject": "gemm", "m": m, "n": n, "k": k }));
    both(app, &question, own, body).await;
    true
}

/// HTTP and the library say the same, all of it, and of what was asked the same as the command line.
async fn both(app: &Router, question: &str, own: &Value, body: Map<String, Value>) {
    let answer = posted(app, "/api/predict", body.clone()).await;
    same(question, "POST /api/predict", own, &answer["estimates"][1]);
    assert_eq!(answer["estimates"], asked(body)["estimates"], "{question}: HTTP and the library");
}

async fn model(app: &Router, dice: &mut Dice, model: &str, place: &Place, advised_plans: &mut usize) -> bool {
    let (phase, batch, context) =
        (dice.one(&["prefill", "decode"]), 1_u64 << dice.next(5), 64 + dice.next(8000) as u64);
    let Place { device, plan, tier } = place;
    let question = format!("{model} {plan} on {device}, {phase}, batch {batch}, {context} tokens {tier}");
    let (batch_text, context_text) = (batch.to_string(), context.to_string());
    let pass = ["--phase", phase, "--batch", &batch_text, "--context", &context_text];
    let asked_of = [&pass[..], &place.arguments()].concat();
    let Some(predicted) = told("predict", &[&["model", model], &asked_of[..]].concat()) else { return false };
    let [base, own] = [0, 1].map(|at| &predicted["estimates"][at]);
    if own.is_null() {
        return false;
    }
    sensible(&question, own, base);
    // A plan in JSON is its text.
    let text = own["plan"].as_str().unwrap();
    assert_eq!(text.parse::<Plan>().unwrap().to_string(), plan.parse::<Plan>().unwrap().to_string());
    let swept = told("sweep", &[&[model], &asked_of[..]].concat()).unwrap();
    same(&question, "sweep", own, &swept["points"][1]);
    same(&question, "plot", own, &told("plot", &[&["batch", model], &asked_of[..]].concat()).unwrap()["points"][1]);
    // Two generated tokens are a prompt and one step, at a context of one more than the prompt.
    let prompt = (context - u64::from(phase == "decode")).to_string();
    let run = ["--model", model, "--prompt", &prompt, "--generate", "2", "--measured", "1000s", "--batch", &batch_text];
    let analyzed = told("analyze", &[&run[..], &place.arguments()].concat()).unwrap();
    let mut part = analyzed["runs"][1]["parts"][if phase == "prefill" { 1 } else { 2 }].clone();
    // A request has one basis, the weakest of its passes'.
    part["basis"] = own["basis"].clone();
    same(&question, "analyze", own, &part);
    let limits = ["--any-quality", "--tp", "1", "--all", "--on", device];
    let tiers = if tier.is_empty() { vec![] } else { vec!["--tier", tier] };
    // One in eight: every plan of a device is predicted.
    if dice.next(8) == 0 {
        let advised = told("recommend", &[&["model", model], &pass[..], &limits, &tiers[..]].concat()).unwrap();
        let outcomes = advised["outcomes"].as_array().unwrap();
        let of = |outcome: &&Value| outcome["plan"] == own["plan"] && outcome["offload"].is_null();
        if let Some(outcome) = outcomes.iter().find(of) {
            alike(&question, "recommend", own, outcome);
            *advised_plans += 1;
        }
    }
    let fields = json!({ "subject": "model", "model": model, "phase": phase, "batch": batch, "context": context });
    both(app, &question, own, place.body(fields)).await;
    let fields = json!({ "models": [model], "phase": phase, "batch": batch_text, "context": context_text });
    same(&question, "POST /api/sweep", own, &posted(app, "/api/sweep", place.body(fields)).await["points"][1]);
    true
}
