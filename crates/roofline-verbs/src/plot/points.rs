//! Measured points from a CSV file: `label,ai,tflops` and perhaps `precision`, which decides the colour; with a header, in
//! any order.

use std::path::Path;

use csv::{Position, ReaderBuilder, StringRecord, Trim};
use roofline_core::units::{FlopRate, Intensity};

use crate::{
    Context, Error, Result,
    context::files::read_points,
    picture::{Class, Point},
};

pub(super) fn read(context: &Context, path: &Path) -> Result<Vec<Point>> {
    if !context.is_local() {
        return Err(Error::request("`⟨measured⟩` names a file", "no file is read for this caller"));
    }
    parse(&read_points(path)?).map_err(|reason| {
        let hint = "write a header `label,ai,tflops` and a line per point, such as `q_proj,0.99,4.1`";
        Error::request(format!("{}: {reason}", path.display()), hint)
    })
}

fn parse(text: &str) -> Result<Vec<Point>, String> {
    let mut rows = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(text.as_bytes());
    let header = rows.headers().map_err(|error| error.to_string())?.clone();
    if header.is_empty() {
        return Err("no header".to_owned());
    }
    let column = |known: &[&str]| header.iter().position(|name| known.contains(&name.to_lowercase().as_str()));
    let label = column(&["label", "name"]).ok_or("no column `label`")?;
    let intensity = column(&["ai", "oi", "intensity"]).ok_or("no column `ai`")?;
    let rate = column(&["tflops", "tflop/s", "achieved_tflops"]).ok_or("no column `tflops`")?;
    let series = column(&["precision", "series"]);
    let point = |cells: StringRecord| {
        let number = |column: usize| {
            let cell = cells.get(column).unwrap_or_default();
            cell.parse().ok().filter(|value| (1e-9..=1e9).contains(value)).ok_or_else(|| {
                let line = cells.position().map_or(0, Position::line);
                format!("line {line}: `{cell}` is no number that a roofline shows")
            })
        };
        Ok(Point {
            label: cells.get(label).unwrap_or_default().to_owned(),
            intensity: Intensity::new(number(intensity)?),
            rate: FlopRate::new(number(rate)? * 1e12),
            class: Class::Product,
            series: series.and_then(|at| cells.get(at)).unwrap_or("measured").to_owned(),
            measured: true,
        })
    };
    rows.records().map(|row| row.map_err(|error| error.to_string()).and_then(point)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_in_any_order() {
        let points = parse("tflops, OI ,name\n4.1,0.99,q_proj\n\n500,300,gemm\n").unwrap();
        assert_eq!((points.len(), points[0].label.as_str(), points[1].rate.value()), (2, "q_proj", 5e14));
        assert!(points.iter().all(|point| point.measured && point.series == "measured"));
        assert_eq!(parse("label,ai,tflops\n\"a, b\",1,2").unwrap()[0].label, "a, b");
        assert_eq!(parse("label,ai,tflops\n\"the \"\"big\"\" one\",1,2").unwrap()[0].label, "the \"big\" one");
        assert_eq!(parse("\"label\",\"AI\",\"tflops\"\nx,1,2").unwrap()[0].label, "x");
        assert_eq!(parse("label,precision,ai,tflops\nx,bf16,1,2").unwrap()[0].series, "bf16");
    }

    #[test]
    fn bad_files_say_where() {
        let why = |text: &str| parse(text).err().unwrap();
        assert_eq!(why(""), "no header");
        assert_eq!(why("label,ai\nx,1"), "no column `tflops`");
        assert_eq!(why("label,ai,tflops\nx,1,fast"), "line 2: `fast` is no number that a roofline shows");
        assert_eq!(why("label,ai,tflops\nx,0,1"), "line 2: `0` is no number that a roofline shows");
        assert_eq!(why("label,ai,tflops\nx"), "line 2: `` is no number that a roofline shows");
        assert_eq!(why("label,ai,tflops\nx,NaN,1"), "line 2: `NaN` is no number that a roofline shows");
    }
}
