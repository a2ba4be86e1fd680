//! What the program says of itself, so that no page can disagree with it: the pages of `docs/reference/`, the pictures,
//! every block of the README and the guides that starts with `$ roofline`, and the types of the page and of the Python package.

use std::{
    env, fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::{checkpoint, python, root, run, serve, step, works};

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    Write,
    Check,
}

/// Page, its title, and the commands whose output it is.
const PAGES: &[(&str, &str, &[&str])] = &[
    ("devices.md", "Devices", &["devices --md"]),
    ("models.md", "Models", &["models --md"]),
    ("formats.md", "Number formats", &["formats --md"]),
    ("precisions.md", "Precisions", &["precisions --md"]),
    ("schemes.md", "Schemes of quantized checkpoints", &["quantize --list --md"]),
    (
        "cli.md",
        "Command line",
        &[
            "--help",
            "predict --help",
            "predict gemv --help",
            "predict gemm --help",
            "predict attention --help",
            "predict ffn --help",
            "predict model --help",
            "measure --help",
            "measure kernel --help",
            "compare --help",
            "calibrate --help",
            "sweep --help",
            "recommend --help",
            "recommend gemm --help",
            "recommend model --help",
            "quantize --help",
            "imatrix --help",
            "inspect --help",
            "generate --help",
            "evaluate --help",
            "plot --help",
            "analyze --help",
            "tiling --help",
            "models --help",
            "formats --help",
            "precisions --help",
            "devices --help",
            "devices add --help",
            "devices template --help",
            "devices remove --help",
            "monitor --help",
            "export --help",
            "check --help",
            "jetson --help",
            "jetson schedule --help",
            "jetson set-mode --help",
            "serve --help",
            "remote --help",
            "completions --help",
            "man --help",
        ],
    ),
];

/// Pictures of the README and the guides.
const PICTURES: &[(&str, &str)] = &[
    (
        "roofline-light.svg",
        "plot roofline llama-3-8b --on h200 --precision bf16 --phase prefill --context 512 \
         --measured docs/results/2026-11-15-h200-torch-prefill.csv",
    ),
    (
        "roofline-dark.svg",
        "plot roofline llama-3-8b --on h200 --precision bf16 --phase prefill --context 512 \
         --measured docs/results/2026-11-15-h200-torch-prefill.csv --theme dark",
    ),
    ("batch-light.svg", "plot batch llama-3-8b --on h200,a100 --precision bf16,w4a16"),
    ("batch-dark.svg", "plot batch llama-3-8b --on h200,a100 --precision bf16,w4a16 --theme dark"),
    ("shares-light.svg", "plot shares llama-3-8b mixtral-8x7b deepseek-v2-lite --on h200 --precision bf16"),
];

/// Pages with examples.
const GUIDES: &[&str] = &[
    "README.md",
    "docs/guide/predict.md",
    "docs/guide/measure.md",
    "docs/guide/compare.md",
    "docs/guide/formats.md",
    "docs/guide/sweep.md",
    "docs/guide/plot.md",
    "docs/guide/monitor.md",
    "docs/guide/quantize.md",
    "docs/guide/recommend.md",
    "docs/guide/jetson.md",
    "docs/guide/serve.md",
];

pub(crate) fn generate(mode: Mode) -> Result<(), String> {
    run(&mut python::program())?;
    let folder = root().join("docs/reference");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (file, title, commands) in PAGES {
        settle(&folder.join(file), &page(title, commands)?, mode)?;
    }
    for (file, command) in PICTURES {
        let picture = env::temp_dir().join(format!("roofline-{}-{file}", std::process::id()));
        let said = roofline(&format!("{command} --force --out {}", picture.display()))?;
        let svg = fs::read_to_string(&picture).map_err(|error| format!("{file}: {error}: {said}"))?;
        let _ = fs::remove_file(&picture);
        settle(&root().join("docs/images").join(file), &svg, mode)?;
    }
    for file in GUIDES {
        let path = root().join(file);
        let old = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let page = if *file == WITH_CHECKPOINT { beside_a_checkpoint(&old)? } else { with_examples(&old, &roofline)? };
        settle(&path, &page, mode)?;
    }
    for module in ["verbs", "answers"] {
        let stubs = roofline(&format!("openapi --python {module}"))?;
        settle(&root().join(format!("python/roofline/{module}.pyi")), &stubs, mode)?;
    }
    types(mode)
}

