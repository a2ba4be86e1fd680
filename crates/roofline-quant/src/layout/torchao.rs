//! torchao's flattened safetensors: what transformers 5 and vLLM load through torchao 0.15 and later.
//!
//! A weight `M.weight` of a tensor subclass becomes `M._weight_qdata`, `M._weight_scale` and so on; JSON strings in the
//! metadata say how to put them together. Every shard carries the metadata of all, because loaders merge them.

use std::{collections::BTreeSet, sync::Arc};

use roofline_core::{Format, Plan, Role};
use serde_json::{Value, json};

use super::{
    Decision, Layout, Scheme, Target,
    compressed_tensors::{check_embedding, kept_stacks},
    decide, experts, folder, items,
};
use crate::{
    Checkpoint, Dtype, Error, Method, QuantizeJob, Result, Runtime,
    coding::{
        Matrix,
        torchao::{self as coded, Scheme as Coded},
    },
    family::{Family, Products},
    site::Site,
};

const INT4: Format = Format::INT4_G128;

const fn scheme(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    weights: Format,
    stored: Coded,
) -> Scheme {
    Scheme { name, aliases, summary, weights, activations: None, target: Target::Torchao(stored) }
}

const fn bytes(group: u32, zero: bool) -> Coded {
    Coded::Intx { bits: 4, group: Some(group), zero }
}

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = &[
    scheme(
        "w8a16",
        &["int8wo", "int8-weight-only"],
        "INT8 with a scale per row; 16-bit activations (Int8WeightOnlyConfig)",
        Format::INT8,
        Coded::Int8 { group: None },
    ),
    scheme(
        "int8-g128",
        &["w8a16-g128"],
        "INT8 in groups of 128; 16-bit activations (Int8WeightOnlyConfig)",
        Format::INT8.in_groups(128),
        Coded::Int8 { group: Some(128) },
    ),
    scheme(
        "fp8a16",
        &["float8wo", "float8-weight-only"],
        "E4M3 with a scale per row; 16-bit activations (Float8WeightOnlyConfig)",
        Format::FP8,
        Coded::Float8,
    ),
    scheme(
        "int4-g128-zp16",
        &["int4wo", "int4-weight-only"],
        "INT4 in groups of 128 with 16-bit zero points; 16-bit activations (Int4WeightOnlyConfig, plain)",
        INT4.with_wide_zeros(),
        Coded::Int4 { group: 128 },
    ),
    scheme(
        "int4-g64-zp16",
        &[],
        "INT4 in groups of 64 with 16-bit zero points; 16-bit activations (Int4WeightOnlyConfig, plain)",
        INT4.in_groups(64).with_wide_zeros(),
        Coded::Int4 { group: 64 },
    ),
    scheme(
        "int4-g32-zp16",
        &[],
        "INT4 in groups of 32 with 16-bit zero points; 16-bit activations (Int4WeightOnlyConfig, plain)",
        INT4.in_groups(32).with_wide_zeros(),
        Coded::Int4 { group: 32 },
    ),
    scheme(
        "w4a16",
        &["intx4", "intx4-g128"],
        "INT4 in groups of 128, a byte each: CPUs pack it when they load it (IntxWeightOnlyConfig)",
        INT4,
        bytes(128, false),
    ),
    scheme(
        "int4-g32",
        &["intx4-g32"],
        "INT4 in groups of 32, a byte each: CPUs pack it when they load it (IntxWeightOnlyConfig)",
        INT4.in_groups(32),
        bytes(32, false),
    ),
    scheme(
        "int4-g32-zp",
        &["intx4-asym-g32"],
        "INT4 in groups of 32 with zero points, a byte each (IntxWeightOnlyConfig)",
        INT4.in_groups(32).with_zeros(),
        bytes(32, true),
    ),
];

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan, method: Method) -> Result<QuantizeJob<'a>> {
    let (decisions, mut notes) = decide(checkpoint, plan, Layout::Torchao, |scheme, stored| {
        let Target::Torchao(coding) = scheme.target else { unreachable!("a scheme of this layout") };
        coded::coding(coding, stored.dtype, method).map(Arc::from)
    })?;
    check_embedding(&checkpoint.config, &decisions)?;
    experts::all_plain(&decisions, Runtime::Transformers, Layout::Torchao.name(), &plan.to_string())?;
    let family = Family::of(&checkpoint.config);
    if family.products() == Products::Own {
        return Err(Error::unsupported(
            "transformers transposes the weights of this family as it multiplies, which torchao's tensors cannot be",
            "`⟨as compressed-tensors⟩` writes what it loads",
        ));
    }
    notes.extend(kept_stacks(&decisions));
    notes.extend(checkpoint.left_out()?);
    let mut folder = folder::Folder::new(checkpoint.shards.len());
    let mut metadata = vec![("format".to_owned(), "pt".to_owned())];
    let mut names = Vec::new();
    for Decision { shard, stored, site, coded } in &decisions {
        // Tensors go by the checkpoint's names, what is said of them by those of the modules, as the library writes them.
        let name = family.module(&stored.name).into_owned();
        names.push(name.clone());
        let described = match coded {
            None => {
                folder.add(*shard, stored.name.clone(), stored.dtype, &stored.shape);
                json!({ "_type": "Tensor" })
            }
            Some((scheme, _, parts)) => {
                for part in parts {
                    folder.add(*shard, flattened(site, part.name), part.dtype, &part.shape);
                }
                let matrix = Matrix { rows: stored.shape[0], columns: stored.shape[1] };
                describe(scheme, matrix, stored.dtype)
            }
        };
        metadata.push((name, described.to_string()));
    }
    metadata.push(("tensor_names".to_owned(), json!(names).to_string()));
    let laid_out = folder.lay_out(&metadata)?;
    let (quantization, mixed) = configuration(&decisions, family)?;
    notes.extend(mixed);
    let config = folder::with_quantization(&checkpoint.config, quantization);
    let items = items(decisions, &laid_out.places, |_, site, part| flattened(site, part.name))?;
    let companions = folder::companions(checkpoint, &config, laid_out.index)?;
    Ok(QuantizeJob { files: laid_out.files, items, companions, notes, nearest: Vec::new() })
}

