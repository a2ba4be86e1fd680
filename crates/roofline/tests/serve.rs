//! `roofline serve` over real sockets: what people ask, what strangers try, and what is left after a crash.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Longer than anything takes on a busy machine: what never happens ends a test.
const PATIENCE: Duration = Duration::from_mins(5);

/// A folder of a test's own.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roofline"));
        command.args(arguments).env("ROOFLINE_CONFIG_DIR", &self.0).env_remove("ROOFLINE_TOKEN").current_dir(&self.0);
        command
    }

    fn serve(&self, arguments: &[&str]) -> Server {
        let all = [&["serve", "--port", "0"], arguments].concat();
        let mut child = self.command(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        Server { child, port: port.unwrap_or_else(|| panic!("no port in {line:?}")) }
    }
}

struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.body))
    }

    /// The status and what is wrong.
    fn refusal(&self) -> (u16, String) {
        (self.status, self.json()["detail"].as_str().unwrap_or_default().to_owned())
    }
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends what is given and reads to the end.
    fn raw(&self, text: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that has heard enough may close before everything is sent.
        let _ = stream.write_all(text);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunked(body) } else { body.to_owned() };
        Answer { status, head: head.to_lowercase(), body }
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if headers.iter().all(|(name, _)| *name != "Host") {
            text += &format!("Host: localhost:{}\r\n", self.port);
        }
        if !body.is_empty() {
            text += &format!("Content-Length: {}\r\n", body.len());
            if headers.iter().all(|(name, _)| *name != "Content-Type") {
                text += "Content-Type: application/json\r\n";
            }
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        self.raw(format!("{text}\r\n{body}").as_bytes())
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[], &body.to_string())
    }

    fn job(&self, id: &str) -> Value {
        self.get(&format!("/api/jobs/{id}")).json()
    }

    /// Creates a job, and its name.
    fn create(&self, path: &str, body: &Value) -> String {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 202, "{}", answer.body);
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        assert!(answer.head.contains(&format!("location: /api/jobs/{}", id.to_lowercase())), "{}", answer.head);
        id
    }

    /// Looks at a job until it is as wanted.
    fn until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let list = self.get("/api/jobs").json();
            let jobs = list["jobs"].as_array().unwrap();
            let job = jobs.iter().find(|job| job["id"] == id).unwrap_or_else(|| panic!("no job {id}"));
            if wanted(job) {
                return job.clone();
            }
            assert!(start.elapsed() < PATIENCE, "{job}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end.
    fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server goes on");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }
}

fn unchunked(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || size > rest.len() {
            break;
        }
        out += &rest[..size];
        text = rest[size..].trim_start_matches("\r\n");
    }
    out
}

/// Kernels enough to be caught in the middle: fake times, but each is written to disk.
fn long_job() -> Value {
    let shapes: Vec<String> = (1..=250).map(|n| format!("1x{}x4096", n * 16)).collect();
    let precision = ["fp16", "bf16", "fp8", "int8", "w8a16", "w4a16", "nf4", "fp8a16"];
    json!({ "verb": "sweep", "measure": true, "backend": "null", "on": "h200", "shapes": shapes, "precision": precision })
}

