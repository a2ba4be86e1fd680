//! The command for a mode, found by its name, and run where that is wanted.

use clap::Args;
use roofline_core::{device::PowerMode, units::Watts};
use roofline_run::{
    Error as Run,
    jetson::{Answer, Root, Status, jetson_clocks, set_mode as ask},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Board;
use crate::{Context, Error, Note, Result, note::NoteKind};

/// A power mode to change to.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct SetMode {
    /// The mode's name, as `roofline jetson modes` lists it
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Also hold all clocks at the mode's maximum (jetson_clocks)
    #[arg(long)]
    #[serde(default)]
    pub clocks: bool,
    /// Run the commands, as whoever runs this
    #[arg(long)]
    #[serde(default)]
    #[schemars(extend("x-local" = true))]
    pub apply: bool,
}

/// A change of mode.
#[derive(Serialize, JsonSchema)]
pub struct ModeChange {
    pub device: String,
    pub power_mode_id: u32,
    pub power_mode_name: String,
    pub power_budget_w: Option<f64>,
    pub from: Option<String>,
    /// What to run.
    pub steps: Vec<ShellStep>,
    /// Whether it was run.
    pub applied: bool,
    pub notes: Vec<Note>,
}

/// A command for a shell.
#[derive(Serialize, JsonSchema)]
pub struct ShellStep {
    pub command: String,
}

pub(super) fn set_mode(context: &Context, root: &Root, asked: &SetMode) -> Result<ModeChange> {
    if asked.apply && !root.is_this_machine() {
        let hint = "leave out ⟨apply⟩ to see the command, or run it on the board without ⟨root⟩";
        return Err(Error::request("the mode of a copied tree cannot be changed", hint));
    }
    let board = Board::of(context, Status::read(root))?;
    let chosen = board.find(&asked.name)?;
    let mode = &chosen.mode;
    let now = board.now();
    let command = format!("sudo nvpmodel -m {}", mode.id);
    let clocks = asked.clocks.then(|| "sudo jetson_clocks".to_owned());
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(Note { kind: NoteKind::Note, text });
    if let Some(now) = now.filter(|now| now.mode.name != mode.name) {
        let unlimited = |power: Option<Watts>| power.map_or(f64::INFINITY, Watts::value);
        let (before, after) = (unlimited(now.mode.power), unlimited(mode.power));
        let words = if after > before { "raises" } else { "lowers" };
        let name = |mode: &PowerMode| {
            mode.power.map_or_else(|| "no limit".to_owned(), |power| format!("{:.0} W", power.value()))
        };
        if (after - before).abs() > 0.0 {
            note(format!("this {words} the budget, from {} to {}", name(&now.mode), name(mode)));
        }
        if now.mode.sm != mode.sm {
            note(
                "parts of the GPU go on or off: nvpmodel asks for a restart, and changes nothing before it".to_owned(),
            );
        }
    }
    let same = now.is_some_and(|now| now.mode.name == mode.name);
    if same {
        note("the board is in this mode".to_owned());
    }
    if asked.apply {
        done(ask(mode.id), &command)?;
        if asked.clocks {
            done(jetson_clocks(), "sudo jetson_clocks")?;
        }
        let after = Status::read(root).power_mode_name;
        if after.as_deref() != Some(mode.name.as_str()) {
            let reason = format!("nvpmodel reports success, but the mode is {}", after.as_deref().unwrap_or("unknown"));
            return Err(Run::Gpu { reason, hint: Some(format!("run `{command}` and read what it says")) }.into());
        }
    }
    Ok(ModeChange {
        device: board.device.key.clone(),
        power_mode_id: mode.id,
        power_mode_name: mode.name.clone(),
        power_budget_w: mode.power.map(Watts::value),
        from: board.current.clone(),
        steps: [command].into_iter().chain(clocks).map(|command| ShellStep { command }).collect(),
        applied: asked.apply,
        notes: notes.into_iter().chain(context.notes()).collect(),
    })
}

/// What a tool's answer means for whoever asked.
pub(super) fn done(answer: Answer, command: &str) -> Result<()> {
    let refuse = |reason: String, hint: String| Err(Run::Gpu { reason, hint: Some(hint) }.into());
    match answer {
        Answer::Done => Ok(()),
        Answer::NeedsReboot => {
            let hint = format!("run `{command}` and answer YES: the board restarts in the new mode");
            refuse("this mode needs a restart of the board; nothing was changed".to_owned(), hint)
        }
        Answer::Refused(reason) => refuse(reason, format!("it needs NVIDIA's tools and root: run `{command}`")),
    }
}
