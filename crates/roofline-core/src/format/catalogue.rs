//! The formats worth listing, with who reads them. Any other `ELEMENT-gN` parses too.
//!
//! Runtimes were read in November 2026 from their sources or by loading a checkpoint: compressed-tensors 0.19 and 0.20,
//! vLLM (August 2026), transformers 4.57 to 5.22, llama.cpp (August 2026), torchao 0.18, bitsandbytes 0.50, MLX 0.32.

/// A format of the list.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name; parses to the format.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub summary: &'static str,
    /// Software that loads or runs weights stored so.
    pub runtimes: &'static [&'static str],
    /// Where it is specified.
    pub source: &'static str,
}

const EVERYWHERE: &[&str] = &["every runtime"];
const CT: &[&str] = &["vLLM", "transformers (compressed-tensors)", "llama.cpp converter"];
const CT_INT4: &[&str] = &["vLLM (Marlin, Machete)", "transformers (compressed-tensors)", "llama.cpp converter"];
const AWQ: &[&str] = &["vLLM (AWQ, compressed-tensors)", "transformers", "mlx-lm (AWQ)"];
const MX: &[&str] = &["vLLM", "transformers (compressed-tensors >= 0.15)"];
const GGUF: &[&str] = &["llama.cpp", "Ollama", "LM Studio", "candle", "transformers (dequantized)"];
const NONE: &[&str] = &[];

const IEEE: &str = "IEEE 754-2019";
const OCP8: &str = "OCP 8-bit Floating Point Specification 1.0";
const OCPMX: &str = "OCP Microscaling Formats Specification 1.0";
const GGML: &str = "ggml, block layouts of ggml-common.h";
const CTS: &str = "compressed-tensors pack-quantized and int-quantized layouts";

macro_rules! entries {
    ($($name:literal, $summary:literal, $runtimes:expr, $source:expr;)*) => {
        &[$(Entry { name: $name, summary: $summary, runtimes: $runtimes, source: $source },)*]
    };
}

