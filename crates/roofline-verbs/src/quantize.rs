//! Checkpoints in narrow formats that runtimes load, with the error of every weight.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use clap::Args;
use roofline_core::{Plan, plan::Selector, precision::PrecisionSpec};
use roofline_quant::{
    Checkpoint, Layout, Manner, Method, Ranges, Request as Order, Runtime,
    layout::{Listed, Shards},
    preview::{Preview, preview},
    quantize::{Report, quantize as run},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Error, Result, demo,
    request::list,
    text::{number, size},
};

/// Most threads of a run.
const THREADS: u16 = 1024;

/// A checkpoint, what it becomes and where it goes; or which plans there are.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[serde(default)]
#[schemars(rename = "QuantizeRequest")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Request {
    /// The checkpoint: its folder, its file of weights (safetensors or PyTorch's) or its index
    #[arg(value_name = "MODEL", required_unless_present = "list")]
    #[schemars(extend("x-local" = true))]
    pub model: Option<PathBuf>,
    /// What the weights become: a plan, or a file with one
    #[arg(long, value_name = "PLAN|FILE", required_unless_present = "list")]
    pub plan: Option<String>,
    /// Where the result goes: a folder, or a file for GGUF
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    #[schemars(extend("x-local" = true))]
    pub to: Option<PathBuf>,
    /// How it is written: compressed-tensors, safetensors, gguf, torchao, gptq, awq, fp8, bitsandbytes or mlx; from the plan and
    /// the path when left out
    #[arg(long = "as", value_name = "LAYOUT")]
    #[serde(rename = "as")]
    pub layout: Option<String>,
    /// How codes are chosen: rtn (as the ecosystem's own tools), mse, four-over-six or hqq
    #[arg(long, value_name = "METHOD", default_value = "rtn")]
    pub method: String,
    /// Who alone shall load it: transformers, vllm or llama.cpp; every runtime of the layout when left out
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<String>,
    /// What data were seen to reach, as JSON: plans that store scales of activations or of the cache need it
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub ranges: Option<PathBuf>,
    /// Keep modules of this name as they are; `*` stands for anything
    #[arg(long, value_name = "GLOB")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub keep: Vec<String>,
    /// Merge an adapter of PEFT's on the way, times a scale; several are added up
    #[arg(long, value_name = "FOLDER[=SCALE]")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>", extend("x-local" = true))]
    pub lora: Vec<String>,
    /// Spread the weights over files of at most this size, such as 5GB; 0 for one file. As many as the source has when left out
    #[arg(long, value_name = "SIZE")]
    pub max_shard_size: Option<String>,
    /// Say what would be written, what stays as it is and how long it takes, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Read the result back before it gets its name: every weight must have the error that was reported
    #[arg(long)]
    pub verify: bool,
    /// Replace a checkpoint that is there
    #[arg(long)]
    pub force: bool,
    /// Go on with a run that was interrupted
    #[arg(long)]
    pub resume: bool,
    /// Threads; all cores when left out
    #[arg(long, value_name = "COUNT")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u16>,
    /// List the plans of one name that every layout can store
    #[arg(long)]
    pub list: bool,
}

const HELP: &str = "\
The result appears whole or not at all: it is written beside the target and renamed. A run that was
killed goes on with --resume and ends with the same bytes.

Examples:
  roofline quantize --list
  roofline quantize ./Llama-3.1-8B --plan w4a16 --to ./Llama-3.1-8B-W4A16
  roofline quantize ./Llama-3.1-8B --plan w4a16 --method mse --keep '*.down_proj' --to ./out
  roofline quantize ./Llama-3.1-8B --plan nvfp4a16 --method four-over-six --to ./Llama-3.1-8B-NVFP4A16
  roofline quantize ./Llama-3.1-8B --plan q4_k_m --to ./llama-3.1-8b-q4_k_m.gguf
  roofline quantize ./Llama-3.1-8B --plan w8a16 --as torchao --to ./Llama-3.1-8B-int8
  roofline quantize ./Llama-3.1-8B --plan w4a16,down=w8a16,layers.0-1=bf16 --to ./out
  roofline quantize ./Llama-3.1-8B --plan q4_k_m,head=q8_0 --to ./llama-3.1-8b.gguf
  roofline quantize ./Llama-3.1-8B --plan plan.toml --to ./out --resume
  roofline quantize ./Llama-3.1-8B --lora ./my-adapter=0.8 --plan w4a16 --to ./out
  roofline quantize ./Llama-3.1-8B --plan w4a16 --to ./out --dry-run
  roofline quantize ./Llama-3.1-8B --plan fp8 --to ./out --max-shard-size 5GB --verify

A plan is a name (--list has them), rules with commas between, or both; the last rule that fits wins, and
what nothing names stays at 16 bit:
  w4a16,head=w8a16            by role: query, key, value, output, gate, up, down, router, experts, head,
                              embedding; attention and ffn are groups, * is all
  w4a16,layers.0-1=bf16       by layer, -1 being the last; layers.-1.down for a role of it
  w4a16,*.self_attn.*=keep    by name of module
