//! A small Llama with made-up weights, so that a guide can show what commands say of a checkpoint.

use std::{fmt::Write, fs, path::Path};

const LAYERS: usize = 1;
const HIDDEN: usize = 256;
const INNER: usize = 512;
const VOCABULARY: usize = 512;

/// Writes it into `folder`: the configuration, a tokenizer of made-up words, and the weights in BF16.
pub(crate) fn write(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files = [
        ("config.json", config().into_bytes()),
        ("tokenizer.json", tokenizer().into_bytes()),
        ("model.safetensors", weights()),
    ];
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

fn config() -> String {
    format!(
        "{{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"dtype\": \"bfloat16\", \
         \"hidden_size\": {HIDDEN}, \"intermediate_size\": {INNER}, \"num_hidden_layers\": {LAYERS}, \
         \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": {VOCABULARY}, \
         \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \
         \"tie_word_embeddings\": false, \"bos_token_id\": 0, \"eos_token_id\": 1}}"
    )
}

fn tokenizer() -> String {
    let words: Vec<String> = (0..VOCABULARY).map(|id| format!("\"t{id}\": {id}")).collect();
    format!(
        "{{\"added_tokens\": [{{\"id\": 0, \"content\": \"t0\", \"special\": true}}], \
         \"pre_tokenizer\": {{\"type\": \"ByteLevel\"}}, \
         \"model\": {{\"type\": \"BPE\", \"vocab\": {{{}}}, \"merges\": []}}}}",
        words.join(", ")
    )
}

/// Names and shapes, in the order of a real checkpoint.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN])];
    for layer in 0..LAYERS {
        let parts: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[HIDDEN]),
            ("self_attn.q_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.k_proj", &[HIDDEN / 2, HIDDEN]),
            ("self_attn.v_proj", &[HIDDEN / 2, HIDDEN]),
            ("self_attn.o_proj", &[HIDDEN, HIDDEN]),
            ("post_attention_layernorm", &[HIDDEN]),
            ("mlp.gate_proj", &[INNER, HIDDEN]),
            ("mlp.up_proj", &[INNER, HIDDEN]),
            ("mlp.down_proj", &[HIDDEN, INNER]),
        ];
        all.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape.to_vec())));
    }
    all.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    all.push(("lm_head.weight".to_owned(), vec![VOCABULARY, HIDDEN]));
    all
}

/// A safetensors file: the length of its header, the header, and two bytes for every number.
fn weights() -> Vec<u8> {
    let (mut header, mut end) = ("{\"__metadata__\": {\"format\": \"pt\"}".to_owned(), 0);
    for (name, shape) in tensors() {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let _ = write!(
            header,
            ", \"{name}\": {{\"dtype\": \"BF16\", \"shape\": {shape:?}, \"data_offsets\": [{start}, {end}]}}"
        );
    }
    header += "}";
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let mut numbers = Numbers(7);
    file.extend((0..end / 2).flat_map(|_| ((numbers.next().to_bits() >> 16) as u16).to_le_bytes()));
    file
}

/// Numbers that look like weights, and always the same: sums of four uniform ones, by a linear congruential generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (uniform() + uniform() + uniform() + uniform()) * 0.05
    }
}