/// `M.weight` flattened: `M._weight_scale`.
fn flattened(site: &Site, part: &str) -> String {
    format!("{}._weight_{part}", site.module)
}

fn dtype(dtype: Dtype) -> Value {
    let name = match dtype {
        Dtype::F16 => "float16",
        Dtype::F32 => "float32",
        _ => "bfloat16",
    };
    json!({ "_type": "torch.dtype", "_data": name })
}

/// How the library puts a flattened weight together.
fn describe(scheme: &Scheme, matrix: Matrix, stored: Dtype) -> Value {
    let Target::Torchao(coded) = scheme.target else { unreachable!("a scheme of this layout") };
    match coded {
        Coded::Int8 { group } => json!({
            "_type": "Int8Tensor",
            "_data": {
                "act_quant_kwargs": null,
                "reduce_range": false,
                "block_size": [1, group.map_or(matrix.columns, |group| group as usize)],
                "dtype": dtype(stored),
            },
            "_tensor_data_names": ["zero_point", "qdata", "scale"],
        }),
        Coded::Float8 => json!({
            "_type": "Float8Tensor",
            "_data": {
                "block_size": [1, matrix.columns],
                "mm_config": null,
                "act_quant_kwargs": null,
                "kernel_preference": { "_type": "KernelPreference", "_data": "AUTO" },
                "dtype": dtype(stored),
            },
            "_tensor_data_names": ["qdata", "scale"],
        }),
        Coded::Int4 { group } => json!({
            "_type": "Int4Tensor",
            "_data": {
                "activation_dtype": { "_type": "torch.dtype", "_data": "bfloat16" },
                "block_size": [1, group],
                "shape": [matrix.rows, matrix.columns],
            },
            "_tensor_data_names": ["qdata", "scale", "zero_point"],
        }),
        Coded::Intx { bits, group, .. } => json!({
            "_type": "IntxUnpackedToInt8Tensor",
            "_data": {
                "target_dtype": { "_type": "torch.dtype", "_data": format!("int{bits}") },
                "block_size": [1, group.map_or(matrix.columns, |group| group as usize)],
                "dtype": dtype(stored),
                "activation_quantization": null,
            },
            "_tensor_data_names": ["qdata", "scale", "zero_point"],
        }),
    }
}

/// How many weights share a scale, in the library's words.
fn granularity(group: Option<u32>) -> Value {
    match group {
        None => json!({ "_type": "PerRow", "_version": 1, "_data": { "dim": -1 } }),
        Some(group) => json!({ "_type": "PerGroup", "_version": 1, "_data": { "group_size": group } }),
    }
}

