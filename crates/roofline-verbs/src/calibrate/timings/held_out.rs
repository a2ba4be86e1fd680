//! Every timing beside what terms fitted to other shapes say of it, as a table for whoever wants to look.

use std::fmt::Write;

use roofline_core::{
    Device,
    calibration::{Calibration, Shape, TermSpec, Terms, TimedFit, Timing},
};

/// Rows of CSV.
pub(super) struct Table(String);

/// What every row begins with.
const COLUMNS: &str = "device,stack,op,dtype,library,m,n,k,batch,queries,context,heads,kv_heads,head_dim,window,measured_us,\
                       predicted_us,ideal_us,terms_us";

impl Table {
    pub(super) fn new() -> Self {
        let mut header = COLUMNS.to_owned();
        for spec in TermSpec::all() {
            let _ = write!(header, ",without_{}_us", spec.name);
        }
        Self(header + "\n")
    }

    /// The rows of one device and stack: measured, predicted by terms that never saw the shape, the ideal roofline's, and by the
    /// terms that are kept: with all of them, and with each left out.
    pub(super) fn add(&mut self, calibration: &Calibration, device: &Device, fits: &[TimedFit]) {
        let Terms::Timed(terms) = &calibration.terms else { return };
        for fit in fits {
            let library = fit.terms.library.as_ref().map(|library| library.name.as_str());
            for (timing, predicted) in &fit.held_out {
                let Timing { kernel, time } = timing;
                let (op, dtype) = (kernel.shape.op(), kernel.dtype);
                let first = [&calibration.device, &calibration.stack, op.name(), dtype.name(), library.unwrap_or("")];
                let micros = |seconds: f64| format!("{:.4}", seconds * 1e6);
                let mut cells: Vec<String> = first.map(str::to_owned).to_vec();
                cells.extend(sides(&kernel.shape));
                let plain = terms.as_timed(kernel, library).unwrap_or_default();
                cells.extend([time.value(), *predicted, kernel.floor(device).value(), plain].map(micros));
                let without = terms.without_each(kernel, library);
                cells.extend(TermSpec::all().iter().map(|spec| {
                    let found = without.iter().find(|(name, _)| *name == spec.name);
                    found.map_or_else(String::new, |(_, time)| micros(*time))
                }));
                self.0 += &cells.join(",");
                self.0.push('\n');
            }
        }
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

/// The dimensions of a shape, those of the other operator empty.
fn sides(shape: &Shape) -> Vec<String> {
    let (product, attention): (Vec<f64>, Vec<f64>) = match *shape {
        Shape::Product { m, n, k } => (vec![m, n, k], Vec::new()),
        Shape::Attention { batch, queries, context, heads, kv_heads, head_dim, window, .. } => {
            (Vec::new(), vec![batch, queries, context, heads, kv_heads, head_dim, window])
        }
    };
    let cell = |values: &[f64], at: usize| values.get(at).map_or_else(String::new, f64::to_string);
    (0..3).map(|at| cell(&product, at)).chain((0..7).map(|at| cell(&attention, at))).collect()
}
