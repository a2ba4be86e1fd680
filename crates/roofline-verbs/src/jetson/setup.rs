//! What is there, what is missing, what to do about it.

use roofline_core::units::Bytes;
use roofline_run::{
    cuda,
    jetson::{Root, Status},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Board, InMode, gibi};
use crate::{Context, Note};

/// A checklist of a board.
#[derive(Serialize, JsonSchema)]
pub struct SetUp {
    pub checks: Vec<SetUpCheck>,
    pub next_steps: Vec<NextStep>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// What to type next.
#[derive(Serialize, JsonSchema)]
pub struct NextStep {
    pub command: String,
    pub why: &'static str,
}

/// One thing that a board should have.
#[derive(Serialize, JsonSchema)]
pub struct SetUpCheck {
    pub check: &'static str,
    pub state: CheckState,
    pub found: String,
    pub to_do: String,
}

/// Whether it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    Ok,
    Missing,
    Note,
    /// A tree of files cannot say.
    Unknown,
}

/// Memory below which a model of a billion parameters in 16 bits has no room.
const LITTLE: Bytes = Bytes::new(3.0 * 1024.0 * 1024.0 * 1024.0);
/// Boards up to here run out of memory while they build or load something large.
const SMALL: Bytes = Bytes::new(9.0 * 1024.0 * 1024.0 * 1024.0);

pub(super) fn setup(context: &Context, root: &Root) -> SetUp {
    let status = Status::read(root);
    let check = |check, state, found: String, to_do: &str| SetUpCheck { check, state, found, to_do: to_do.to_owned() };
    let step = |command: &str, why| NextStep { command: command.to_owned(), why };
    if !status.is_jetson {
        let to_do = "run this on the board, or name a copied tree by ⟨root⟩";
        let checks = vec![check("Jetson", CheckState::Missing, status.errors.join("; "), to_do)];
        return SetUp {
            checks,
            next_steps: vec![step("roofline compare", "measures any other machine")],
            notes: context.notes(),
        };
    }
    let model = status.model.clone().unwrap_or_else(|| "a board without a name".to_owned());
    let known = match &status.device {
        Some(key) => check("Jetson", CheckState::Ok, format!("{model} ({key})"), ""),
        None => {
            check("Jetson", CheckState::Note, format!("{model}: not in the registry"), "predictions need ⟨on DEVICE⟩")
        }
    };
    let mut checks = vec![known, jetpack(&status)];
    checks.extend([driver(root), compiler(root)]);
    let board = Board::of(context, status.clone()).ok();
    checks.extend([mode(&status, board.as_ref()), clocks(&status)]);
    checks.extend([memory(&status), swap(&status)]);
    let fastest = board.as_ref().and_then(|board| fastest(board).map(|mode| mode.mode.name.clone()));
    let mut next_steps: Vec<NextStep> = Vec::new();
    next_steps.extend(
        fastest.map(|name| step(&format!("roofline jetson set-mode {name}"), "the fastest mode, for measuring")),
    );
    next_steps.extend([
        step("sudo jetson_clocks", "hold the clocks, so that runs compare"),
        step("roofline jetson validate", "theory against measurement on this board"),
        step("roofline jetson power-bench", "time and energy, in every mode with --apply"),
        step("roofline jetson schedule --goal power", "which mode and precision for which goal"),
    ]);
    SetUp { checks, next_steps, notes: context.notes() }
}

fn jetpack(status: &Status) -> SetUpCheck {
    let (state, found, to_do) = match (&status.l4t_version, status.jetpack) {
        (Some(version), Some(jetpack)) if jetpack >= 6 => {
            (CheckState::Ok, format!("JetPack {jetpack} (Jetson Linux {version})"), "")
        }
        (Some(version), Some(jetpack)) => (
            CheckState::Note,
            format!("JetPack {jetpack} (Jetson Linux {version})"),
            "its CUDA is older than 12: measuring needs JetPack 6",
        ),
        (Some(version), None) => (CheckState::Note, format!("Jetson Linux {version}"), ""),
        (None, _) => {
            (CheckState::Missing, "no /etc/nv_tegra_release".to_owned(), "flash the board with NVIDIA's image")
        }
    };
    SetUpCheck { check: "JetPack", state, found, to_do: to_do.to_owned() }
}

