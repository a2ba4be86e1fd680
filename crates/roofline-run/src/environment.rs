//! Where a result comes from: enough to tell two machines, kernels or builds apart, nothing that names a person or host.

use roofline_isa::Isa;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu::machine::Machine;

/// The machine, its system and the program, when a run started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Version of the program.
    pub version: String,
    /// Commit it was built from; `unknown` outside a repository.
    pub commit: String,
    /// Compiler it was built with.
    pub compiler: String,
    /// Target it was built for.
    pub target: String,
    /// Operating system and its release.
    pub system: Option<String>,
    /// Kernel version.
    pub kernel: Option<String>,
    /// Runnable threads, averaged over the last minute. Above zero on an idle machine means that something else runs.
    pub load: Option<f64>,
    /// The instructions that kernels on the processor used; none in runs from before it was recorded.
    #[serde(default)]
    pub isa: Option<String>,
    /// The processor and its memory.
    pub machine: Machine,
    /// What kernels ran on, where that is not the processor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accelerator: Vec<(String, String)>,
}

/// The commit this was built from, where it was built in its repository.
pub const COMMIT: Option<&str> = option_env!("ROOFLINE_COMMIT");

impl Environment {
    /// Here and now.
    pub fn collect() -> Self {
        Self::of(Machine::detect())
    }

    /// The same, with a machine that is known already.
    pub fn of(machine: Machine) -> Self {
        let text = |path: &str| std::fs::read_to_string(path).ok();
        let load = text("/proc/loadavg").and_then(|text| text.split_whitespace().next()?.parse().ok());
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: COMMIT.unwrap_or("unknown").to_owned(),
            compiler: option_env!("ROOFLINE_COMPILER").unwrap_or("unknown").to_owned(),
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            system: text("/etc/os-release").and_then(|text| release(&text)),
            kernel: text("/proc/sys/kernel/osrelease")
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty()),
            load,
            isa: Some(Isa::best().to_string()),
            machine,
            accelerator: Vec::new(),
        }
    }
}

/// `PRETTY_NAME` of an os-release file.
fn release(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    let name = name.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.chars().filter(|letter| !letter.is_control()).take(128).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_survives_a_file() {
        let environment = Environment::collect();
        assert!(!environment.version.is_empty() && !environment.commit.is_empty());
        let text = serde_json::to_string(&environment).unwrap();
        assert_eq!(serde_json::from_str::<Environment>(&text).unwrap(), environment);
    }

    #[test]
    fn systems_name_themselves() {
        let name = release("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
        assert_eq!(name.as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
        assert_eq!(release("PRETTY_NAME=\"\""), None);
        assert_eq!(release(""), None);
    }
}
