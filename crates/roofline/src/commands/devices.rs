//! `roofline devices`.

mod table;
mod this;

use clap::{Args, Subcommand};
use roofline_core::Device;
use roofline_verbs::{
    Context,
    devices::{Add, Answer, Request, TEMPLATE, add, devices, remove, template},
    this_machine::this_machine,
};

use crate::{
    failure::Failure,
    report::{Format, Report, Section, Shown, emit, print, style},
};

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  roofline devices --vendor nvidia --has fp8 --sort bandwidth
  roofline devices h200                       one device, with sources and power modes
  roofline devices h200 b200 mi300x           side by side
  roofline devices this                       this machine: what it is made of, what it was measured to do
  roofline devices add my-chip --bandwidth 1.2TB/s --peak bf16=300TFLOP/s --memory 64GB
  roofline devices template > my-chip.toml    a file to fill in, for `--on my-chip.toml`"
)]
pub(crate) struct DevicesArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    request: Request,
}

#[derive(Subcommand)]
enum Action {
    /// Register a device of your own
    Add(Add),
    /// A device file with every field, explained, on standard output: fill it in for a chip of your own
    #[command(after_help = "\
Examples:
  roofline devices template > my-chip.toml
  roofline predict gemv --n 4096 --k 4096 --on my-chip.toml
  roofline devices add my-chip --from my-chip.toml")]
    Template,
    /// Forget a device of your own
    #[command(after_help = "Example:\n  roofline devices remove my-chip")]
    Remove {
        /// Its name
        name: String,
    },
}

pub(crate) fn run(context: &Context, args: &DevicesArgs, form: Format) -> Result<(), Failure> {
    let request = &args.request;
    match &args.action {
        Some(Action::Add(request)) => {
            let added = add(context, request)?;
            style::talk("note", &format!("registered `{}` in {}", added.key, added.path.display()));
            Ok(())
        }
        Some(Action::Remove { name }) => {
            style::talk("note", &format!("removed {}", remove(context, name)?.display()));
            Ok(())
        }
        Some(Action::Template) if form == Format::Json => emit(&Shown::all(&template(context)?), form),
        Some(Action::Template) => print(TEMPLATE),
        None if request.names == ["this"] => emit(&Shown::all(&this_machine(context, request.measure)?), form),
        None => {
            let answer = devices(context, request)?;
            emit(&Shown::of(&answer, !request.names.is_empty()), form)
        }
    }
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "devices";

    fn sections(&self) -> Vec<Section> {
        let devices: Vec<&Device> = self.devices.iter().map(|row| &row.device).collect();
        match devices[..] {
            [device] if self.all => table::detail(device),
            _ if self.all => table::compare(&devices),
            _ => table::list(&devices),
        }
    }
}