#[test]
fn tiles_names_and_bands() {
    let server = Home::new("tiles").serve(&[]);
    let tiles = server.ask("POST", "/api/tiling?M=2048&N=4096&K=4096&precision=FP16&hardware_key=h200", &[], "").json();
    let scores: Vec<f64> =
        tiles.as_array().unwrap().iter().filter_map(|tile| tile["efficiency_score"].as_f64()).collect();
    assert!(scores.len() > 3 && scores.is_sorted_by(|one, other| one >= other), "{scores:?}");
    // 2048 x 4096 in 128 x 128: 512 tiles over 132 multiprocessors, 32 KiB of shared memory, rounded as it was always written.
    let tile = tiles.as_array().unwrap().iter().find(|tile| tile["tile_m"] == 128 && tile["tile_n"] == 128).unwrap();
    assert_eq!((&tile["waves"], &tile["wave_efficiency"]), (&json!(3.88), &json!(0.97)), "{tile}");
    assert!(tile["shared_mem_bytes"].is_u64() && tile.get("bytes_in_flight_per_sm").is_none(), "{tile}");
    for (field, decimals) in [("l2_hit_rate_estimate", 3), ("efficiency_score", 3), ("sm_occupancy_pct", 1)] {
        let scaled = tile[field].as_f64().unwrap() * 10f64.powi(decimals);
        assert!((scaled - scaled.round()).abs() < 1e-9, "{field}: {tile}");
    }
    let vector = server.ask("POST", "/api/tiling?M=1&N=4096&K=4096&precision=FP16&hardware_key=h200", &[], "").json();
    let row = &vector[0];
    assert_eq!((&row["tile_m"], &row["tile_n"], &row["tile_k"]), (&json!(1), &json!(4), &json!(2048)), "{vector}");
    assert_eq!((&row["tiles_total"], &row["bytes_in_flight_per_sm"]), (&json!(2048), &json!(18181)), "{vector}");
    let same =
        server.post("/api/tiling", &json!({ "m": 1, "n": 4096, "k": 4096, "on": "h200", "format": "fp16" })).json();
    assert_eq!(same["gemv"]["blocks"], 2048, "{same}");
    // A checkpoint's name is a name, and no path of the server's.
    let pasted =
        json!({ "subject": "model", "model": "Qwen/Qwen2.5-7B-Instruct", "on": "h200", "precision": ["bf16"] });
    assert_eq!(server.post("/api/predict", &pasted).json()["model"], "qwen2.5-7b");
    let unknown = json!({ "subject": "model", "model": "Qwen/Qwen2.5-7B-VL", "on": "h200" });
    assert_eq!(server.post("/api/predict", &unknown).status, 404);
    for path in ["./qwen2.5-7b", "/etc/qwen2.5-7b", "../a/qwen2.5-7b"] {
        let refused = json!({ "subject": "model", "model": path, "on": "h200" });
        assert_eq!(server.post("/api/predict", &refused).status, 400, "{path}");
    }
    // The published range is the band where nobody measured.
    let gb10 = json!({ "subject": "gemv", "n": 4096, "k": 4096, "on": "gb10" });
    let chart = server.post("/api/roofline", &gb10).json();
    let memory = &chart["memories"][0];
    assert_eq!((&memory["lo_bytes_per_s"], &memory["hi_bytes_per_s"]), (&json!(273e9), &json!(301e9)), "{memory}");
}

