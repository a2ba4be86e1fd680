//! `roofline monitor`.

use clap::Args;

#[derive(Args)]
#[command(after_help = "\
Reads what the NVIDIA driver knows; nothing is changed and nothing runs on the GPU. A value that the
driver does not give is left out and named under `errors`; the others are shown.

Examples:
  roofline monitor                                 until Ctrl-C, drawn in place
  roofline monitor --once                          one look, as a table
  roofline monitor --once --json | jq .throttle_reasons
  roofline monitor --gpu 1 --interval 0.1 --seconds 60 --csv > run.csv
  roofline monitor --json --interval 2             a line of JSON every two seconds")]
pub(crate) struct MonitorArgs {
    /// Which GPU, in the order of `nvidia-smi`
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub(crate) gpu: u32,
    /// Look once
    #[arg(long, conflicts_with_all = ["interval", "seconds"])]
    pub(crate) once: bool,
    /// Seconds from one look to the next
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = interval)]
    pub(crate) interval: f64,
    /// How long to look; until Ctrl-C when left out
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    pub(crate) seconds: Option<f64>,
}

fn interval(text: &str) -> Result<f64, String> {
    within(text, 0.01, 3600.0)
}

fn duration(text: &str) -> Result<f64, String> {
    within(text, 0.01, 1e9)
}

fn within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('s').parse().map_err(|_| "seconds are a number such as 0.5".to_owned())?;
    if (least..=most).contains(&value) { Ok(value) } else { Err(format!("between {least} and {most} seconds")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds() {
        assert_eq!(interval("0.5"), Ok(0.5));
        assert_eq!(duration("90s"), Ok(90.0));
        for bad in ["0", "-1", "nan", "inf", "", "fast", "1e99"] {
            assert!(interval(bad).is_err() && duration(bad).is_err(), "{bad}");
        }
    }
}
