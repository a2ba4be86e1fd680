//! `roofline tiling`.

use roofline_core::tiling::Thin;
use roofline_verbs::tiling::Answer;

use crate::report::{Align, Report, Section, Shown, Table};

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "tilings";

    fn sections(&self) -> Vec<Section> {
        let Answer { m, n, k, format, device, machine, .. } = &**self;
        let (shared, l2) = (machine.shared_per_sm.value() / 1024.0, machine.l2.value() / 1024.0 / 1024.0);
        let heading =
            format!("{m} x {n} x {k} in {format} on {device}: {} SMs, {shared} KiB shared, {l2} MiB L2", machine.sm);
        if let Some(gemv) = &self.gemv {
            return split(heading, gemv);
        }
        let mut table = Table::default()
            .column("tile", Align::Left, 0)
            .column("shared", Align::Right, 2)
            .column("tiles", Align::Right, 3)
            .column("waves", Align::Right, 0)
            .column("full waves", Align::Right, 0)
            .column("full tiles", Align::Right, 1)
            .column("blocks/SM", Align::Right, 4)
            .column("occupancy", Align::Right, 1)
            .column("in L2", Align::Right, 1)
            .column("score", Align::Right, 0);
        for tiling in &self.tilings {
            let percent = |value: f64| format!("{:.1} %", 100.0 * value);
            table.row([
                format!("{}x{}x{}", tiling.tile.m, tiling.tile.n, tiling.tile.k).into(),
                format!("{:.0} KiB", tiling.shared_bytes.value() / 1024.0).into(),
                tiling.tiles.to_string().into(),
                format!("{:.2}", tiling.waves).into(),
                percent(tiling.wave_efficiency).into(),
                percent(tiling.tile_efficiency).into(),
                tiling.blocks_per_sm.to_string().into(),
                if tiling.feasible { percent(tiling.occupancy) } else { "does not fit".to_owned() }.into(),
                percent(tiling.l2_share).into(),
                format!("{:.3}", tiling.score).into(),
            ]);
        }
        let words = "score = 0.4 full waves + 0.3 occupancy + 0.3 of the operands in L2: a picture of how evenly the work falls, \
                     not a prediction of time.";
        vec![Section::Heading(heading), Section::Table(table), Section::Paragraph(words.to_owned())]
    }
}

/// A product with fewer rows than any tile: what its kernel has to keep in flight, and what that takes.
fn split(heading: String, gemv: &Thin) -> Vec<Section> {
    let Thin { rows_per_block, k_splits, blocks, blocks_per_sm, waves, latency, .. } = gemv;
    let cut = match k_splits {
        1 => String::new(),
        parts => format!(", each row cut into {parts} parts along k whose sums are added"),
    };
    let input =
        if gemv.input_in_shared { "fits shared memory" } else { "does not fit shared memory: read it in steps" };
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let facts = vec![
        fact("blocks", format!("{blocks} of {rows_per_block} warps, a row of the weight per warp{cut}")),
        fact(
            "waves",
            format!("{waves:.2} at {blocks_per_sm} blocks per SM, {:.1} % full", 100.0 * gemv.wave_efficiency),
        ),
        fact(
            "in flight",
            format!("{} per SM at any time: its share of the bandwidth, times {latency}", gemv.bytes_in_flight_per_sm),
        ),
        fact("reads", format!("{} of the weight per SM, once", gemv.bytes_per_sm)),
        fact("input", format!("{}, {input}", gemv.input_bytes)),
        fact("in L2", format!("{:.1} %", 100.0 * gemv.l2_share)),
    ];
    let words = "No tile is this short: a weight is read once and used at once, so nothing is gained by keeping it, and time is what reading takes \
                 (`roofline predict gemm` says how long). What a kernel can get wrong is to have too few bytes on their way.";
    vec![Section::Heading(heading), Section::Facts(facts), Section::Paragraph(words.to_owned())]
}