#[test]
fn what_tools_of_the_field_ask() {
    let server = Home::new("field").serve(&[]);
    let product = json!({ "M": 1, "N": 4096, "K": 4096 });
    let answer = server.post("/api/recommend?hardware_key=jetson_orin_nano", &product);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let advice = answer.json();
    assert_eq!((&advice["precision"], &advice["memory_bound"]), (&json!("w4a16"), &json!(true)));
    for field in ["method", "reason", "predicted_speedup", "memory_savings_pct"] {
        assert!(!advice[field].is_null(), "{field}");
    }

    // Everything that says where and for what may stand in the body or in the query.
    let decode = json!({ "N": 4096, "K": 4096, "phase": "decode", "hardware_key": "jetson_orin_nano" });
    assert_eq!(server.post("/api/recommend", &decode).json(), advice, "one row when it decodes");
    let prompt = json!({ "N": 4096, "K": 4096, "hardware_key": "jetson_orin_nano", "memory_limit_gb": 0.02 });
    let answer = server.post("/api/recommend?phase=prefill", &prompt).json();
    assert_eq!(answer["memory_bound"], false, "{answer}");
    let model = json!({ "model": "llama-3.2-1b", "phase": "decode", "memory_limit_gb": 2.0 });
    let short = server.post("/api/recommend?hardware_key=jetson_orin_nano", &model);
    assert_eq!(short.status, 200, "{}", short.body);
    let long = json!({
        "subject": "model", "model": "llama-3.2-1b", "on": "jetson_orin_nano", "phase": "decode", "memory_limit": "2GB"
    });
    assert_eq!(short.json(), server.post("/api/recommend", &long).json());
    for wrong in [json!({ "phase": "both" }), json!({ "phases": "decode" }), json!({ "memory_limit_gb": "8" })] {
        let answer = server.post("/api/recommend", &wrong);
        assert_eq!(answer.status, 422, "{wrong}: {}", answer.body);
    }

    let analysis = server.post("/api/analyze", &product).json();
    assert_eq!(analysis["simulated"][0]["label"], "GEMM 1x4096x4096 [FP16]");
    assert_eq!((&analysis["measured"], &analysis["nvml"]), (&json!([]), &json!(null)));
    assert!(analysis["roofline_lines"].as_array().unwrap().iter().any(|line| line["precision"] == "FP16"));
    let all = server.post("/api/analyze?run_all_precisions=true&hardware_key=b200", &json!({})).json();
    let order: Vec<&str> =
        all["simulated"].as_array().unwrap().iter().filter_map(|p| p["precision"].as_str()).collect();
    assert_eq!(order, ["FP16", "FP8_E4M3", "NVFP4", "INT8", "INT4"]);
    assert!(!all["tiling"].is_null());

    let sweep = server.ask("POST", "/api/sweep?quick=true&hardware_key=b200", &[], "").json();
    assert_eq!(sweep["points"].as_array().unwrap().len(), 9);
    let named = server.ask("POST", "/api/sweep?precisions=FP16&precisions=INT8&hardware_key=h200", &[], "").json();
    assert_eq!(named["points"].as_array().unwrap().len(), 20);
    let listed = server.post("/api/sweep?hardware_key=h200", &json!(["FP16"])).json();
    assert_eq!(listed["points"].as_array().unwrap().len(), 10);

    for path in ["/api/hardware", "/api/public/hardware"] {
        let list = server.get(path).json();
        let nano = list.as_array().unwrap().iter().find(|item| item["key"] == "jetson_orin_nano_8gb").unwrap().clone();
        assert!(nano["precisions"].as_array().unwrap().contains(&json!("INT8")), "{nano}");
    }
    let chip = json!({ "name": "My chip", "bandwidth_gb_s": 1200, "flops_by_precision": { "FP16": 300, "INT4": 0 } });
    assert_eq!(
        server.post("/api/hardware", &chip).json(),
        json!({ "status": "registered", "name": "My chip", "key": "my_chip" })
    );
    assert_eq!(server.post("/api/recommend?hardware_key=my_chip", &product).status, 200);
    assert_eq!(server.post("/api/hardware", &chip).status, 409);

    let points = json!({
        "points": [{ "ai": 1.0, "tflops": 0.2, "time_us": 200.0, "label": "x", "source": "simulated", "precision": "FP16", "shape": "1x4096x4096" }],
        "simplified": [{ "shape": "4096x4096", "precision": "FP16", "time_us": 203.4 }, { "shape": "4096", "precision": "FP16", "time_us": 1.0 }],
    });
    let imported = server.post("/api/import-benchmarks", &points).json();
    assert_eq!((&imported["accepted"], &imported["rejected"]), (&json!(2), &json!(1)));
    assert_eq!(imported["points"][0]["source"], "measured");
    assert!(imported["errors"][0].as_str().unwrap().starts_with("Point 2: "));

    let benchmarks =
        json!([{ "kernel_type": "gemv", "shape": [4096, 4096], "precision": "FP16", "measured_time_us": 203.4 }]);
    // 203.4 us are 65.4 % above the floor; what is judged unless the floor is asked for is what `predict` expects.
    let judged = |tier: &str| {
        let asked = json!({ "hardware_key": "gb10", "tier": tier, "benchmarks": benchmarks });
        server.post("/api/validate", &asked).json()
    };
    let verdict = judged("ideal");
    assert_eq!(
        (&verdict["summary"]["num_benchmarks"], &verdict["summary"]["mean_error_pct"]),
        (&json!(1), &json!(65.4))
    );
    let kernel = json!({ "subject": "gemv", "n": 4096, "k": 4096, "on": "gb10", "precision": ["fp16"] });
    let kernel = server.post("/api/predict", &kernel).json();
    let expected = server.post("/api/validate", &json!({ "hardware_key": "gb10", "benchmarks": benchmarks })).json();
    for field in ["tier", "basis", "predicted_time_us", "ideal_time_us", "expected_time_us", "lo_us", "hi_us"] {
        assert_eq!(expected["results"][0][field], kernel["estimates"][0][field], "{field}");
    }
    assert_eq!(judged("expected"), expected);

    let status = server.get("/api/nvml/status");
    let health = server.get("/api/health").json();
    assert_eq!(status.status, if health["nvml"] == true { 200 } else { 503 });
    if status.status == 503 {
        assert_eq!(status.refusal().1, "NVML not available");
    }
}