The same text is what `roofline predict --precision` takes and `roofline recommend` prints. A file holds it as
plan = \"w4a16,head=w8a16\", or as a list of its parts.";

impl Default for Request {
    fn default() -> Self {
        Self {
            model: None,
            plan: None,
            to: None,
            layout: None,
            method: Method::Rtn.to_string(),
            runtime: None,
            ranges: None,
            keep: Vec::new(),
            lora: Vec::new(),
            max_shard_size: None,
            dry_run: false,
            verify: false,
            force: false,
            resume: false,
            threads: None,
            list: false,
        }
    }
}

/// What is told.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "QuantizeAnswer")]
pub enum Answer {
    /// What was written.
    Written(Box<Report>),
    /// What would be.
    Previewed(Box<Preview>),
    /// What can be.
    Schemes(Schemes),
}

/// The plans of one name that can be written.
#[derive(Serialize, JsonSchema)]
pub struct Schemes {
    pub schemes: Vec<Listed>,
}

/// Writes a checkpoint, or says what would be written, or which plans there are.
pub fn quantize(context: &Context, request: &Request) -> Result<Answer> {
    if request.list {
        return request.schemes();
    }
    let (checkpoint, order) = request.order(context)?;
    if request.dry_run {
        return Ok(Answer::Previewed(Box::new(preview(&checkpoint, &order)?)));
    }
    let watcher = context.watcher();
    // What is verified is read twice.
    watcher.size(checkpoint.bytes() * if order.verify { 2 } else { 1 });
    let start = Instant::now();
    let done = run(&checkpoint, &order, &|bytes| watcher.advance(bytes));
    watcher.ends();
    let done = done?;
    let seconds = start.elapsed().as_secs_f64();
    let rate = done.bytes_before as f64 / seconds / 1e9;
    context.note(format!("{} in {} s, {} GB/s", size(done.bytes_before), number(seconds), number(rate)));
    Ok(Answer::Written(Box::new(done)))
}

impl Request {
    fn schemes(&self) -> Result<Answer> {
        let Self { model, plan, to, dry_run, verify, .. } = self;
        if model.is_some() || plan.is_some() || to.is_some() || *dry_run || *verify {
            let hint = "leave it out, or everything else";
            return Err(Error::request("`⟨list⟩` says which plans there are, and makes nothing", hint));
        }
        Ok(Answer::Schemes(Schemes { schemes: Layout::ALL.into_iter().flat_map(Layout::listed).collect() }))
    }

    /// The checkpoint, opened, and what is to become of it.
    fn order(&self, context: &Context) -> Result<(Checkpoint, Order)> {
        let (Some(model), Some(text), Some(target)) = (&self.model, &self.plan, &self.to) else {
            let hint = "say `⟨plan w4a16⟩` and `⟨to⟩` a folder, for example; `⟨list⟩` has the plans";
            return Err(Error::request("a model, a plan and a target are needed", hint));
        };
        if !context.is_local() {
            return Err(Error::Path { what: "model", name: model.display().to_string() });
        }
        let threads = self.threads()?;
        let method: Method = self.method.parse::<Method>()?;
        let kept =
            |plan: Plan, pattern: &String| plan.with(Selector::Modules(pattern.clone()), PrecisionSpec::sixteen());
        let plan = self.keep.iter().fold(plan(text)?, kept);
        let layout = match &self.layout {
            Some(name) => name.parse::<Layout>()?,
            None if target.extension().is_some_and(|extension| extension == "gguf") => Layout::Gguf,
            None => Layout::of_plan(&plan),
        };
        let mut checkpoint = Checkpoint::open(&demo::checkpoint(context, model)?)?;
        for asked in &self.lora {
            let (folder, scale) = adapter(asked)?;
            checkpoint.merge(folder, scale)?;
        }
        let order = Order {
            layout,
            method,
            runtime: self.runtime.as_deref().map(str::parse::<Runtime>).transpose()?,
            ranges: self.ranges.as_deref().map(Ranges::read).transpose()?,
            target: target.clone(),
            manner: Manner { force: self.force, resume: self.resume },
            shards: self.max_shard_size.as_deref().map_or(Ok(Shards::AsSource), str::parse::<Shards>)?,
            verify: self.verify,
            threads,
            plan,
        };
        Ok((checkpoint, order))
    }

    fn threads(&self) -> Result<usize> {
        match self.threads {
            None => Ok(thread::available_parallelism().map_or(1, usize::from)),
            Some(threads) if (1..=THREADS).contains(&threads) => Ok(threads.into()),
            Some(threads) => {
                let hint = format!("`⟨threads⟩` is from 1 to {THREADS}");
                Err(Error::request(format!("{threads} threads are not possible"), hint))
            }
        }
    }
}

/// A file, where the text names one; else the plan's text.
fn plan(text: &str) -> Result<Plan> {
    let path = Path::new(text);
    let file = path.extension().is_some_and(|extension| extension == "toml") || path.is_file();
    if file { Ok(roofline_quant::plan::read(path)?) } else { Ok(text.parse::<Plan>()?) }
}

