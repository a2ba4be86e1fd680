//! What tests share: folders, the program and what it says, runs that are killed, and safetensors written and read without the
//! library.

#![allow(dead_code, reason = "every test takes what it needs")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

/// A folder of its own for a test.
pub(crate) fn temporary(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", env!("CARGO_CRATE_NAME")));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roofline"));
    command.args(arguments).env("ROOFLINE_CONFIG_DIR", "/nonexistent").env_remove("COLUMNS").env("NO_COLOR", "1");
    // Models run on the processor in tests, whatever else there is.
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

pub(crate) fn roofline(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// What the program told whoever talks to it.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Everything that a user sees.
pub(crate) fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap();
    format!(
        "exit code: {code}\n----- stdout -----\n{}----- stderr -----\n{}",
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// What a command that must succeed answers.
pub(crate) fn json(arguments: &[&str]) -> Value {
    let output = roofline(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    answer(&output)
}

/// The answer of a command that must have succeeded.
pub(crate) fn answer(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// How often a run is started that is to be killed in the middle.
pub(crate) const TRIES: usize = 100;

/// Starts a run and kills it once `reached`, which looks at what is on disk: a busy machine gets there later, and to the same
/// place. False where the run was done before it could be killed.
pub(crate) fn killed(command: &mut Command, reached: impl Fn() -> bool) -> bool {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !reached() && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(1));
    }
    let failed = child.try_wait().unwrap().is_some_and(|status| !status.success());
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!failed, "{}", said(&output));
    !output.status.success()
}

/// The same of a run that makes `target`, which is not there afterwards: it is started anew until it is caught before that.
pub(crate) fn killed_before(target: &Path, arguments: &[&str], reached: impl Fn() -> bool) {
    let caught = |_| {
        remove(target);
        remove(&partial(target));
        killed(&mut command(arguments), &reached) && !target.exists()
    };
    assert!((0..TRIES).any(caught), "{arguments:?}: always done before it was killed");
}

/// The folder that a target is made in.
pub(crate) fn partial(target: &Path) -> PathBuf {
    target.with_file_name(format!(".{}.partial", target.file_name().unwrap().to_str().unwrap()))
}

/// Tensors that a run noted as safely on disk, in the folder that it works in; none where it has not begun.
pub(crate) fn journaled(partial: &Path) -> Option<usize> {
    Some(fs::read_to_string(partial.join("journal.jsonl")).ok()?.matches('\n').count())
}

/// Removes a file or a folder, where there is one.
pub(crate) fn remove(path: &Path) {
    if path.is_dir() {
        fs::remove_dir_all(path).unwrap();
    } else if path.exists() {
        fs::remove_file(path).unwrap();
    }
}

/// The numbers of BF16 or FP32.
pub(crate) fn numbers(dtype: &str, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        "BF16" => bf16(bytes),
        "F32" => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        other => panic!("{other}"),
    }
}

/// Bytes of BF16 as numbers.
pub(crate) fn bf16(bytes: &[u8]) -> Vec<f32> {
    let (pairs, _) = bytes.as_chunks();
    pairs.iter().map(|pair| f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16)).collect()
}

/// Tensors of a file in their order: names, types, shapes and bytes.
pub(crate) type Tensors = Vec<(String, &'static str, Vec<usize>, Vec<u8>)>;

/// Writes a safetensors file.
pub(crate) fn write(path: &Path, tensors: &Tensors) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    for (name, dtype, shape, bytes) in tensors {
        let end = data.len() + bytes.len();
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [data.len(), end] }));
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()).unwrap();
}

/// Types, shapes and bytes of a safetensors file, by name.
pub(crate) fn read(path: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let file = fs::read(path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let entries = header.into_iter().filter(|(name, _)| name != "__metadata__");
    entries
        .map(|(name, entry)| {
            let [begin, end] = [0, 1].map(|at| 8 + length + number(&entry["data_offsets"][at]));
            let shape = entry["shape"].as_array().unwrap().iter().map(number).collect();
            let dtype = entry["dtype"].as_str().unwrap().to_owned();
            (name, (dtype, shape, file[begin..end].to_vec()))
        })
        .collect()
}

/// Writes a tokenizer of so many tokens.
pub(crate) fn write_tokenizer(path: &Path, tokens: usize) {
    let vocabulary: serde_json::Map<String, Value> = (0..tokens).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = json!({
        "added_tokens": [{ "id": 0, "content": "t0", "special": true }],
        "pre_tokenizer": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    });
    fs::write(path, tokenizer.to_string()).unwrap();
}