#[test]
fn answers_are_those_of_the_command_line() {
    let home = Home::new("same");
    let server = home.serve(&[]);
    let cases = [
        (
            "predict",
            json!({ "subject": "gemv", "n": 4096, "k": 4096, "on": ["h200", "a100"], "precision": ["bf16", "w4a16"] }),
            "predict gemv --n 4096 --k 4096 --on h200,a100 --precision bf16,w4a16",
        ),
        (
            "predict",
            json!({ "subject": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128, "context": 8192, "on": "h200", "unfused": true }),
            "predict attention --heads 32 --kv-heads 8 --head-dim 128 --context 8192 --on h200 --unfused",
        ),
        (
            "predict",
            json!({ "subject": "gemv", "n": 4096, "k": 4096, "bandwidth": "60GB/s", "peak": { "fp16": "2.7TFLOP/s" }, "precision": "fp16" }),
            "predict gemv --n 4096 --k 4096 --bandwidth 60GB/s --peak fp16=2.7TFLOP/s --precision fp16",
        ),
        (
            "predict",
            json!({ "subject": "model", "model": "llama-3-8b", "on": "h200", "phase": "decode", "batch": 8, "tp": [1, 2] }),
            "predict model llama-3-8b --on h200 --phase decode --batch 8 --tp 1,2",
        ),
        (
            "recommend",
            json!({ "subject": "model", "model": "llama-3-8b", "on": "jetson_orin_nano", "memory_limit": "8GB", "max_quality_loss": "2%" }),
            "recommend model llama-3-8b --on jetson_orin_nano --memory-limit 8GB --max-quality-loss 2%",
        ),
        (
            "analyze",
            json!({ "model": "mistral-7b", "on": "t4", "precision": "fp16", "prompt": 512, "generate": 100, "measured": "12.4s" }),
            "analyze --model mistral-7b --on t4 --precision fp16 --prompt 512 --generate 100 --measured 12.4s",
        ),
        (
            "tiling",
            json!({ "m": 4096, "n": 4096, "k": 4096, "on": "h200", "format": "bf16" }),
            "tiling --m 4096 --n 4096 --k 4096 --on h200 --format bf16",
        ),
        ("sweep", json!({ "on": "h200", "precision": ["bf16"] }), "sweep --on h200 --precision bf16"),
    ];
    for (verb, body, typed) in cases {
        let answer = server.post(&format!("/api/{verb}"), &body);
        assert_eq!(answer.status, 200, "{typed}: {}", answer.body);
        let arguments: Vec<&str> = typed.split(' ').chain(["--json"]).collect();
        let output = home.command(&arguments).output().unwrap();
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer.json(), printed, "{typed}");
    }
    let chart =
        json!({ "subject": "model", "model": "llama-3-8b", "on": "h200", "precision": "bf16", "phase": "decode" });
    let chart = server.post("/api/roofline", &chart).json();
    assert!(
        chart["ceilings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|roof| roof["math"] == "bf16" && roof["flop_per_s"] == 989.4e12)
    );
    assert_eq!(chart["memories"][0]["bytes_per_s"], 4.8e12);
    let row = &chart["prediction"]["estimates"][0];
    assert_eq!((&row["bits_per_weight"], &row["bits_per_kv"]), (&json!(16.0), &json!(16.0)));
    for field in
        ["site", "class", "count", "ai", "predicted_tflops", "ideal_tflops", "share", "flops", "bytes", "bottleneck"]
    {
        assert!(!row["operators"][0][field].is_null(), "{field}");
    }
    let picture = server
        .post("/api/plot", &json!({ "kind": "shares", "models": ["llama-3-8b"], "on": "h200", "precision": "bf16" }));
    assert!(picture.head.contains("image/svg+xml") && picture.body.starts_with("<svg"), "{}", picture.head);
}

