//! An export of Nsight Compute: `ncu --csv`, one line for each figure of a kernel, or one for each kernel (`--page raw`).
//!
//! Only what says how long a kernel ran and what it moved is read. Nsight Compute knows kernels, not the operators that
//! started them, so they stand under their own names.

use std::{
    collections::{BTreeMap, HashMap},
    io::Read,
};

use super::source::Source;

/// A kernel by its name: how often, how long, and what went to memory and back where that was counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted {
    pub(super) name: String,
    pub(super) calls: u64,
    pub(super) seconds: f64,
    pub(super) bytes: Option<f64>,
}

/// One run of a kernel.
#[derive(Default)]
struct Run {
    name: String,
    seconds: Option<f64>,
    read: Option<f64>,
    written: Option<f64>,
    both: Option<f64>,
    rate: Option<f64>,
}

/// Longest table, which is kept whole: ten thousand kernels with all that Nsight Compute knows of them.
const LONGEST: u64 = 256 << 20;
/// Most runs that are kept.
const MOST_RUNS: usize = 2_000_000;

impl Run {
    /// Takes a figure that matters, in its unit.
    fn note(&mut self, metric: &str, unit: &str, text: &str) -> Result<(), String> {
        let place = match (metric, unit.ends_with("/second") || unit.ends_with("/s")) {
            ("gpu__time_duration.sum" | "Duration", _) => &mut self.seconds,
            ("dram__bytes_read.sum", false) => &mut self.read,
            ("dram__bytes_write.sum", false) => &mut self.written,
            ("dram__bytes.sum", false) => &mut self.both,
            ("dram__bytes.sum.per_second" | "Memory Throughput", true) => &mut self.rate,
            _ => return Ok(()),
        };
        if text.is_empty() || text == "n/a" || text == "(!) n/a" {
            return Ok(());
        }
        let value = number(text).ok_or_else(|| {
            format!("`{text}` of {metric} is no number; export it with the environment variable LC_ALL=C")
        })?;
        *place = Some(value * scale(unit).ok_or_else(|| format!("`{unit}` of {metric} is no unit that is known"))?);
        Ok(())
    }

    fn bytes(&self) -> Option<f64> {
        let sum = self.read.zip(self.written).map(|(read, written)| read + written);
        self.both.or(sum).or(self.rate.zip(self.seconds).map(|(rate, seconds)| rate * seconds))
    }
}

/// Digits, in groups of three where commas are.
fn number(text: &str) -> Option<f64> {
    let (whole, rest) = text.split_once('.').map_or((text, ""), |(whole, rest)| (whole, rest));
    let mut groups = whole.split(',');
    let first = groups.next()?;
    let grouped = whole.contains(',');
    let digits = |group: &str| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit());
    let fits = digits(first) && (!grouped || first.len() <= 3) && groups.all(|group| group.len() == 3 && digits(group));
    let fits = fits && rest.bytes().all(|byte| byte.is_ascii_digit());
    let value: f64 = fits.then(|| text.replace(',', "").parse().ok())??;
    (value <= 1e18).then_some(value)
}

/// A unit in seconds, bytes, or bytes per second.
fn scale(unit: &str) -> Option<f64> {
    let unit = unit.strip_suffix("/second").or_else(|| unit.strip_suffix("/s")).unwrap_or(unit);
    Some(match unit {
        "ns" | "nsecond" => 1e-9,
        "us" | "usecond" => 1e-6,
        "ms" | "msecond" => 1e-3,
        "s" | "second" | "byte" | "B" => 1.0,
        "Kbyte" | "KB" => 1e3,
        "Mbyte" | "MB" => 1e6,
        "Gbyte" | "GB" => 1e9,
        "Tbyte" | "TB" => 1e12,
        _ => return None,
    })
}

/// Every kernel by its name, the longest first. What a program printed before the table is passed over.
pub(super) fn read(source: Source) -> Result<Vec<Counted>, String> {
    let mut bytes = Vec::new();
    source.shorter(LONGEST).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&bytes);
    let start = text
        .match_indices("\"ID\"")
        .map(|(at, _)| at)
        .find(|at| *at == 0 || text.as_bytes().get(at - 1) == Some(&b'\n'))
        .ok_or("neither a trace of torch.profiler nor a table of `ncu --csv`: no line begins with \"ID\"")?;
    let mut lines = csv::ReaderBuilder::new().flexible(true).from_reader(&text.as_bytes()[start..]);
    let names: Vec<String> =
        lines.headers().map_err(|error| error.to_string())?.iter().map(|name| name.trim().to_owned()).collect();
    let find = |known: &str| names.iter().position(|name| name == known);
    let kernel = find("Kernel Name").ok_or("no column `Kernel Name`")?;
    let tall = find("Metric Name").zip(find("Metric Value")).map(|(name, value)| (name, find("Metric Unit"), value));
    let mut runs: BTreeMap<u64, Run> = BTreeMap::new();
    let mut units: Vec<String> = Vec::new();
    for line in lines.records() {
        let line = line.map_err(|error| error.to_string())?;
        let cell = |at: usize| line.get(at).unwrap_or_default().trim();
        let here = line.position().map_or(0, csv::Position::line);
        if cell(0).is_empty() && tall.is_none() {
            units = line.iter().map(|unit| unit.trim().to_owned()).collect();
            continue;
        }
        let wrong = |why: String| format!("line {here} of the table: {why}");
        // Programs print behind the table, too.
        let Ok(id) = cell(0).parse::<u64>() else { continue };
        let run = runs.entry(id).or_default();
        cell(kernel).clone_into(&mut run.name);
        match tall {
            Some((name, unit, value)) => run.note(cell(name), unit.map_or("", cell), cell(value)).map_err(wrong)?,
            None => {
                for (at, name) in names.iter().enumerate() {
                    run.note(name, units.get(at).map_or("", String::as_str), cell(at)).map_err(wrong)?;
                }
            }
        }
        if runs.len() > MOST_RUNS {
            return Err(format!("more than {MOST_RUNS} kernels; profile fewer"));
        }
    }
    summed(runs)
}

