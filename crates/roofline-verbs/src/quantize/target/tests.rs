use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use crate::{
    Context, Result,
    context::Home,
    demo,
    note::Nobody,
    quantize::{Answer, quantize},
    request::from_json,
};

/// The demo's first layer alone, with its embedding and its tokenizer, and a page of its text: small enough to be tried in every format.
fn one_layer(folder: &Path) -> (PathBuf, PathBuf) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/demo");
    let model = folder.join("model");
    fs::create_dir_all(&model).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(source.join(name), model.join(name)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    config["num_hidden_layers"] = 1.into();
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..start]).unwrap();
    let (mut kept, mut data) = (Map::new(), Vec::new());
    for (name, mut entry) in header {
        let layer = name.split('.').nth(2).and_then(|word| word.parse::<u64>().ok());
        if name == "__metadata__" || layer.is_some_and(|layer| layer > 0) {
            continue;
        }
        let at = |which: usize| start + entry["data_offsets"][which].as_u64().unwrap() as usize;
        let own = &bytes[at(0)..at(1)];
        entry["data_offsets"] = json!([data.len(), data.len() + own.len()]);
        data.extend_from_slice(own);
        kept.insert(name, entry);
    }
    let header = Value::Object(kept).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    fs::write(model.join("model.safetensors"), file).unwrap();
    let text = folder.join("text.txt");
    fs::write(&text, &demo::text()[..demo::text().floor_char_boundary(2600)]).unwrap();
    (model, text)
}

fn asked(more: Value) -> Result<Answer> {
    let context = Context::local(Arc::new(Home::none()), Arc::new(Nobody));
    quantize(&context, &from_json(more).unwrap())
}

/// Every file of a folder but its card.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter(|path| !path.ends_with("README.md")).collect();
    all.sort();
    all.into_iter().map(|path| (PathBuf::from(path.file_name().unwrap()), fs::read(&path).unwrap())).collect()
}

fn length(files: &[(PathBuf, Vec<u8>)]) -> usize {
    files.iter().map(|(_, bytes)| bytes.len()).sum()
}

/// What is written is no larger than what was aimed at, and not much smaller; a larger aim loses less; the same question has the same
/// bytes for an answer, whatever the number of threads; and a size that nothing has is refused with one that something has.
#[test]
fn sizes_are_met() {
    let folder = std::env::temp_dir().join(format!("roofline-verbs-target-{}", std::process::id()));
    let (model, text) = one_layer(&folder);
    let run = |name: &str, more: Value| {
        let target = folder.join(name);
        let mut body = json!({ "model": model, "data": text, "as": "mlx", "to": target, "threads": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let Answer::Written(report) = asked(body)? else { panic!("nothing is written") };
        let told = report.notes.iter().find_map(|note| note.split("nats").next()?.split("diverge by ").nth(1)).unwrap();
        Ok::<_, crate::Error>((files(&target), told.trim().parse::<f64>().unwrap()))
    };
    let (small, lost) = run("5", json!({ "target_bits": 5.0 })).unwrap();
    let (large, less) = run("8", json!({ "target_bits": 8.6 })).unwrap();
    assert!(length(&small) < length(&large) && lost > less, "{lost} and {less} nats");
    // What was best within some bits is best within the bytes that it takes, by one thread as well.
    let aim = format!("{}B", length(&small));
    let (again, _) = run("again", json!({ "target_size": aim, "threads": 1 })).unwrap();
    assert!(again == small, "{} B of {aim}", length(&again));
    let refused = run("none", json!({ "target_bits": 1.5 })).unwrap_err().to_string();
    assert!(refused.contains("bits for each weight at least, and 1.5 are asked for"), "{refused}");
    let planned = run("planned", json!({ "target_bits": 4.5, "plan": "w4a16" })).unwrap_err().to_string();
    assert!(planned.contains("makes a plan, and there is one"), "{planned}");
    let both = run("both", json!({ "target_bits": 4.5, "target_size": "5MB" })).unwrap_err().to_string();
    assert!(both.contains("two sizes") && !folder.join("none").exists(), "{both}");
    fs::remove_dir_all(folder).unwrap();
}
