//! `roofline jetson setup`: what is there, what is missing, what to do about it.

use roofline_core::units::Bytes;
use roofline_run::{
    cuda,
    jetson::{Root, Status},
};
use serde::Serialize;

use super::{Board, status::gibi};
use crate::report::{Align, Report, Section, Table};

#[derive(Serialize)]
pub(super) struct Checklist {
    checks: Vec<Item>,
    next_steps: Vec<Step>,
}

#[derive(Serialize)]
struct Step {
    command: String,
    why: &'static str,
}

#[derive(Serialize)]
struct Item {
    check: &'static str,
    state: State,
    found: String,
    to_do: String,
}

#[derive(Clone, Copy, Serialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum State {
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

pub(super) fn setup(root: &Root) -> Checklist {
    let status = Status::read(root);
    let check = |check, state, found: String, to_do: &str| Item { check, state, found, to_do: to_do.to_owned() };
    let step = |command: &str, why| Step { command: command.to_owned(), why };
    if !status.is_jetson {
        let to_do = "run this on the board, or name a copied tree by --root";
        let checks = vec![check("Jetson", State::Missing, status.errors.join("; "), to_do)];
        return Checklist { checks, next_steps: vec![step("roofline compare", "measures any other machine")] };
    }
    let model = status.model.clone().unwrap_or_else(|| "a board without a name".to_owned());
    let known = match &status.device {
        Some(key) => check("Jetson", State::Ok, format!("{model} ({key})"), ""),
        None => check("Jetson", State::Note, format!("{model}: not in the registry"), "predictions need --on DEVICE"),
    };
    let mut checks = vec![known, jetpack(&status)];
    checks.extend([driver(root), compiler(root)]);
    let board = Board::of(status.clone()).ok();
    checks.extend([mode(&status, board.as_ref()), clocks(&status)]);
    checks.extend([memory(&status), swap(&status)]);
    let fastest = board.as_ref().and_then(|board| fastest(board).map(|mode| mode.mode.name.clone()));
    let mut next_steps: Vec<Step> = Vec::new();
    next_steps.extend(
        fastest.map(|name| step(&format!("roofline jetson set-mode {name}"), "the fastest mode, for measuring")),
    );
    next_steps.extend([
        step("sudo jetson_clocks", "hold the clocks, so that runs compare"),
        step("roofline jetson validate", "theory against measurement on this board"),
        step("roofline jetson power-bench", "time and energy, in every mode with --apply"),
        step("roofline jetson schedule --goal power", "which mode and precision for which goal"),
    ]);
    Checklist { checks, next_steps }
}

fn jetpack(status: &Status) -> Item {
    let (state, found, to_do) = match (&status.l4t_version, status.jetpack) {
        (Some(version), Some(jetpack)) if jetpack >= 6 => {
            (State::Ok, format!("JetPack {jetpack} (Jetson Linux {version})"), "")
        }
        (Some(version), Some(jetpack)) => (
            State::Note,
            format!("JetPack {jetpack} (Jetson Linux {version})"),
            "its CUDA is older than 12: measuring needs JetPack 6",
        ),
        (Some(version), None) => (State::Note, format!("Jetson Linux {version}"), ""),
        (None, _) => (State::Missing, "no /etc/nv_tegra_release".to_owned(), "flash the board with NVIDIA's image"),
    };
    Item { check: "JetPack", state, found, to_do: to_do.to_owned() }
}

fn driver(root: &Root) -> Item {
    let libraries = ["/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1", "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1"];
    let file = libraries.into_iter().find(|path| root.has(path));
    let (state, found, to_do) = match (root.is_this_machine(), file) {
        (true, _) if cuda::present() => (State::Ok, "a driver and a GPU".to_owned(), ""),
        (true, _) => (State::Missing, "no libcuda.so.1 with a GPU".to_owned(), "sudo apt install nvidia-jetpack"),
        (false, Some(path)) => (State::Ok, path.to_owned(), ""),
        (false, None) => (State::Unknown, "not in these files".to_owned(), ""),
    };
    Item { check: "CUDA driver", state, found, to_do: to_do.to_owned() }
}