/// In the order tables show them: wide to narrow.
pub const CATALOGUE: &[Entry] = entries! {
    "fp64", "double precision", EVERYWHERE, IEEE;
    "fp32", "single precision", EVERYWHERE, IEEE;
    "tf32", "FP32 in memory, 10 mantissa bits in the multiplier", &["PyTorch", "cuBLAS"], "NVIDIA A100 whitepaper";
    "fp16", "half precision", EVERYWHERE, IEEE;
    "bf16", "FP32's range with 7 mantissa bits; what most checkpoints ship in", EVERYWHERE, "Google, bfloat16";
    "fp8-e4m3", "8-bit float, a 16-bit scale per row", CT, OCP8;
    "fp8-e5m2", "8-bit float with more range and less precision", &["transformers (fp8 KV)", "vLLM (KV)"], OCP8;
    "int8", "8-bit integer, a 16-bit scale per row", CT, CTS;
    "mxfp8-e4m3", "E4M3 in blocks of 32 with a power-of-two scale", MX, OCPMX;
    "mxfp8-e5m2", "E5M2 in blocks of 32 with a power-of-two scale", NONE, OCPMX;
    "mxint8", "fixed point in blocks of 32 with a power-of-two scale", NONE, OCPMX;
    "q8_0", "ggml: 8-bit integer, an FP16 scale per 32", GGUF, GGML;
    "fp6-e3m2", "6-bit float, a 16-bit scale per row", &["torchao (fpx)"], "FP6-LLM, arXiv 2401.14112";
    "fp6-e2m3", "6-bit float with more precision and less range", NONE, OCPMX;
    "mxfp6-e3m2", "E3M2 in blocks of 32 with a power-of-two scale", NONE, OCPMX;
    "mxfp6-e2m3", "E2M3 in blocks of 32 with a power-of-two scale", NONE, OCPMX;
    "q6_k", "ggml: 6-bit integer in blocks of 256, an 8-bit scale per 16 and an FP16 one for all", GGUF, GGML;
    "q5_k", "ggml: 5-bit integer in blocks of 256, a 6-bit scale and minimum per 32 and an FP16 scale of each", GGUF, GGML;
    "q5_1", "ggml: 5-bit integer, an FP16 scale and minimum per 32", GGUF, GGML;
    "q5_0", "ggml: 5-bit integer, an FP16 scale per 32", GGUF, GGML;
    "int4-g32", "4-bit integer, a 16-bit scale per 32", CT_INT4, CTS;
    "int4-g64", "4-bit integer, a 16-bit scale per 64", CT_INT4, CTS;
    "int4-g128", "4-bit integer, a 16-bit scale per 128", CT_INT4, CTS;
    "int4-g128-zp", "4-bit integer, a scale and a 4-bit zero point per 128", AWQ, "AWQ, arXiv 2306.00978";
    "int4-g128-zp16", "4-bit integer, a scale and a 16-bit zero per 128", &["torchao"], "torchao Int4Tensor";
    "int4-g64-zp16", "4-bit integer, a scale and a 16-bit zero per 64", &["mlx-lm", "torchao"], "MLX affine quantization";
    "nvfp4", "E2M1 in blocks of 16 with an E4M3 scale, and an FP32 scale per tensor",
        &["vLLM", "transformers (compressed-tensors)", "llama.cpp", "TensorRT-LLM (ModelOpt)"],
        "NVIDIA, cuDNN block scaling";
    "nf4", "16 normal quantiles, the FP32 maximum of 64", &["transformers (bitsandbytes)", "PEFT"],
        "QLoRA, arXiv 2305.14314";
    "nf4-dq", "NF4 whose maxima are quantized once more", &["transformers (bitsandbytes)", "PEFT"],
        "QLoRA, arXiv 2305.14314";
    "bnb-fp4", "a sign and eight magnitudes, the FP32 maximum of 64", &["transformers (bitsandbytes)", "PEFT"],
        "bitsandbytes, functional.get_4bit_type";
    "mxfp4", "E2M1 in blocks of 32 with a power-of-two scale",
        &["vLLM", "transformers (compressed-tensors >= 0.15)", "llama.cpp"], OCPMX;
    "q4_k", "ggml: 4-bit integer in blocks of 256, a 6-bit scale and minimum per 32 and an FP16 scale of each", GGUF, GGML;
    "q4_1", "ggml: 4-bit integer, an FP16 scale and minimum per 32", GGUF, GGML;
    "q4_0", "ggml: 4-bit integer, an FP16 scale per 32", GGUF, GGML;
    "int3-g64", "3-bit integer, a 16-bit scale per 64", &["mlx-lm", "transformers (compressed-tensors >= 0.19)"], CTS;
    "q3_k", "ggml: 3-bit integer in blocks of 256, a 6-bit scale per 16 and an FP16 one for all", GGUF, GGML;
    "int2-g64", "2-bit integer, a 16-bit scale per 64", &["mlx-lm"], CTS;
    "q2_k", "ggml: 2-bit integer in blocks of 256, a 4-bit scale and minimum per 16 and an FP16 scale of each", GGUF, GGML;
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;

    #[test]
    fn entries_parse_and_are_unique() {
        let mut seen = std::collections::HashSet::new();
        for entry in CATALOGUE {
            let format: Format = entry.name.parse().unwrap();
            assert!(seen.insert(format), "{} twice", entry.name);
            assert!(!entry.summary.is_empty() && !entry.source.is_empty());
        }
    }

    #[test]
    fn sorted_wide_to_narrow() {
        let bits: Vec<u32> = CATALOGUE.iter().map(|e| e.name.parse::<Format>().unwrap().nominal_bits()).collect();
        assert!(bits.is_sorted_by(|a, b| a >= b), "{bits:?}");
    }
}