fn driver(root: &Root) -> SetUpCheck {
    let libraries = ["/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1", "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1"];
    let file = libraries.into_iter().find(|path| root.has(path));
    let (state, found, to_do) = match (root.is_this_machine(), file) {
        (true, _) if cuda::present() => (CheckState::Ok, "a driver and a GPU".to_owned(), ""),
        (true, _) => (CheckState::Missing, "no libcuda.so.1 with a GPU".to_owned(), "sudo apt install nvidia-jetpack"),
        (false, Some(path)) => (CheckState::Ok, path.to_owned(), ""),
        (false, None) => (CheckState::Unknown, "not in these files".to_owned(), ""),
    };
    SetUpCheck { check: "CUDA driver", state, found, to_do: to_do.to_owned() }
}

fn compiler(root: &Root) -> SetUpCheck {
    let nvcc = "/usr/local/cuda/bin/nvcc";
    let (state, found, to_do) = if root.has(nvcc) {
        (CheckState::Ok, nvcc.to_owned(), "")
    } else if root.is_this_machine() {
        (
            CheckState::Missing,
            format!("no {nvcc}"),
            "sudo apt install nvidia-jetpack, which also brings NVRTC for our kernels",
        )
    } else {
        (CheckState::Unknown, "not in these files".to_owned(), "")
    };
    SetUpCheck { check: "CUDA toolkit", state, found, to_do: to_do.to_owned() }
}

fn mode(status: &Status, board: Option<&Board>) -> SetUpCheck {
    let name = status.power_mode_name.clone();
    let fastest = board.and_then(fastest).map(|mode| mode.mode.name.clone());
    let (state, to_do) = match (&name, &fastest) {
        (Some(name), Some(fastest)) if name != fastest => {
            (CheckState::Note, format!("{fastest} is faster: roofline jetson set-mode {fastest}"))
        }
        (Some(_), _) => (CheckState::Ok, String::new()),
        (None, _) => (CheckState::Missing, "sudo nvpmodel -q says which".to_owned()),
    };
    SetUpCheck { check: "power mode", state, found: name.unwrap_or_else(|| "unknown".to_owned()), to_do }
}

/// The mode with the most compute, of those with the most bandwidth.
fn fastest(board: &Board) -> Option<&InMode> {
    board.modes.iter().max_by(|one, other| {
        let rates = |mode: &InMode| (mode.mode.bandwidth.value(), mode.mode.fp16.value());
        let (one, other) = (rates(one), rates(other));
        one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
    })
}

fn clocks(status: &Status) -> SetUpCheck {
    let (state, found, to_do) = match status.jetson_clocks_active {
        Some(true) => (CheckState::Ok, "held at their maximum", ""),
        Some(false) => (CheckState::Note, "follow the load", "sudo jetson_clocks before measuring"),
        None => (CheckState::Unknown, "not known", ""),
    };
    SetUpCheck { check: "clocks", state, found: found.to_owned(), to_do: to_do.to_owned() }
}

fn memory(status: &Status) -> SetUpCheck {
    let Some((all, free)) = status.memory.zip(status.memory_available) else {
        return SetUpCheck {
            check: "memory",
            state: CheckState::Unknown,
            found: "not known".to_owned(),
            to_do: String::new(),
        };
    };
    let (state, to_do) = if free < LITTLE {
        (CheckState::Note, "sudo init 3 stops the desktop and frees what it holds")
    } else {
        (CheckState::Ok, "")
    };
    SetUpCheck {
        check: "memory",
        state,
        found: format!("{} of {} free", gibi(free), gibi(all)),
        to_do: to_do.to_owned(),
    }
}

fn swap(status: &Status) -> SetUpCheck {
    let small = status.memory.is_some_and(|memory| memory < SMALL);
    let (state, found, to_do) = match status.swap {
        Some(swap) if swap > Bytes::ZERO => (CheckState::Ok, gibi(swap), ""),
        Some(_) if small => {
            (CheckState::Note, "none".to_owned(), "a swap file helps to load and quantize; it does not help to run")
        }
        Some(_) => (CheckState::Ok, "none, and none is needed".to_owned(), ""),
        None => (CheckState::Unknown, "not known".to_owned(), ""),
    };
    SetUpCheck { check: "swap", state, found, to_do: to_do.to_owned() }
}
