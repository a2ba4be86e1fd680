use super::*;
use crate::{Dtype, scratch::Scratch};

/// Writes a safetensors file with tensors of these names, types, shapes and bytes.
pub(crate) fn write(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
    let mut begin = 0;
    let entries: Vec<Entry> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            let end = begin + bytes.len() as u64;
            let entry = Entry { name: (*name).to_owned(), dtype: *dtype, shape: shape.to_vec(), begin, end };
            begin = end;
            entry
        })
        .collect();
    let mut all = Header::bytes(&[("format".to_owned(), "pt".to_owned())], &entries);
    for (.., bytes) in tensors {
        all.extend(bytes);
    }
    fs::write(path, all).unwrap();
}

fn tensor(name: &str) -> (&str, Dtype, &'static [usize], Vec<u8>) {
    (name, Dtype::Bf16, &[2], vec![1, 2, 3, 4])
}

#[test]
fn shards_must_agree_with_their_index() {
    let scratch = Scratch::new("shards");
    let folder = scratch.path();
    let index = |text: &str| fs::write(folder.join(INDEX), text).unwrap();
    let why = || Checkpoint::open(folder).unwrap_err().to_string();
    write(&folder.join("a.safetensors"), &[tensor("x")]);
    write(&folder.join("b.safetensors"), &[tensor("y")]);
    assert!(why().ends_with("it holds 2 files of weights and no model.safetensors.index.json that says which belong"));
    index(r#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#);
    let checkpoint = Checkpoint::open(folder).unwrap();
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), [&"x", &"y"]);
    assert_eq!(checkpoint.bytes(), 8);
    for (text, reason) in [
        (r#"{"weight_map":{"x":"a.safetensors"}}"#, None),
        (r#"{"weight_map":{}}"#, Some("it names no shard")),
        (r#"{"weight_map":{"x":"../a.safetensors"}}"#, Some("`../a.safetensors` is no name of a shard")),
        (
            r#"{"weight_map":{"x":"a.safetensors","z":"a.safetensors"}}"#,
            Some("it puts tensor `z` into `a.safetensors`, which does not have it"),
        ),
        (
            r#"{"weight_map":{"x":"b.safetensors","y":"b.safetensors"}}"#,
            Some("it puts tensor `x` into `b.safetensors`, which does not have it"),
        ),
        (
            r#"{"weight_map":{"x":"b.safetensors","y":"a.safetensors"}}"#,
            Some("it puts tensor `x` into `b.safetensors`, but `a.safetensors` has it"),
        ),
        (r#"{"weight_map":{"z":"a.safetensors"}}"#, Some("`a.safetensors` has tensor `x`, which it does not name")),
        (r#"{"weight_map":{"x":"c.safetensors"}}"#, Some("(os error 2)")),
    ] {
        index(text);
        match reason {
            Some(reason) => assert!(why().ends_with(reason), "{}", why()),
            // A shard that the index does not name is none of its business.
            None => assert_eq!(Checkpoint::open(folder).unwrap().shards.len(), 1),
        }
    }
    write(&folder.join("b.safetensors"), &[tensor("x"), tensor("y")]);
    index(r#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#);
    assert!(why().ends_with("tensor `x` is in `a.safetensors` and again in `b.safetensors`"), "{}", why());
}

#[test]
fn companions_hold_no_weights() {
    let scratch = Scratch::new("companions");
    let folder = scratch.path();
    let all = ["config.json", "tokenizer.model", INDEX, "x.bin", "README.md", "LICENSE", "merges.txt", ".x.json"];
    for name in all {
        fs::write(folder.join(name), "{}").unwrap();
    }
    write(&folder.join(SINGLE), &[tensor("x")]);
    let companions = Checkpoint::open(folder).unwrap().companions().unwrap();
    assert_eq!(names(&companions), ["LICENSE", "config.json", "merges.txt", "tokenizer.model"]);
}

fn names(paths: &[PathBuf]) -> Vec<&str> {
    paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect()
}

#[test]
fn code_comes_along_where_the_configuration_asks_for_it() {
    let scratch = Scratch::new("code");
    let folder = scratch.path();
    write(&folder.join(SINGLE), &[tensor("x")]);
    fs::write(folder.join("modeling_x.py"), "").unwrap();
    for (config, expected) in [
        ("{}", &["config.json"][..]),
        (r#"{"auto_map": {"AutoModel": "modeling_x.X"}}"#, &["config.json", "modeling_x.py"]),
    ] {
        fs::write(folder.join("config.json"), config).unwrap();
        assert_eq!(names(&Checkpoint::open(folder).unwrap().companions().unwrap()), expected);
    }
}

#[cfg(unix)]
#[test]
fn links_lead_to_the_models_own_files_or_nowhere() {
    use std::os::unix::fs::symlink;
    let scratch = Scratch::new("links");
    // A Hugging Face cache, with another model beside it.
    let (model, other) = (scratch.path().join("models--a--b"), scratch.path().join("models--a--c"));
    let folder = model.join("snapshots/0123");
    for path in [&folder, &model.join("blobs"), &other.join("blobs")] {
        fs::create_dir_all(path).unwrap();
    }
    for path in [model.join("blobs/aa"), other.join("blobs/bb"), scratch.path().join("secret.json")] {
        fs::write(path, "{}").unwrap();
    }
    write(&model.join("blobs/weights"), &[tensor("x")]);
    symlink("../../blobs/weights", folder.join(SINGLE)).unwrap();
    symlink("../../blobs/aa", folder.join("config.json")).unwrap();
    symlink("config.json", folder.join("again.json")).unwrap();
    symlink("../../../models--a--c/blobs/bb", folder.join("other.json")).unwrap();
    symlink(scratch.path().join("secret.json"), folder.join("tokenizer.json")).unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    assert_eq!(names(&checkpoint.companions().unwrap()), ["again.json", "config.json"]);
    assert_eq!(names(&checkpoint.outsiders().unwrap()), ["other.json", "tokenizer.json"]);
    // Whoever reads the tokenizer does not read what a link outside shows.
    symlink("../../blobs/aa", folder.join("tokenizer_config.json")).unwrap();
    assert_eq!(checkpoint.tokenizer_files().unwrap(), [("tokenizer_config.json".to_owned(), b"{}".to_vec())]);
}

#[test]
fn a_tokenizer_is_its_files() {
    let scratch = Scratch::new("tokenizer");
    let folder = scratch.path();
    write(&folder.join(SINGLE), &[tensor("x")]);
    for name in ["config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja", "vocab.json"] {
        fs::write(folder.join(name), format!(r#"{{"name": "{name}"}}"#)).unwrap();
    }
    let files = Checkpoint::open(folder).unwrap().tokenizer_files().unwrap();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["tokenizer.json", "chat_template.jinja", "generation_config.json"]);
    assert_eq!(files[0].1, br#"{"name": "tokenizer.json"}"#);
}

#[test]
fn a_shard_is_not_the_model() {
    let scratch = Scratch::new("shard");
    let folder = scratch.path();
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    write(&folder.join(first), &[tensor("x")]);
    write(&folder.join("x.safetensors"), &[tensor("y")]);
    let why = |name: &str| Checkpoint::open(&folder.join(name)).unwrap_err();
    // By its name, and by the index.
    assert!(why(first).to_string().ends_with("is one of 2 shards"));
    for map in [format!(r#"{{"x":"{first}","y":"{second}"}}"#), format!(r#"{{"x":"{first}","y":"x.safetensors"}}"#)] {
        fs::write(folder.join(INDEX), format!(r#"{{"weight_map":{map}}}"#)).unwrap();
        assert!(why(first).to_string().ends_with("is one of 2 shards"));
        assert_eq!(why(first).hint().unwrap(), format!("give the folder: `{}`", folder.display()));
    }
    assert!(why("x.safetensors").to_string().ends_with("is one of 2 shards"));
    assert_eq!(Checkpoint::open_part(&folder.join(first)).unwrap().shards.len(), 1);
    // The whole, by any name, and what the index does not know.
    assert_eq!(Checkpoint::open(folder).unwrap().shards.len(), 2);
    assert_eq!(Checkpoint::open(&folder.join(INDEX)).unwrap().shards.len(), 2);
    fs::write(folder.join(INDEX), format!(r#"{{"weight_map":{{"x":"{first}"}}}}"#)).unwrap();
    assert!(Checkpoint::open(&folder.join(first)).is_ok());
    assert!(Checkpoint::open(&folder.join("x.safetensors")).is_ok());
}

#[test]
fn what_is_longer_than_it_may_be_is_refused() {
    let scratch = Scratch::new("bounded");
    let path = scratch.path().join("text");
    fs::write(&path, "12345").unwrap();
    assert_eq!(read_bounded(&path, 5, "text").unwrap(), b"12345");
    let said = read_bounded(&path, 4, "text").unwrap_err().to_string();
    assert!(said.ends_with("is no usable text: it has more than 4 bytes, the most that are read of one"), "{said}");
    let said = read_bounded(scratch.path(), 4, "text").unwrap_err().to_string();
    assert!(said.ends_with("it is no regular file"), "{said}");
}

/// Each of these would never return.
#[cfg(unix)]
#[test]
fn devices_and_pipes_are_not_read() {
    let scratch = Scratch::new("devices");
    let folder = scratch.path();
    write(&folder.join(SINGLE), &[tensor("x")]);
    let config = folder.join("config.json");
    std::os::unix::fs::symlink("/dev/zero", &config).unwrap();
    let said = Checkpoint::open(folder).unwrap_err().to_string();
    assert!(said.ends_with("is no usable config.json: it is no regular file"), "{said}");
    fs::remove_file(&config).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&config).status().unwrap();
    assert!(made.success());
    let said = Checkpoint::open(folder).unwrap_err().to_string();
    assert!(said.ends_with("is no usable config.json: it is no regular file"), "{said}");
    fs::remove_file(&config).unwrap();
    fs::remove_file(folder.join(SINGLE)).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join(SINGLE)).unwrap();
    let said = Checkpoint::open(folder).unwrap_err().to_string();
    assert!(said.ends_with("is no usable safetensors: it is no regular file"), "{said}");
}

/// One tensor, `bf16`, that PyTorch saved.
const WRAPPED: &[u8] = include_bytes!("../../tests/golden/pytorch/wrapped.pt");
const OLD: &[u8] = include_bytes!("../../tests/golden/pytorch/old.bin");

#[test]
fn safetensors_come_before_the_files_of_pytorch() {
    let scratch = Scratch::new("containers");
    let folder = scratch.path();
    let put = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).unwrap();
    let names = |path: &Path| -> Vec<String> {
        Checkpoint::open(path).unwrap().tensors().keys().map(|name| (*name).to_owned()).collect()
    };
    // Alone under any name, beside what a trainer leaves there.
    put("consolidated.00.pth", WRAPPED);
    put("training_args.bin", b"x");
    put("optimizer.pt", b"x");
    assert_eq!(names(folder), ["bf16"]);
    assert_eq!(Checkpoint::open(folder).unwrap().shards[0].container, Container::Pytorch);
    put("other.bin", WRAPPED);
    assert!(Checkpoint::open(folder).unwrap_err().to_string().contains("2 files of weights"));
    // Shards, of which one alone is not the model.
    put("pytorch_model-00001-of-00002.bin", WRAPPED);
    write(&folder.join("pytorch_model-00002-of-00002.bin"), &[tensor("y")]);
    let map = r#"{"weight_map":{"bf16":"pytorch_model-00001-of-00002.bin","y":"pytorch_model-00002-of-00002.bin"}}"#;
    put("pytorch_model.bin.index.json", map.as_bytes());
    assert_eq!(names(folder), ["bf16", "y"]);
    assert_eq!(names(&folder.join("pytorch_model.bin.index.json")), ["bf16", "y"]);
    let alone = Checkpoint::open(&folder.join("pytorch_model-00001-of-00002.bin")).unwrap_err();
    assert!(alone.to_string().ends_with("is one of 2 shards"), "{alone}");
    put("pytorch_model.bin", WRAPPED);
    assert_eq!(names(folder), ["bf16"]);
    write(&folder.join(SINGLE), &[tensor("x")]);
    assert_eq!(names(folder), ["x"]);
}

#[test]
fn a_head_that_is_the_embedding_is_there_once() {
    let scratch = Scratch::new("tied");
    let folder = scratch.path();
    fs::write(folder.join("pytorch_model.bin"), include_bytes!("../../tests/golden/pytorch/tied.bin")).unwrap();
    for (config, names) in [
        (r#"{"tie_word_embeddings": true}"#, &["model.embed_tokens.weight"][..]),
        // Where the loader looks for both, both are there.
        (r#"{"tie_word_embeddings": false}"#, &["lm_head.weight", "model.embed_tokens.weight"]),
        ("{}", &["lm_head.weight", "model.embed_tokens.weight"]),
    ] {
        fs::write(folder.join("config.json"), config).unwrap();
        let checkpoint = Checkpoint::open(folder).unwrap();
        assert_eq!(checkpoint.tensors().into_keys().collect::<Vec<_>>(), names, "{config}");
    }
}

#[test]
fn files_of_another_kind_are_named() {
    let scratch = Scratch::new("kinds");
    let folder = scratch.path();
    let why = |path: &Path| Checkpoint::open(path).unwrap_err();
    for name in ["model.gguf", "model.safetensors"] {
        let path = folder.join(name);
        fs::write(&path, b"GGUF\x03\0\0\0\x17\0\0\0").unwrap();
        // By itself it is a source, whatever it is called; in a folder it stands where something else is looked for.
        assert!(why(&path).to_string().contains("is no usable GGUF: "), "{}", why(&path));
        let said = why(folder).to_string();
        assert!(said.contains(&format!("{name}` is a GGUF file")), "{said}");
        fs::remove_file(&path).unwrap();
    }
    fs::write(folder.join("pytorch_model.bin"), OLD).unwrap();
    let error = why(folder);
    assert!(error.to_string().ends_with("is a pickle as PyTorch wrote it before 1.6"), "{error}");
    assert!(error.hint().unwrap().contains("weights_only=True"));
    fs::remove_file(folder.join("pytorch_model.bin")).unwrap();
    assert!(why(folder).to_string().contains("it holds no model.safetensors, no model.safetensors.index.json"));
}