/// The `quantization_config`, which names one scheme for all.
fn configuration(decisions: &[Decision<'_>], family: Family) -> Result<(Value, Option<String>)> {
    let mut schemes: Vec<&Scheme> =
        decisions.iter().filter_map(|decision| decision.coded.as_ref().map(|(scheme, ..)| *scheme)).collect();
    schemes.sort_by_key(|scheme| scheme.name);
    schemes.dedup_by_key(|scheme| scheme.name);
    let [scheme] = schemes[..] else {
        let names: Vec<&str> = schemes.iter().map(|scheme| scheme.name).collect();
        let hint = Layout::of_mix(&schemes).map_or_else(
            || format!("no layout stores all of them in one checkpoint: ask for one, such as `{}`", names[0]),
            |other| format!("use `⟨as {other}⟩`, which stores all of them"),
        );
        let what = format!("a torchao checkpoint has one scheme, and the plan asks for {}", names.join(" and "));
        return Err(Error::unsupported(what, hint));
    };
    // The head is left alone unless it is asked for.
    let is_end = |decision: &Decision<'_>| matches!(decision.site.role, Role::Embedding | Role::Head);
    let kept = decisions
        .iter()
        .filter(|decision| decision.coded.is_none() && !is_end(decision) && decision.site.role != Role::Vector);
    let kept: BTreeSet<String> = kept
        .map(|Decision { site, .. }| {
            let module = family.module(&site.module).into_owned();
            // A tower is left out as a whole, and so are the experts of a layer.
            match (site.tower(), module.find(".experts")) {
                (Some(tower), _) => format!(r"(?:.*\.)?{tower}"),
                (None, Some(at)) => module[..at + ".experts".len()].to_owned(),
                (None, None) => module,
            }
        })
        .collect();
    let ends = decisions.iter().any(|decision| decision.coded.is_some() && is_end(decision));
    let Target::Torchao(coded) = scheme.target else { unreachable!("a scheme of this layout") };
    let quant_type = match coded {
        Coded::Int8 { group } => json!({
            "_type": "Int8WeightOnlyConfig",
            "_version": 2,
            "_data": { "granularity": granularity(group), "group_size": null, "set_inductor_config": true },
        }),
        Coded::Float8 => json!({
            "_type": "Float8WeightOnlyConfig",
            "_version": 2,
            "_data": {
                "granularity": granularity(None),
                "set_inductor_config": true,
                "weight_dtype": { "_type": "torch.dtype", "_data": "float8_e4m3fn" },
            },
        }),
        Coded::Int4 { group } => json!({
            "_type": "Int4WeightOnlyConfig",
            "_version": 2,
            "_data": {
                "group_size": group,
                "int4_packing_format": { "_type": "Int4PackingFormat", "_data": "PLAIN" },
                "int4_choose_qparams_algorithm": { "_type": "Int4ChooseQParamsAlgorithm", "_data": "TINYGEMM" },
                "set_inductor_config": true,
                "int4_tile_packed_ntile": 8,
            },
        }),
        Coded::Intx { bits, group, zero } => json!({
            "_type": "IntxWeightOnlyConfig",
            "_version": 2,
            "_data": {
                "granularity": granularity(group),
                "intx_choose_qparams_algorithm": { "_type": "IntxChooseQParamsAlgorithm", "_data": "AFFINE" },
                "intx_packing_format": { "_type": "IntxPackingFormat", "_data": "UNPACKED_TO_INT8" },
                "mapping_type": { "_type": "MappingType", "_data": if zero { "ASYMMETRIC" } else { "SYMMETRIC" } },
                "scale_dtype": null,
                "weight_dtype": { "_type": "torch.dtype", "_data": format!("int{bits}") },
            },
        }),
    };
    let note = match coded {
        Coded::Int4 { .. } => Some("torchao multiplies plain INT4 only on GPUs and with its `mslk` kernels installed"),
        Coded::Intx { .. } => Some(
            "torchao stores these integers a byte each and packs them when a CPU loads them; the files of \
             `int4-g128-zp16` are half as large",
        ),
        Coded::Int8 { .. } | Coded::Float8 => None,
    };
    let note = note.map(str::to_owned);
    let config = json!({
        "quant_method": "torchao",
        "quant_type": { "default": quant_type },
        "modules_to_not_convert": if kept.is_empty() { Value::Null } else { json!(kept) },
        "include_input_output_embeddings": ends,
        "untie_embedding_weights": false,
    });
    Ok((config, note))
}
