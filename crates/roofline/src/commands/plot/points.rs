//! Measured points from a CSV file: `label,ai,tflops` and perhaps `precision`, which decides the colour; with a header, in
//! any order.

use std::path::Path;

use roofline_core::units::{FlopRate, Intensity};

use crate::{
    config,
    failure::Failure,
    plot::{Class, Point},
};

pub(super) fn read(path: &Path) -> Result<Vec<Point>, Failure> {
    let text = config::read_points(path)?;
    parse(&text).map_err(|reason| {
        let hint = "write a header `label,ai,tflops` and a line per point, such as `q_proj,0.99,4.1`";
        Failure::usage(format!("{}: {reason}", path.display()), hint)
    })
}

fn parse(text: &str) -> Result<Vec<Point>, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or("no header")?;
    let names: Vec<String> = fields(header).iter().map(|name| name.to_lowercase()).collect();
    let column = |known: &[&str]| names.iter().position(|name| known.contains(&name.as_str()));
    let label = column(&["label", "name"]).ok_or("no column `label`")?;
    let intensity = column(&["ai", "oi", "intensity"]).ok_or("no column `ai`")?;
    let rate = column(&["tflops", "tflop/s", "achieved_tflops"]).ok_or("no column `tflops`")?;
    let series = column(&["precision", "series"]);
    lines
        .map(|(at, line)| {
            let cells = fields(line);
            let number = |column: usize| {
                let value = cells.get(column).and_then(|cell| cell.parse::<f64>().ok());
                value.filter(|value| (1e-9..=1e9).contains(value)).ok_or_else(|| {
                    let cell = cells.get(column).map_or("", String::as_str);
                    format!("line {}: `{cell}` is no number that a roofline shows", at + 1)
                })
            };
            Ok(Point {
                label: cells.get(label).cloned().unwrap_or_default(),
                intensity: Intensity::new(number(intensity)?),
                rate: FlopRate::new(number(rate)? * 1e12),
                class: Class::Product,
                series: series.and_then(|at| cells.get(at)).map_or("measured", String::as_str).to_owned(),
                measured: true,
            })
        })
        .collect()
}

/// The fields of a line; one in quotes may hold commas.
pub(crate) fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => fields.last_mut().into_iter().for_each(|field| field.push(letter)),
        }
    }
    fields.into_iter().map(|field| field.trim().to_owned()).collect()
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
