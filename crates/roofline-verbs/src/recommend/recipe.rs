//! What to type to get a plan: our own quantizer, then the runtimes'.

use roofline_core::{
    Plan,
    precision::{Formats, PrecisionSpec},
    recommend::{Offload, Outcome, Quality},
};
use roofline_quant::{Layout, Runtime, torchao::get_quantize_config};

use super::Limits;

/// torchao's configuration of a precision, where it has one, with the word and the group size that a mapping by width alone
/// knows it by.
fn torchao(precision: &str) -> Option<(&'static str, &'static str, u32)> {
    Some(match precision {
        "w4a16" => ("Int4WeightOnlyConfig(group_size=128)", "INT4", 128),
        "int4-g64" => ("Int4WeightOnlyConfig(group_size=64)", "INT4", 64),
        "int4-g32" => ("Int4WeightOnlyConfig(group_size=32)", "INT4", 32),
        "w8a16" => ("Int8WeightOnlyConfig()", "INT8", 128),
        "int8" => ("Int8DynamicActivationInt8WeightConfig()", "INT8", 128),
        "fp8" => ("Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())", "FP8_E4M3", 128),
        "fp8a16" => ("Float8WeightOnlyConfig()", "FP8_E4M3", 128),
        _ => return None,
    })
}

/// What makes a checkpoint of a precision: ours, then the same in torchao, where it has it.
pub(crate) fn checkpoint(plan: &Plan, model: &str) -> Vec<String> {
    let ours = layout(plan).map(|layout| quantize(plan, layout, "rtn", model, "OUT"));
    let torchao = torchao(plan.base()).filter(|_| plan.is_uniform()).map(|(config, word, group)| {
        let mapped = get_quantize_config(word, group).map(|mapped| mapped.expression).filter(|mapped| mapped != config);
        let note = mapped.map_or_else(String::new, |mapped| format!("    # by width alone it would be {mapped}"));
        format!("quantize_(model, {config}){note}")
    });
    ours.into_iter().chain(torchao).collect()
}

/// The folder that stores a plan for runtimes that load folders; none where our quantizer writes none.
fn layout(plan: &Plan) -> Option<Layout> {
    let narrow = |spec: &&PrecisionSpec| spec.formats().weights.is_none_or(|format| format.nominal_bits() < 16);
    let parts = || plan.precision().into_iter().chain(plan.rules().iter().map(|rule| &rule.precision)).filter(narrow);
    let stores = |layout: &Layout| {
        parts().all(|spec| {
            let Formats { weights, activations, .. } = spec.formats();
            // What needs ranges of activations is not made by one command.
            let scheme = weights.and_then(|weights| layout.scheme_of(weights, activations).ok());
            scheme.is_some_and(|scheme| !scheme.needs_ranges())
        })
    };
    let some = plan.mix().is_none() && parts().next().is_some();
    // A checkpoint of torchao, or of bitsandbytes, has one scheme.
    let takes = |layout: &Layout| *layout == Layout::CompressedTensors || plan.rules().is_empty();
    let folders = [Layout::CompressedTensors, Layout::Torchao, Layout::Bitsandbytes];
    folders.into_iter().find(|layout| some && takes(layout) && stores(layout))
}

fn quantize(plan: &Plan, layout: Layout, algorithm: &str, model: &str, target: &str) -> String {
    let layout = match layout {
        Layout::CompressedTensors => String::new(),
        other => format!(" --as {other}"),
    };
    let method = if algorithm == "mse" { " --method mse" } else { "" };
    format!("roofline quantize {model}{layout} --plan '{plan}'{method} --to {target}")
}

/// What to type for a plan, as far as this program can make it.
pub(crate) fn commands(outcome: &Outcome, model: &str) -> Vec<String> {
    let candidate = &outcome.candidate;
    let knows = |runtime: &str| candidate.known_as.contains_key(runtime);
    let mut commands = Vec::new();
    if knows("vLLM") {
        commands.extend(vllm(outcome, model));
    }
    if knows("llama.cpp") && (candidate.plan.mix().is_some() || commands.is_empty()) {
        commands.extend(llama_cpp(outcome, model));
    }
    if commands.is_empty() && knows("transformers") {
        commands.extend(transformers(outcome, model));
    }
    if commands.is_empty() && candidate.known_as.is_empty() {
        commands.extend(checkpoint(&candidate.plan, model));
    }
    if commands.is_empty() {
        commands.push(format!("# {} is not among what `roofline quantize` writes", candidate.plan));
    }
    commands
}

/// What finds formats by role and layer for a size, in a folder that weights can be read from: they are tried on the model, which a
/// prediction cannot do.
pub(crate) fn aimed(limits: &Limits, folder: &str) -> Option<String> {
    let aim = match (limits.target_size, limits.target_bits) {
        (Some(size), _) => format!("--target-size {size}"),
        (None, Some(bits)) => format!("--target-bits {bits}"),
        (None, None) => return None,
    };
    let runtimes = limits.runtime.iter().map(|name| name.parse::<Runtime>());
    let runtimes: Vec<Runtime> = runtimes.filter_map(std::result::Result::ok).collect();
    let to = match runtimes.first() {
        // One that reads files reads most formats.
        None => "--to model.gguf".to_owned(),
        Some(_) if runtimes.contains(&Runtime::LlamaCpp) => "--to model.gguf".to_owned(),
        Some(runtime) => format!("--runtime {runtime} --to OUT"),
    };
    Some(format!("roofline quantize {folder} {aim} --data TEXT {to}    # formats that lose least within it"))
}