#[test]
fn what_strangers_try() {
    let home = Home::new("strangers");
    fs::write(
        home.0.join("secret.toml"),
        "name = 'secret'\n[memory]\nbandwidth = '1 TB/s'\n[peaks]\nbf16 = '1 TFLOP/s'",
    )
    .unwrap();
    fs::write(home.0.join("config.json"), "{}").unwrap();
    fs::create_dir(home.0.join("secret")).unwrap();
    let server = home.serve(&["--request-timeout", "5"]);
    let gemv = |on: &str| json!({ "subject": "gemv", "n": 64, "k": 64, "on": on, "precision": "bf16" });

    // Other names, other pages.
    let hosts = ["evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io"];
    for host in hosts {
        assert_eq!(server.ask("GET", "/api/health", &[("Host", host)], "").status, 421, "{host}");
    }
    let origin =
        |origin: &str| server.ask("POST", "/api/predict", &[("Origin", origin)], &gemv("h200").to_string()).status;
    assert_eq!(origin(&format!("http://localhost:{}", server.port)), 200);
    for other in ["http://evil.example", "null", "http://localhost:1", "file://"] {
        assert_eq!(origin(other), 403, "{other}");
    }
    let other = server.ask("GET", "/api/health", &[("Origin", "http://evil.example")], "");
    assert!(!other.head.contains("access-control-allow-origin"), "{}", other.head);

    // Files of the server.
    for on in [
        "secret.toml",
        "./secret.toml",
        "secret.toml@x",
        "/etc/passwd",
        "../secret.toml",
        "h200,secret.toml",
        "SECRET.TOML",
    ] {
        let (status, detail) = server.post("/api/predict", &gemv(on)).refusal();
        assert_eq!(status, 400, "{on}: {detail}");
        assert!(detail.contains("is a path") && !detail.contains("bandwidth"), "{on}: {detail}");
    }
    for model in ["config.json", ".", "secret", "/etc", "./config.json"] {
        let body = json!({ "subject": "model", "model": model, "on": "h200" });
        let (status, detail) = server.post("/api/predict", &body).refusal();
        assert!(status == 400 || status == 404, "{model}: {detail}");
    }
    for field in ["out", "from", "report", "measured", "force", "resume"] {
        let mut body = json!({ "subject": "gemv", "n": 64, "k": 64 });
        body[field] = json!("x");
        assert_eq!(server.post("/api/compare", &body).status, 403, "{field}");
    }
    assert_eq!(server.get("/api/devices/..%2f..%2fetc%2fpasswd").status, 400);
    assert_eq!(server.get("/assets/..%2f..%2fetc%2fpasswd").status, 404);

    // Shapes, numbers, lists.
    let post = |body: &str| server.ask("POST", "/api/predict", &[], body).status;
    assert_eq!(post(r#"{"subject":"gemv","n":99999999999,"k":64,"on":"h200"}"#), 422);
    assert_eq!(post(r#"{"subject":"gemv","n":-1,"k":64,"on":"h200"}"#), 422);
    assert_eq!(post(r#"{"subject":"gemv","n":1.5,"k":64,"on":"h200"}"#), 422);
    assert_eq!(post(r#"{"subject":"gemv","n":1e999,"k":64,"on":"h200"}"#), 400);
    assert_eq!(post(r#"{"subject":"gemv","n":NaN,"k":64,"on":"h200"}"#), 400);
    assert_eq!(post(r#"{"subject":"gemv","n":"64; --on=x","k":64,"on":"h200"}"#), 422);
    assert_eq!(post(r#"{"subject":"--help","n":64}"#), 422);
    assert_eq!(post(r#"{"subject":"gemv","n":64,"k":64,"on":"h200","--json":true}"#), 422);
    assert_eq!(post(r#"{"subject":"gemv","n":64,"k":64,"on":"h20O"}"#), 404);
    assert_eq!(post(r#"{"subject":"gemv","n":64,"k":64,"on":"--help"}"#), 404);
    assert_eq!(post(&"[".repeat(100_000)), 400);
    assert_eq!(post("{"), 400);
    assert_eq!(post("[]"), 422);
    assert_eq!(post(&format!(r#"{{"subject":"gemv","n":64,"k":64,"on":[{}]}}"#, vec!["\"h200\""; 300].join(","))), 422);
    let many = vec!["\"h200\""; 200].join(",");
    let precisions = vec!["\"bf16\""; 200].join(",");
    assert_eq!(post(&format!(r#"{{"subject":"gemv","n":64,"k":64,"on":[{many}],"precision":[{precisions}]}}"#)), 422);
    let sweep = json!({ "models": ["llama-3-8b"], "on": "h200", "batch": "1..1000000+1", "context": "1..1000000+1" });
    assert_eq!(server.post("/api/sweep", &sweep).status, 422);
    let tokens = json!({ "subject": "model", "model": "llama-3-8b", "on": "h200", "generate": 1_000_000 });
    assert_eq!(server.post("/api/predict", &tokens).status, 422);

    // Bodies, methods, paths.
    assert_eq!(post(&format!(r#"{{"subject":"{}"}}"#, "x".repeat(2 << 20))), 413);
    let plain = server.ask("POST", "/api/predict", &[("Content-Type", "text/plain")], "{}");
    assert_eq!(plain.status, 415);
    assert_eq!(server.get("/api/predict").status, 405);
    assert_eq!(server.get("/api/nothing").status, 404);
    assert_eq!(server.raw(b"NONSENSE\r\n\r\n").status, 400);
    assert_eq!(server.post("/api/measure", &gemv("h200")).refusal(), (403, "measuring is off".to_owned()));

    // None of it matters to the next one.
    let answer = server.post("/api/predict", &gemv("h200"));
    assert_eq!(answer.status, 200);
    for header in [
        "content-security-policy: default-src 'self'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(answer.head.contains(header), "{header}");
    }
}

#[test]
fn a_token_is_asked_of_everybody() {
    let home = Home::new("token");
    let open = home.command(&["serve", "--host", "0.0.0.0", "--port", "0"]).output().unwrap();
    assert_eq!(open.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&open.stderr).contains("no token protects it"));
    let server = home.serve(&["--token", "0123456789abcdef0123"]);
    let with = |value: &str| server.ask("GET", "/api/health", &[("Authorization", value)], "").status;
    assert_eq!(with("Bearer 0123456789abcdef0123"), 200);
    for wrong in ["Bearer 0123456789abcdef0124", "Bearer", "Basic 0123456789abcdef0123"] {
        assert_eq!(with(wrong), 401, "{wrong}");
    }
    let none = server.get("/api/jobs");
    assert!(none.status == 401 && none.head.contains("www-authenticate: bearer"), "{}", none.head);
    // The page asks for the token, so it has to be there without one.
    assert_eq!((server.get("/").status, server.get("/docs").status), (200, 200));
}

#[test]
fn a_client_that_takes_its_time_is_sent_away() {
    const HEAD: &[u8] = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";
    const BODY: &[u8] = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let begin = |server: &Server, text: &[u8]| {
        let mut stream = server.connect();
        stream.write_all(text).unwrap();
        stream
    };
    // Whoever came earlier to a server that waits longer is still waited for when all others are gone.
    let patient = Home::new("patient").serve(&["--header-timeout", "3600", "--request-timeout", "3600"]);
    let waiting = [HEAD, BODY].map(|text| begin(&patient, text));
    let server = Home::new("slow").serve(&["--header-timeout", "0.3", "--request-timeout", "0.5"]);
    let slow: Vec<TcpStream> = (0..20).map(|_| begin(&server, HEAD)).collect();
    assert_eq!(server.get("/api/health").status, 200);
    for mut stream in slow {
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest).map_err(|error| error.kind());
        assert!(!matches!(ended, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "the server waits on");
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    let body = server.raw(BODY);
    assert_eq!(body.status, 408, "{}", body.head);
    assert_eq!(server.get("/api/health").status, 200);
    for mut stream in waiting {
        stream.set_nonblocking(true).unwrap();
        let heard = stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(heard, Err(ErrorKind::WouldBlock), "sent away after the usual time");
    }
}

#[test]
fn a_measurement_beside_load_says_so() {
    let home = Home::new("beside");
    let server = home.serve(&["--allow-measure"]);
    let body =
        json!({ "subject": "gemv", "n": 1024, "k": 1024, "backend": "cpu", "seconds": 1, "precision": ["fp32"] });
    let busy = server.create("/api/measure", &body);
    let mut asked = 0;
    while server.job(&busy)["ended"].is_null() {
        for _ in 0..20 {
            assert_eq!(server.get("/api/health").status, 200);
            asked += 1;
        }
    }
    let busy = server.job(&busy);
    assert!(busy["requests"].as_u64().unwrap() >= asked / 2, "{busy}");
    assert!(busy["disturbed"].as_str().unwrap().contains("requests were answered on this processor"), "{busy}");
    assert_eq!(busy["state"], "done");
}

#[test]
fn a_job_from_its_start_to_its_end() {
    let home = Home::new("job");
    let server = home.serve(&["--allow-measure"]);
    let body = json!({ "subject": "gemv", "n": 4096, "k": 4096, "backend": "null", "on": "h200", "precision": ["bf16", "w4a16"] });
    let id = server.create("/api/measure", &body);
    let done = server.until(&id, |job| job["state"] == "done");
    assert_eq!((&done["finished"], &done["count"]), (&json!(2), &json!(2)));
    let job = server.job(&id);
    assert_eq!(job["points"].as_array().unwrap().len(), 2);
    for (kept, answered) in [0, 1].map(|at| (&job["points"][at], &job["result"]["measurements"][at])) {
        assert_eq!((&kept["shape"], &kept["precision"]), (&answered["shape"], &answered["precision"]));
        // A run keeps times to the nanosecond.
        let (kept, answered) =
            (kept["measured_time_us"].as_f64().unwrap(), answered["measured_time_us"].as_f64().unwrap());
        assert!((kept - answered).abs() < 1e-3, "{kept} {answered}");
    }
    // The shapes that fill a machine have no subject to name a device for them, and no more right to files than it.
    let saturating =
        |on: &str| json!({ "saturate": true, "quick": true, "backend": "null", "on": on, "precision": ["bf16"] });
    let full = server.create("/api/measure", &saturating("h200"));
    assert_eq!(server.until(&full, |job| job["state"] == "done")["count"], 5);
    let (status, detail) = server.post("/api/measure", &saturating("secret.toml")).refusal();
    assert!(status == 400 && detail.contains("is a path"), "{status} {detail}");
    let events = server.get(&format!("/api/jobs/{id}/events")).body;
    let kinds: Vec<&str> = events.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(kinds, ["progress", "point", "progress", "point", "end"]);
    let later = server.ask("GET", &format!("/api/jobs/{id}/events"), &[("Last-Event-ID", "3")], "").body;
    assert_eq!(later.lines().filter(|line| line.starts_with("event: ")).count(), 1);

    // Whatever the command line can compare can be compared.
    let id = server.create(
        "/api/compare",
        &json!({ "subject": "sizes", "n": "256..1024", "backend": "null", "on": "h200", "precision": "bf16" }),
    );
    server.until(&id, |job| job["state"] == "done");
    assert_eq!(server.job(&id)["result"]["comparisons"].as_array().unwrap().len(), 3);

    // What cannot be measured fails, and says why.
    let id = server.create("/api/measure", &json!({ "subject": "gemv", "n": 64, "k": 64, "backend": "null" }));
    let failed = server.until(&id, |job| job["state"] == "failed");
    assert!(failed["error"].as_str().unwrap().contains("null backend"), "{failed}");
    let giant = json!({ "subject": "gemv", "n": 1_000_000_000, "k": 1_000_000_000, "backend": "null", "on": "h200" });
    assert_eq!(server.post("/api/measure", &giant).status, 400);
    assert_eq!(server.post("/api/jobs", &json!({ "verb": "predict" })).status, 422);
    assert_eq!(server.post("/api/jobs", &json!({ "verb": "sweep", "on": "h200" })).status, 422);
    assert_eq!(server.get("/api/jobs/..%2f..").status, 404);

    // Forgotten when it is told to.
    assert_eq!(server.ask("DELETE", &format!("/api/jobs/{id}"), &[], "").status, 200);
    assert_eq!(server.get(&format!("/api/jobs/{id}")).status, 404);

    let stream = server.ask(
        "POST",
        "/api/benchmark/stream?backend=null&hardware_key=h200&shapes=1,64,64;x&precisions=FP16,NVFP4",
        &[],
        "",
    );
    let data: Vec<Value> =
        stream.body.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    assert_eq!(data.len(), 3, "{data:?}");
    assert!(data[0]["error"].as_str().unwrap().contains("FP4") && data[0]["precision"] == "NVFP4");
    assert_eq!(
        (&data[1]["shape"], &data[1]["precision"], &data[1]["progress"]),
        (&json!("1x64x64"), &json!("FP16"), &json!("1/2"))
    );
    assert_eq!(data[2], json!({ "done": true, "total": 2 }));
    let measured = server.post("/api/analyze?backend=null&hardware_key=h200", &json!({ "M": 1 })).json();
    assert_eq!(measured["measured"][0]["label"], "GEMM 1x4096x4096 [FP16] (measured)");
    let measured =
        server.ask("POST", "/api/sweep?backend=null&hardware_key=h200&quick=true&run_measured=true", &[], "").json();
    assert_eq!(measured["points"].as_array().unwrap().iter().filter(|point| point["source"] == "measured").count(), 6);
}

#[test]
fn one_at_a_time_and_cancelled_between_kernels() {
    let server = Home::new("queue").serve(&["--allow-measure"]);
    let first = server.create("/api/jobs", &long_job());
    let second = server.create("/api/jobs", &long_job());
    let third = server.create("/api/jobs", &long_job());
    server.until(&first, |job| job["finished"].as_u64() >= Some(1));
    assert_eq!(server.job(&second)["state"], "queued");
    assert_eq!(server.job(&third)["ahead"], 1);
    let cancelled = server.ask("DELETE", &format!("/api/jobs/{third}"), &[], "");
    assert_eq!(cancelled.json()["state"], "cancelled");
    assert_eq!(server.ask("DELETE", &format!("/api/jobs/{first}"), &[], "").status, 200);
    let ended = server.until(&first, |job| job["state"] != "running");
    assert_eq!(ended["state"], "cancelled");
    assert!(ended["finished"].as_u64() < ended["count"].as_u64(), "{ended}");
    server.until(&second, |job| job["state"] == "running");
    // Predictions are answered meanwhile.
    let gemv = json!({ "subject": "gemv", "n": 64, "k": 64, "on": "h200", "precision": "bf16" });
    assert_eq!(server.post("/api/predict", &gemv).status, 200);
}

#[test]
fn what_was_measured_outlives_the_process() {
    let home = Home::new("killed");
    let mut server = home.serve(&["--allow-measure"]);
    let running = server.create("/api/jobs", &long_job());
    let queued = server.create("/api/jobs", &long_job());
    server.until(&running, |job| job["finished"].as_u64() >= Some(3));
    // Nobody else may add to the folder while this one does.
    let second = home.command(&["serve", "--port", "0", "--allow-measure"]).output().unwrap();
    assert!(String::from_utf8_lossy(&second.stderr).contains("another server keeps its jobs"));
    server.child.kill().unwrap();
    server.child.wait().unwrap();

    let server = home.serve(&[]);
    let job = server.job(&running);
    assert_eq!(job["state"], "interrupted");
    let finished = job["finished"].as_u64().unwrap();
    assert!((3..2000).contains(&finished), "{finished}");
    assert_eq!(job["points"].as_array().unwrap().len() as u64, finished);
    assert_eq!(server.job(&queued)["state"], "interrupted");
    let events = server.get(&format!("/api/jobs/{running}/events")).body;
    assert_eq!(events.lines().filter(|line| *line == "event: point").count() as u64, finished);
    assert!(events.contains("event: end"));
    // How many there would have been is known, and whoever counted further still hears of the end.
    assert_eq!((&job["count"], job["ended"].is_string()), (&json!(2000), true));
    let late = server.ask("GET", &format!("/api/jobs/{running}/events"), &[("Last-Event-ID", "100000")], "").body;
    assert!(late.contains("event: end"), "{late}");
}

#[test]
fn told_to_stop_it_ends_well() {
    let home = Home::new("stopped");
    let mut server = home.serve(&["--allow-measure"]);
    let id = server.create("/api/jobs", &long_job());
    server.until(&id, |job| job["finished"].as_u64() >= Some(1));
    let mut follower = server.connect();
    let path = format!("GET /api/jobs/{id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    follower.write_all(path.as_bytes()).unwrap();
    server.terminate();
    assert_eq!(server.ended().code(), Some(0));
    let mut rest = String::new();
    let _ = follower.read_to_string(&mut rest);
    let server = home.serve(&[]);
    let job = server.job(&id);
    assert_eq!(job["state"], "interrupted");
    assert_eq!(job["points"].as_array().unwrap().len(), job["finished"].as_u64().unwrap() as usize);
}

#[test]
fn documents_name_every_route() {
    let server = Home::new("documents").serve(&[]);
    let document = server.get("/api/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let page = server.get("/docs").body;
    for (path, _) in document["paths"].as_object().unwrap() {
        assert!(page.contains(path.as_str()), "{path}");
    }
    // Nothing is loaded from elsewhere.
    assert!(!page.contains("http://") && !page.contains("https://"));
    assert!(server.get("/").body.contains("cargo xtask serve") || server.get("/").body.contains("assets/"));
}

#[test]
fn who_may_not_measure_measures_nothing() {
    let home = Home::new("gate");
    let server = home.serve(&[]);
    // Shapes without a device would be those of this machine, which nobody measured yet.
    let sweep = server.post("/api/sweep", &json!({ "shapes": ["1x64x64"] }));
    assert_eq!(sweep.status, 409, "{}", sweep.body);
    assert_eq!(server.post("/api/predict", &json!({ "subject": "gemv", "n": 64, "k": 64, "on": "this" })).status, 409);
    assert!(!home.0.join("machines").exists());
    // Looking at a stream's head starts nothing, and neither does coming back to one.
    let measuring = home.serve(&["--allow-measure"]);
    let stream = "/api/benchmark/stream?backend=null&shapes=1,64,64&hardware_key=h200";
    assert_eq!(measuring.ask("HEAD", stream, &[], "").status, 405);
    assert_eq!(measuring.ask("GET", stream, &[("Last-Event-ID", "0")], "").status, 204);
    assert_eq!(measuring.get("/api/jobs").json()["jobs"].as_array().unwrap().len(), 0);
}

#[test]
fn a_server_that_only_looks_changes_nothing() {
    let home = Home::new("looks");
    let looking = home.serve(&[]);
    // It does not keep another from measuring,
    let measuring = home.serve(&["--allow-measure"]);
    let id = measuring.create("/api/jobs", &long_job());
    measuring.until(&id, |job| job["finished"].as_u64() > Some(3));
    // sees what that one does,
    looking.until(&id, |job| job["state"] == "running");
    assert_eq!(looking.ask("DELETE", &format!("/api/jobs/{id}"), &[], "").status, 409);
    assert_eq!(looking.ask("POST", &format!("/api/jobs/{id}/cancel"), &[], "").status, 409);
    // and ends without a trace.
    looking.terminate();
    let mut looking = looking;
    assert!(looking.child.wait().unwrap().success());
    assert_eq!(measuring.job(&id)["state"], "running");
    assert_eq!(measuring.ask("POST", &format!("/api/jobs/{id}/cancel"), &[], "").status, 200);
    let cancelled = measuring.until(&id, |job| job["state"] == "cancelled");
    // Cancelling what has ended takes nothing away.
    let again = measuring.ask("POST", &format!("/api/jobs/{id}/cancel"), &[], "");
    assert_eq!(again.refusal(), (409, "the job has ended".to_owned()));
    assert_eq!(measuring.job(&id)["points"].as_array().unwrap().len() as u64, cancelled["finished"].as_u64().unwrap());
}

#[test]
fn whoever_never_reads_is_sent_away() {
    let home = Home::new("deaf");
    let server = home.serve(&["--connections", "4", "--request-timeout", "1"]);
    let request = format!("GET /api/devices HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", server.port).repeat(200);
    let deaf: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            // The answers fill every buffer on the way long before the requests end.
            let _ = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    let start = Instant::now();
    while server.get("/api/health").status != 200 {
        assert!(start.elapsed() < PATIENCE, "nobody else is answered");
        thread::sleep(Duration::from_millis(50));
    }
    drop(deaf);
}
