//! `roofline jetson set-mode`: the command for a mode, found by its name.

use roofline_run::{
    Error,
    jetson::{Answer, Root, Status, jetson_clocks, set_mode as ask},
};
use serde::Serialize;

use super::{Board, watts};
use crate::{
    cli::{OnArgs, SetModeArgs},
    failure::Failure,
    report::{Report, Section},
};

#[derive(Serialize)]
pub(super) struct Chosen {
    device: String,
    power_mode_id: u32,
    power_mode_name: String,
    power_budget_w: Option<f64>,
    from: Option<String>,
    /// What to run.
    pub(super) steps: Vec<Step>,
    /// Whether it was run.
    pub(super) applied: bool,
    pub(super) notes: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Step {
    pub(super) command: String,
}

pub(super) fn set_mode(root: &Root, args: &SetModeArgs) -> Result<Chosen, Failure> {
    if args.apply && !root.is_this_machine() {
        let hint = "leave out --apply to see the command, or run it on the board without --root";
        return Err(Failure::usage("the mode of a copied tree cannot be changed", hint));
    }
    let board = Board::open(root, &OnArgs { on: None })?;
    let chosen = board.find(&args.name)?;
    let mode = &chosen.mode;
    let now = board.now();
    let command = format!("sudo nvpmodel -m {}", mode.id);
    let clocks = args.clocks.then(|| "sudo jetson_clocks".to_owned());
    let mut notes = Vec::new();
    if let Some(now) = now.filter(|now| now.mode.name != mode.name) {
        let unlimited = |power: Option<roofline_core::units::Watts>| {
            power.map_or(f64::INFINITY, roofline_core::units::Watts::value)
        };
        let (before, after) = (unlimited(now.mode.power), unlimited(mode.power));
        let words = if after > before { "raises" } else { "lowers" };
        let name = |mode: &roofline_core::device::PowerMode| {
            mode.power.map_or_else(|| "no limit".to_owned(), |_| watts(mode.power))
        };
        if (after - before).abs() > 0.0 {
            notes.push(format!("this {words} the budget, from {} to {}", name(&now.mode), name(mode)));
        }
        if now.mode.sm != mode.sm {
            notes.push(
                "parts of the GPU go on or off: nvpmodel asks for a restart, and changes nothing before it".to_owned(),
            );
        }
    }
    let same = now.is_some_and(|now| now.mode.name == mode.name);
    if same {
        notes.push("the board is in this mode".to_owned());
    }
    if args.apply {
        run(ask(mode.id), &command)?;
        if args.clocks {
            run(jetson_clocks(), "sudo jetson_clocks")?;
        }
        let after = Status::read(root).power_mode_name;
        if after.as_deref() != Some(mode.name.as_str()) {
            let reason = format!("nvpmodel reports success, but the mode is {}", after.as_deref().unwrap_or("unknown"));
            return Err(Error::Gpu { reason, hint: Some(format!("run `{command}` and read what it says")) }.into());
        }
    }
    Ok(Chosen {
        device: board.device.key.clone(),
        power_mode_id: mode.id,
        power_mode_name: mode.name.clone(),
        power_budget_w: mode.power.map(roofline_core::units::Watts::value),
        from: board.current.clone(),
        steps: [command].into_iter().chain(clocks).map(|command| Step { command }).collect(),
        applied: args.apply,
        notes,
    })
}

/// What a tool's answer means for whoever asked.
pub(super) fn run(answer: Answer, command: &str) -> Result<(), Failure> {
    let refuse = |reason: String, hint: String| Err(Error::Gpu { reason, hint: Some(hint) }.into());
    match answer {
        Answer::Done => Ok(()),
        Answer::NeedsReboot => {
            let hint = format!("run `{command}` and answer YES: the board restarts in the new mode");
            refuse("this mode needs a restart of the board; nothing was changed".to_owned(), hint)
        }
        Answer::Refused(reason) => refuse(reason, format!("it needs NVIDIA's tools and root: run `{command}`")),
    }
}

impl Report for Chosen {
    const ROWS: &'static str = "steps";

    fn sections(&self) -> Vec<Section> {
        let from = self.from.as_ref().map_or_else(String::new, |from| format!(", from {from}"));
        let mut sections = vec![Section::Heading(format!(
            "{} (id {}) of {}{from}",
            self.power_mode_name, self.power_mode_id, self.device
        ))];
        sections.extend(self.steps.iter().map(|step| Section::Line(step.command.clone())));
        sections.extend(self.notes.iter().map(|note| Section::Paragraph(format!("Note: {note}."))));
        let done = if self.applied { "Done." } else { "Nothing was changed; --apply runs it." };
        sections.push(Section::Paragraph(done.to_owned()));
        sections
    }
}
