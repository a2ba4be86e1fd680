//! What to type to get a plan: our own quantizer, then the runtimes'.

use roofline_core::{
    Format,
    recommend::{Candidate, Quality},
};
use roofline_quant::torchao::get_quantize_config;

/// A precision without the 16-bit activations that its name may end with: `int4-g32/bf16` is `int4-g32`.
fn stem(precision: &str) -> &str {
    precision.split('/').next().unwrap_or(precision)
}

/// What `roofline quantize` calls a precision in the layout that vLLM loads, where it writes it.
fn scheme(precision: &str) -> Option<&'static str> {
    Some(match stem(precision) {
        "w4a16" => "w4a16",
        "int4-g64" => "w4a16-g64",
        "int4-g32" => "w4a16-g32",
        "int4-g128-zp" => "w4a16-asym",
        "w8a16" => "w8a16-channel",
        "int8-g128" => "w8a16",
        "int8" => "w8a8",
        "fp8" => "fp8-dynamic",
        "fp8a16" => "fp8a16",
        "nvfp4a16" => "nvfp4a16",
        "mxfp4a16" => "mxfp4a16",
        _ => return None,
    })
}

/// What it calls a precision in GGUF.
fn gguf(precision: &str) -> Option<&'static str> {
    Some(match stem(precision) {
        "bf16" => "bf16",
        "fp16" => "f16",
        "int8-g32" => "q8_0",
        "int4-g32" => "q4_0",
        "nvfp4a16" => "nvfp4",
        "mxfp4a16" => "mxfp4",
        _ => return None,
    })
}