fn summed(runs: BTreeMap<u64, Run>) -> Result<Vec<Counted>, String> {
    let mut by_name: HashMap<String, Counted> = HashMap::new();
    for (id, run) in runs {
        let seconds = run.seconds.ok_or_else(|| {
            format!("kernel {id} (`{}`) has no duration; ask for --metrics gpu__time_duration.sum", run.name)
        })?;
        let bytes = run.bytes();
        let entry = by_name.entry(run.name.clone()).or_insert_with(|| Counted {
            name: run.name.clone(),
            bytes: Some(0.0),
            ..Counted::default()
        });
        entry.calls += 1;
        entry.seconds += seconds;
        entry.bytes = entry.bytes.zip(bytes).map(|(sum, bytes)| sum + bytes);
    }
    let mut all: Vec<Counted> = by_name.into_values().collect();
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
    if all.is_empty() { Err("the table has no kernel".to_owned()) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn of(text: &str) -> Result<Vec<Counted>, String> {
        read(Source::new(Cursor::new(text.as_bytes().to_vec()), 1 << 20).unwrap())
    }

    const TALL: &str = "==PROF== Connected to process 7\nhello\n\
        \"ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n\
        \"0\",\"copy(float *)\",\"Command line profiler metrics\",\"dram__bytes_read.sum\",\"Mbyte\",\"1,000.00\"\n\
        \"0\",\"copy(float *)\",\"Command line profiler metrics\",\"dram__bytes_write.sum\",\"Gbyte\",\"1.00\"\n\
        \"0\",\"copy(float *)\",\"Command line profiler metrics\",\"gpu__time_duration.sum\",\"usecond\",\"1,250.00\"\n\
        \"1\",\"add, twice\",\"GPU Speed Of Light Throughput\",\"Duration\",\"ns\",\"2,848\"\n\
        \"1\",\"add, twice\",\"GPU Speed Of Light Throughput\",\"Memory Throughput\",\"%\",\"14.26\"\n";

    #[test]
    fn one_line_for_each_figure() {
        let all = of(TALL).unwrap();
        assert_eq!(all[0], Counted { name: "copy(float *)".into(), calls: 1, seconds: 1.25e-3, bytes: Some(2e9) });
        assert_eq!((all[1].name.as_str(), all[1].bytes), ("add, twice", None));
        assert!((all[1].seconds - 2.848e-6).abs() < 1e-15);
    }

    #[test]
    fn one_line_for_each_kernel() {
        let text = "\"ID\",\"Kernel Name\",\"dram__bytes.sum.per_second\",\"gpu__time_duration.sum\"\n\
            \"\",\"\",\"Gbyte/second\",\"usecond\"\n\"0\",\"k\",\"100\",\"20\"\n\"1\",\"k\",\"300\",\"10\"\n";
        let all = of(text).unwrap();
        assert_eq!((all.len(), all[0].calls), (1, 2));
        assert!((all[0].bytes.unwrap() - 5e6).abs() < 1e-3);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("hello", "neither a trace"),
            ("\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n", "no kernel"),
            ("\"ID\",\"Kernel Name\",\"x\"\n\"0\",\"k\",\"1\"\n", "kernel 0 (`k`) has no duration"),
            (
                "\"ID\",\"Kernel Name\",\"Duration\"\n\"\",\"\",\"ns\"\n\"0\",\"k\",\"65,77\"\n",
                "`65,77` of Duration is no number",
            ),
            (
                "\"ID\",\"Kernel Name\",\"Duration\"\n\"\",\"\",\"weeks\"\n\"0\",\"k\",\"6\"\n",
                "`weeks` of Duration is no unit",
            ),
            (
                "\"ID\",\"Kernel Name\",\"Duration\"\n\"\",\"\",\"ns\"\n\"0\",\"k\",\"-6\"\n",
                "`-6` of Duration is no number",
            ),
        ] {
            let said = of(text).unwrap_err();
            assert!(said.contains(why), "{said} should say {why}");
        }
    }
}