fn compiler(root: &Root) -> Item {
    let nvcc = "/usr/local/cuda/bin/nvcc";
    let (state, found, to_do) = if root.has(nvcc) {
        (State::Ok, nvcc.to_owned(), "")
    } else if root.is_this_machine() {
        (
            State::Missing,
            format!("no {nvcc}"),
            "sudo apt install nvidia-jetpack, which also brings NVRTC for our kernels",
        )
    } else {
        (State::Unknown, "not in these files".to_owned(), "")
    };
    Item { check: "CUDA toolkit", state, found, to_do: to_do.to_owned() }
}

fn mode(status: &Status, board: Option<&Board>) -> Item {
    let name = status.power_mode_name.clone();
    let fastest = board.and_then(fastest).map(|mode| mode.mode.name.clone());
    let (state, to_do) = match (&name, &fastest) {
        (Some(name), Some(fastest)) if name != fastest => {
            (State::Note, format!("{fastest} is faster: roofline jetson set-mode {fastest}"))
        }
        (Some(_), _) => (State::Ok, String::new()),
        (None, _) => (State::Missing, "sudo nvpmodel -q says which".to_owned()),
    };
    Item { check: "power mode", state, found: name.unwrap_or_else(|| "unknown".to_owned()), to_do }
}

/// The mode with the most compute, of those with the most bandwidth.
fn fastest(board: &Board) -> Option<&super::InMode> {
    board.modes.iter().max_by(|one, other| {
        let rates = |mode: &super::InMode| (mode.mode.bandwidth.value(), mode.mode.fp16.value());
        let (one, other) = (rates(one), rates(other));
        one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
    })
}

fn clocks(status: &Status) -> Item {
    let (state, found, to_do) = match status.jetson_clocks_active {
        Some(true) => (State::Ok, "held at their maximum", ""),
        Some(false) => (State::Note, "follow the load", "sudo jetson_clocks before measuring"),
        None => (State::Unknown, "not known", ""),
    };
    Item { check: "clocks", state, found: found.to_owned(), to_do: to_do.to_owned() }
}

fn memory(status: &Status) -> Item {
    let Some((all, free)) = status.memory.zip(status.memory_available) else {
        return Item { check: "memory", state: State::Unknown, found: "not known".to_owned(), to_do: String::new() };
    };
    let (state, to_do) = if free < LITTLE {
        (State::Note, "sudo init 3 stops the desktop and frees what it holds")
    } else {
        (State::Ok, "")
    };
    Item { check: "memory", state, found: format!("{} of {} free", gibi(free), gibi(all)), to_do: to_do.to_owned() }
}

fn swap(status: &Status) -> Item {
    let small = status.memory.is_some_and(|memory| memory < SMALL);
    let (state, found, to_do) = match status.swap {
        Some(swap) if swap > Bytes::ZERO => (State::Ok, gibi(swap), ""),
        Some(_) if small => {
            (State::Note, "none".to_owned(), "a swap file helps to load and quantize; it does not help to run")
        }
        Some(_) => (State::Ok, "none, and none is needed".to_owned(), ""),
        None => (State::Unknown, "not known".to_owned(), ""),
    };
    Item { check: "swap", state, found, to_do: to_do.to_owned() }
}

impl Report for Checklist {
    const ROWS: &'static str = "checks";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("check", Align::Left, 0)
            .column("", Align::Left, 0)
            .column("found", Align::Left, 0)
            .column("what to do", Align::Left, 0);
        for check in &self.checks {
            let state = match check.state {
                State::Ok => "OK",
                State::Missing => "missing",
                State::Note => "note",
                State::Unknown => "unknown",
            };
            table.row([check.check.into(), state.into(), check.found.as_str().into(), check.to_do.as_str().into()]);
        }
        let mut sections = vec![
            Section::Heading("Set-up of this Jetson".to_owned()),
            Section::Table(table),
            Section::Heading("Next".to_owned()),
        ];
        let steps = self.next_steps.iter().map(|step| (step.command.clone(), step.why.to_owned()));
        sections.push(Section::Facts(steps.collect()));
        sections
    }
}