/// An adapter's folder, and what it is multiplied with.
fn adapter(text: &str) -> Result<(&Path, f64)> {
    let whole = (Path::new(text), 1.0);
    let Some((folder, scale)) = text.rsplit_once('=').filter(|_| !whole.0.exists()) else { return Ok(whole) };
    match scale.parse::<f64>() {
        Ok(scale) if scale.is_finite() => Ok((Path::new(folder), scale)),
        _ => {
            let hint = "write `⟨lora FOLDER=0.5⟩`, for example";
            Err(Error::request(format!("`{scale}` is no scale of an adapter"), hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
    };

    use serde_json::{Map, Value, json};

    use super::*;
    use crate::{
        Watcher,
        context::Home,
        inspect,
        request::{answers_fit, from_json},
    };

    #[derive(Default)]
    struct Counts {
        size: AtomicU64,
        done: AtomicU64,
    }

    impl Watcher for Counts {
        fn size(&self, bytes: u64) {
            self.size.store(bytes, Ordering::Relaxed);
        }

        fn advance(&self, bytes: u64) {
            self.done.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A Llama of one layer, every weight one.
    fn checkpoint(folder: &Path) {
        let (hidden, inner, words) = (128, 256, 16);
        let config = json!({ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
            "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "vocab_size": words, "tie_word_embeddings": false });
        let layer = |name: &str, shape: &[usize]| (format!("model.layers.0.{name}.weight"), shape.to_vec());
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![words, hidden]),
            layer("input_layernorm", &[hidden]),
            layer("post_attention_layernorm", &[hidden]),
            layer("mlp.gate_proj", &[inner, hidden]),
            layer("mlp.up_proj", &[inner, hidden]),
            layer("mlp.down_proj", &[hidden, inner]),
            ("model.norm.weight".to_owned(), vec![hidden]),
            ("lm_head.weight".to_owned(), vec![words, hidden]),
        ];
        tensors.extend(["q", "k", "v", "o"].map(|name| layer(&format!("self_attn.{name}_proj"), &[hidden, hidden])));
        let (mut header, mut end) = (Map::new(), 0);
        for (name, shape) in tensors {
            let start = end;
            end += 2 * shape.iter().product::<usize>();
            header.insert(name, json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }));
        }
        let header = Value::Object(header).to_string();
        let data = [0x80, 0x3f].repeat(end / 2);
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        fs::write(folder.join("model.safetensors"), file).unwrap();
    }

    /// Previewed, written and looked at. Ones are as wrong as their scale, whose 8 bits of mantissa are off by half of the last.
    #[test]
    fn a_checkpoint_in_json() {
        let folder = std::env::temp_dir().join(format!("roofline-verbs-{}", std::process::id()));
        let (source, target) = (folder.join("source"), folder.join("target"));
        checkpoint(&source);
        let watcher = Arc::new(Counts::default());
        let context = Context::local(Arc::new(Home::none()), watcher.clone());
        let mut body = json!({ "model": source, "plan": "w8a16", "to": target, "dry_run": true, "threads": 1 });
        let answer = quantize(&context, &from_json(body.clone()).unwrap()).unwrap();
        answers_fit(&answer);
        assert!(matches!(answer, Answer::Previewed(_)) && !target.exists());
        body["dry_run"] = false.into();
        let answer = quantize(&context, &from_json(body.clone()).unwrap()).unwrap();
        answers_fit(&answer);
        let Answer::Written(report) = answer else { panic!("nothing is written") };
        assert!(report.weights.len() == 7 && report.relative_squared_error.sqrt() < 0.5 / 256.0);
        assert_eq!(watcher.done.load(Ordering::Relaxed), watcher.size.load(Ordering::Relaxed));
        assert!(context.notes()[0].text.ends_with("GB/s"));
        let request = from_json(json!({ "path": target })).unwrap();
        let held = inspect::inspect(&context, &request).unwrap();
        answers_fit(&held);
        assert_eq!(held.tensors.len(), 12);
        body["threads"] = 0.into();
        assert!(from_json::<Request>(body.clone()).is_err());
        // A caller elsewhere names no file of ours.
        body["threads"] = 1.into();
        assert!(matches!(quantize(&Context::pure(), &from_json(body).unwrap()), Err(Error::Path { .. })));
        assert!(matches!(inspect::inspect(&Context::pure(), &request), Err(Error::Path { .. })));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn plans_of_one_name() {
        let asked = |body| quantize(&Context::pure(), &from_json(body).unwrap());
        let answer = asked(json!({ "list": true })).unwrap();
        answers_fit(&answer);
        let Answer::Schemes(Schemes { schemes }) = answer else { panic!("no list") };
        assert!(schemes.iter().any(|scheme| scheme.name == "w4a16"));
        assert!(asked(json!({ "list": true, "plan": "w4a16" })).is_err());
        assert!(asked(json!({ "plan": "w4a16" })).is_err());
    }
}