/// What the server takes and answers, as the page's compiler reads it.
fn types(mode: Mode) -> Result<(), String> {
    if !works(Command::new("npm").arg("--version")) {
        step("SKIPPED the page's types: npm is not installed (https://nodejs.org)");
        return Ok(());
    }
    let web = root().join("web");
    if !web.join("node_modules/openapi-typescript").exists() {
        step("npm ci");
        run(&mut serve::npm(&["ci", "--no-audit", "--no-fund"]))?;
    }
    let document = program("openapi", &root())?;
    if !document.status.success() {
        return Err(format!("roofline openapi: {}", String::from_utf8_lossy(&document.stderr)));
    }
    let types = fed(&mut serve::npm(&["run", "--silent", "types"]), &document.stdout)?;
    settle(&web.join("src/api/schema.ts"), &types, mode)
}

/// What a command prints when it is given `input`, all of which it reads before it prints.
fn fed(command: &mut Command, input: &[u8]) -> Result<String, String> {
    let shown = format!("{command:?}").replace('"', "");
    let failed = |error: std::io::Error| format!("{shown}: {error}");
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().map_err(failed)?;
    // One that ends early says why on standard error, which is worth more than a broken pipe.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input));
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(format!("{shown} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    written.map_err(failed)?;
    String::from_utf8(output.stdout).map_err(|error| format!("{shown}: {error}"))
}

/// The page whose commands run beside a small checkpoint called `tiny-llama`, and write others there.
const WITH_CHECKPOINT: &str = "docs/guide/quantize.md";

fn beside_a_checkpoint(page: &str) -> Result<String, String> {
    let folder = env::temp_dir().join(format!("roofline-{}-examples", std::process::id()));
    checkpoint::write(&folder.join("tiny-llama"))?;
    // How long it took is said on standard error, to who waits; the page shows the answer, and none of its commands fails.
    let answer = |arguments: &str| {
        let output = program(arguments, &folder)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let shown = output.status.success().then_some(output.stdout);
        let shown = shown.ok_or_else(|| format!("{WITH_CHECKPOINT}: `roofline {arguments}`: {said}"))?;
        String::from_utf8(shown).map_err(|error| error.to_string())
    };
    let page = with_examples(page, &answer);
    let _ = fs::remove_dir_all(&folder);
    page
}

/// Writes a page, or insists that it is there already.
fn settle(path: &Path, page: &str, mode: Mode) -> Result<(), String> {
    match mode {
        Mode::Write => fs::write(path, page).map_err(|error| format!("{}: {error}", path.display())),
        Mode::Check if fs::read_to_string(path).is_ok_and(|old| old == page) => Ok(()),
        Mode::Check => Err(format!("{} is out of date: run `cargo xtask generate`", path.display())),
    }
}

/// `text` with what follows `$ roofline ...` in a code block replaced by what the program prints.
fn with_examples(text: &str, answer: &dyn Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut answered = false;
    for line in text.lines() {
        if let Some(arguments) = line.strip_prefix("$ roofline ") {
            out += &format!("{line}\n{}", answer(arguments)?);
            answered = true;
        } else if !answered || line.starts_with("```") {
            answered = false;
            out += &format!("{line}\n");
        }
    }
    Ok(out)
}

fn page(title: &str, commands: &[&str]) -> Result<String, String> {
    let mut page = format!("# {title}\n\nGenerated by `cargo xtask generate`; edits are lost.\n");
    for command in commands {
        let output = roofline(command)?;
        if command.contains("--help") {
            let name = command.trim_end_matches("--help").trim();
            page += &format!("\n## `{}`\n\n```text\n{output}```\n", format!("roofline {name}").trim());
        } else {
            page += &format!("\n{output}");
        }
    }
    Ok(page)
}

/// What the program prints, errors too.
fn roofline(arguments: &str) -> Result<String, String> {
    let output = program(arguments, &root())?;
    String::from_utf8([output.stdout, output.stderr].concat()).map_err(|error| error.to_string())
}

/// What the program does in `folder`, the same wherever it runs: no configuration, no colour, no terminal.
fn program(arguments: &str, folder: &Path) -> Result<Output, String> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let program = target.join("debug").join(format!("roofline{}", env::consts::EXE_SUFFIX));
    Command::new(&program)
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env("ROOFLINE_CONFIG_DIR", "/nonexistent")
        .env("NO_COLOR", "1")
        .env_remove("COLUMNS")
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))
}