fn vllm(outcome: &Outcome, model: &str) -> Vec<String> {
    let candidate = &outcome.candidate;
    let plan = &candidate.plan;
    let as_it_is = candidate.losses.quality == Quality::Released || candidate.algorithm == "none";
    let (made, served) = match layout(plan) {
        _ if as_it_is => (None, model),
        // Experts are fused here and stacked elsewhere, so it is written for whom it is served by.
        Some(layout) => {
            let made = quantize(plan, layout, candidate.algorithm, model, "OUT");
            (Some(if layout == Layout::CompressedTensors { made + " --runtime vllm" } else { made }), "OUT")
        }
        None => return Vec::new(),
    };
    let cache = match plan.kv().map(|kv| kv.to_string()).as_deref() {
        None => "",
        Some("fp8-e5m2") => " --kv-cache-dtype fp8_e5m2",
        Some(_) => " --kv-cache-dtype fp8",
    };
    let shared = if outcome.tp > 1 { format!(" --tensor-parallel-size {}", outcome.tp) } else { String::new() };
    let left = |offload: Offload| format!(" --cpu-offload-gb {:.0}", (offload.host_memory.value() / 1e9).ceil());
    let left = outcome.offload.map_or_else(String::new, left);
    let note = if candidate.losses.quality == Quality::Released { "    # as it was released" } else { "" };
    made.into_iter().chain([format!("vllm serve {served}{cache}{shared}{left}{note}")]).collect()
}

fn llama_cpp(outcome: &Outcome, model: &str) -> Vec<String> {
    let plan = &outcome.candidate.plan;
    let cache =
        plan.kv().map_or_else(String::new, |kind| format!(" --cache-type-k {kind} --cache-type-v {kind} -fa on"));
    let left = outcome.offload.map_or_else(String::new, |offload| format!(" -ngl {}", offload.of - offload.layers));
    vec![quantize(plan, Layout::Gguf, "rtn", model, "model.gguf"), format!("llama-server -m model.gguf{cache}{left}")]
}

fn transformers(outcome: &Outcome, model: &str) -> Vec<String> {
    let plan = &outcome.candidate.plan;
    if plan.base() == "nf4" {
        let config = "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\")";
        return vec![format!("AutoModelForCausalLM.from_pretrained(\"{model}\", quantization_config={config})")];
    }
    checkpoint(plan, model)
}

#[cfg(test)]
mod tests {
    use roofline_core::{
        Machine, Model, Registry,
        machine::Stack,
        recommend::{Need, recommend},
    };

    use super::*;

    /// The search that a size is aimed at with is `quantize`'s, and takes the size as it is printed here.
    #[test]
    fn sizes_are_aimed_at_by_quantize() {
        let size = Limits { target_size: Some("4.5GB".parse().unwrap()), ..Limits::default() };
        let line = aimed(&size, "./M").unwrap();
        assert!(line.starts_with("roofline quantize ./M --target-size 4500000000B --data "), "{line}");
        let bits = Limits { target_bits: Some(4.3), ..Limits::default() };
        assert!(aimed(&bits, "./M").unwrap().contains(" --target-bits 4.3 "));
        assert_eq!(aimed(&Limits::default(), "./M"), None);
        for (runtimes, end) in [
            (vec![], "--to model.gguf"),
            (vec!["llama.cpp"], "--to model.gguf"),
            (vec!["vLLM", "llama.cpp"], "--to model.gguf"),
            (vec!["vllm"], "--runtime vLLM --to OUT"),
            (vec!["mlx-lm"], "--runtime mlx-lm --to OUT"),
        ] {
            let runtime = runtimes.into_iter().map(str::to_owned).collect();
            let line = aimed(&Limits { runtime, target_bits: Some(4.3), ..Limits::default() }, "./M").unwrap();
            assert!(line.contains(&format!("{end}    #")), "{line}");
        }
    }

    /// What `roofline quantize` would be told by the commands of every plan is the plan itself, and every layout has its
    /// parts.
    #[test]
    fn every_command_names_the_plan_itself() {
        let (model, limits) = (Model::find("llama-3-8b").unwrap(), roofline_core::recommend::Limits::default());
        let mut seen = 0;
        for key in ["b200", "h200", "jetson_orin_nano", "apple_m2", "tpu_v5e"] {
            let machine = Machine::new(Registry::builtin().find(key).unwrap().into_owned(), Stack::Roofline);
            let need = Need { limits: &limits, ..Need::new(&model, &machine) };
            for outcome in recommend(&need).unwrap().outcomes {
                let commands = commands(&outcome, "M");
                assert!(!commands.is_empty() && commands.iter().all(|line| !line.contains("printf")));
                for line in commands.iter().filter(|line| line.starts_with("roofline quantize")) {
                    let text = line.split('\'').nth(1).unwrap();
                    assert_eq!(text.parse::<Plan>().unwrap(), outcome.candidate.plan, "{line}");
                    seen += 1;
                }
                let cached = commands.iter().any(|line| line.contains("cache"));
                let served = commands.iter().any(|line| line.starts_with("vllm") || line.starts_with("llama-server"));
                assert!(cached || outcome.candidate.plan.kv().is_none() || !served, "{commands:?}");
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