/// torchao's configuration of a precision, where it has one, with the word and the group size that a mapping by width alone
/// knows it by.
fn torchao(precision: &str) -> Option<(&'static str, &'static str, u32)> {
    Some(match stem(precision) {
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
pub(super) fn checkpoint(precision: &str, model: &str) -> Vec<String> {
    let ours = scheme(precision).map(|scheme| {
        let clipped = stem(precision).starts_with("int4") || matches!(precision, "w4a16" | "nvfp4a16");
        let method = if clipped { " --method mse" } else { "" };
        let layout = if precision == "fp8a16" { " --as torchao" } else { "" };
        format!("roofline quantize {model} --plan {scheme}{method}{layout} --to OUT")
    });
    let torchao = torchao(precision).map(|(config, word, group)| {
        let mapped = get_quantize_config(word, group).map(|mapped| mapped.expression).filter(|mapped| mapped != config);
        let note = mapped.map_or_else(String::new, |mapped| format!("    # by width alone it would be {mapped}"));
        format!("quantize_(model, {config}){note}")
    });
    ours.into_iter().chain(torchao).collect()
}

/// What to type for a plan, as far as this program can make it.
pub(super) fn commands(candidate: &Candidate, quality: &Quality, model: &str) -> Vec<String> {
    if *quality == Quality::Released && candidate.runtimes.contains(&"vLLM") {
        return vec![format!("vllm serve {model}    # as it was released")];
    }
    let narrow = candidate.kv.nominal_bits() < 16;
    let bits = |precision: roofline_core::Precision| precision.weights.nominal_bits();
    let plan = &candidate.plan;
    let inner = plan.feed_forward.unwrap_or(plan.layers);
    let wide = bits(plan.layers) >= 16 && bits(inner) >= 16;
    let same = candidate.attention == candidate.feed_forward;
    let mut commands = Vec::new();
    if candidate.attention == "nf4" && same {
        let config = "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\")";
        commands.push(format!("AutoModelForCausalLM.from_pretrained(\"{model}\", quantization_config={config})"));
    } else if candidate.head.is_none() && candidate.runtimes.iter().any(|runtime| *runtime != "llama.cpp") {
        let mut served = wide.then_some(model);
        if !wide && same {
            commands = checkpoint(&candidate.attention, model);
            served = scheme(&candidate.attention).map(|_| "OUT");
        } else if !wide {
            let attention = if bits(plan.layers) >= 16 { Some("keep") } else { scheme(&candidate.attention) };
            // torchao's FP8 has no place among the schemes of a mixed checkpoint.
            let mixed =
                attention.zip(scheme(&candidate.feed_forward)).filter(|both| both.0 != "fp8a16" && both.1 != "fp8a16");
            if let Some((attention, inner)) = mixed {
                commands.push(plan_file("plan.toml", inner, &[("attention", attention)]));
                commands.push(format!("roofline quantize {model} --plan plan.toml --to OUT"));
                served = Some("OUT");
            }
        }
        if let Some(served) = served.filter(|_| candidate.runtimes.contains(&"vLLM")) {
            let cache = match candidate.kv.to_string().as_str() {
                _ if !narrow => "",
                "fp8-e5m2" => " --kv-cache-dtype fp8_e5m2",
                _ => " --kv-cache-dtype fp8",
            };
            commands.push(format!("vllm serve {served}{cache}"));
        }
    }
    if candidate.runtimes.contains(&"llama.cpp") {
        commands.extend(llama_cpp(candidate, model));
    }
    if commands.is_empty() {
        commands.push(format!("# {} is not among the schemes that `roofline quantize` writes", candidate.name));
    }
    commands
}

fn llama_cpp(candidate: &Candidate, model: &str) -> Vec<String> {
    let Some((attention, inner)) = gguf(&candidate.attention).zip(gguf(&candidate.feed_forward)) else {
        return Vec::new();
    };
    let mut commands = Vec::new();
    // Its own mixtures quantize the head too, so that a plan which does not, or not like them, says so.
    let sixteen = if candidate.plan.wide.weights == Format::FP16 { "f16" } else { "bf16" };
    let head = candidate.head.and_then(|head| gguf(&head.to_string())).unwrap_or(sixteen);
    let plan = if attention == inner && inner == head {
        inner
    } else {
        let mut rules = vec![("head", head), ("embedding", head)];
        if attention != inner {
            rules.insert(0, ("attention", attention));
        }
        commands.push(plan_file("gguf.toml", inner, &rules));
        "gguf.toml"
    };
    commands.push(format!("roofline quantize {model} --as gguf --plan {plan} --to model.gguf"));
    let cache = gguf(&candidate.kv.to_string()).filter(|_| candidate.kv.nominal_bits() < 16);
    let cache = cache.map_or_else(String::new, |kind| format!(" --cache-type-k {kind} --cache-type-v {kind}"));
    commands.push(format!("llama-server -m model.gguf{cache}"));
    if inner == "q4_0" {
        commands.push("# Q4_K_S and Q4_K_M take about as much as Q4_0 and lose less: --plan q4_k_m".to_owned());
    }
    commands
}

/// A file with a scheme and rules for some roles.
fn plan_file(name: &str, scheme: &str, rules: &[(&str, &str)]) -> String {
    let rule = |(role, scheme): &(&str, &str)| format!("[[rule]]\\nrole = \"{role}\"\\nscheme = \"{scheme}\"\\n");
    let rules: String = rules.iter().map(rule).collect();
    format!("printf 'scheme = \"{scheme}\"\\n{rules}' > {name}")
}

#[cfg(test)]
mod tests {
    use roofline_core::{
        Model, Registry,
        recommend::{Demand, Goal, Limits, Need, recommend},
    };
    use roofline_quant::{Layout, Plan};

    use super::*;

    /// What `roofline quantize` would be told by the commands of every plan is something it knows.
    #[test]
    fn every_command_names_schemes_that_are_there() {
        let (model, limits) = (Model::find("llama-3-8b").unwrap(), Limits::default());
        let mut seen = 0;
        for key in ["b200", "h200", "jetson_orin_nano", "apple_m2"] {
            let device = Registry::builtin().find(key).unwrap().into_owned();
            let need = Need {
                model: &model,
                device: &device,
                calibration: None,
                batch: None,
                demand: Demand::Decode { context: 4096 },
                goal: Goal::Latency,
                dollars_per_hour: None,
                limits: &limits,
            };
            for outcome in recommend(&need).unwrap().outcomes {
                let commands = commands(&outcome.candidate, &outcome.quality, "M");
                let file = |name: &str| {
                    let end = format!("' > {name}");
                    commands.iter().find_map(|line| line.strip_prefix("printf '")?.strip_suffix(&end)).unwrap()
                };
                for line in commands.iter().filter(|line| line.starts_with("roofline quantize")) {
                    let words: Vec<&str> = line.split(' ').collect();
                    let after = |flag: &str| words.iter().skip_while(|word| **word != flag).nth(1).copied();
                    let layout = match after("--as") {
                        Some("gguf") => Layout::Gguf,
                        Some("torchao") => Layout::Torchao,
                        _ => Layout::CompressedTensors,
                    };
                    let plan = after("--plan").unwrap();
                    let schemes: Vec<String> = if plan.contains(".toml") {
                        let text = file(plan).replace("\\n", "\n");
                        assert!(Plan::parse(&text).is_ok(), "{text}");
                        let quoted =
                            |line: &str| Some(line.strip_prefix("scheme = \"")?.trim_end_matches('"').to_owned());
                        text.lines().filter_map(quoted).collect()
                    } else {
                        vec![plan.to_owned()]
                    };
                    for scheme in schemes.iter().filter(|scheme| *scheme != "keep") {
                        assert!(layout.scheme(scheme).is_ok(), "{}: {scheme} as {layout}", outcome.candidate.name);
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
