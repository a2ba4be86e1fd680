use std::collections::BTreeMap;

use roofline_core::units::{Celsius, Hertz, Joules, Watts};
use roofline_run::telemetry::{
    ClockDomain, Holder, Memory, Reading, Source, Status, Throttle, Unread, Utilization, Way,
};

use super::*;
use crate::report;

/// An H200 that knows everything but where it gets too hot; or a GPU that knows nothing.
#[derive(Clone, Copy)]
struct Fake {
    silent: bool,
}

impl Fake {
    fn say<T>(self, value: T) -> Reading<T> {
        if self.silent { Err(Unread("GPU is lost".into())) } else { Ok(value) }
    }
}

impl Source for Fake {
    fn device_name(&self) -> Reading<String> {
        self.say("NVIDIA H200".into())
    }
    fn compute_capability(&self) -> Reading<String> {
        self.say("9.0".into())
    }
    fn driver_version(&self) -> Reading<String> {
        self.say("580.82.07".into())
    }
    fn clock(&self, domain: ClockDomain) -> Reading<Hertz> {
        self.say(Hertz::new(if domain == ClockDomain::Memory { 3.201e9 } else { 1.485e9 }))
    }
    fn max_clock(&self, domain: ClockDomain) -> Reading<Hertz> {
        self.say(Hertz::new(if domain == ClockDomain::Memory { 3.201e9 } else { 1.98e9 }))
    }
    fn power_draw(&self) -> Reading<Watts> {
        self.say(Watts::new(350.0))
    }
    fn instant_power(&self) -> Reading<Watts> {
        self.say(Watts::new(351.0))
    }
    fn power_limit(&self) -> Reading<Watts> {
        self.say(Watts::new(500.0))
    }
    fn temperature(&self) -> Reading<Celsius> {
        self.say(Celsius::new(51.0))
    }
    fn temperature_throttle(&self) -> Reading<Celsius> {
        Err(Unread("not supported".into()))
    }
    fn memory(&self) -> Reading<Memory> {
        let gibi = |size: f64| roofline_core::units::Bytes::new(size * f64::from(1 << 30));
        self.say(Memory { total: gibi(140.0), used: gibi(35.0), free: gibi(105.0) })
    }
    fn holders(&self) -> Reading<Vec<Holder>> {
        self.say(Vec::new())
    }
    fn utilization(&self) -> Reading<Utilization> {
        self.say(Utilization { gpu: 97, memory: 41 })
    }
    fn pcie_generation(&self) -> Reading<u32> {
        self.say(5)
    }
    fn pcie_width(&self) -> Reading<u32> {
        self.say(16)
    }
    fn pcie_traffic(&self, way: Way) -> Reading<roofline_core::units::ByteRate> {
        self.say(roofline_core::units::ByteRate::new(if way == Way::Sent { 1.5e9 } else { 2.5e6 }))
    }
    fn multiprocessors(&self) -> Reading<u32> {
        self.say(132)
    }
    fn throttle_reasons(&self) -> Reading<Vec<Throttle>> {
        self.say(vec![Throttle::SwPowerCap])
    }
    fn total_energy(&self) -> Reading<Joules> {
        self.say(Joules::new(1e6))
    }
}

const TALKING: Fake = Fake { silent: false };

fn looking(source: Fake, index: u32) -> Watched {
    Watched::new(&Context::pure(), Box::new(source), index)
}

fn watched(live: Live, looks: u32) -> String {
    let mut out = Vec::new();
    let interval = Duration::from_millis(20);
    // Half an interval more, so that a slow machine makes fewer looks but never too many.
    let seconds = interval * (looks - 1) + interval / 2;
    watch(&looking(TALKING, 0), live, interval, Some(seconds), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_registry_knows_what_the_driver_reports() {
    let look = looking(TALKING, 3).look();
    let fields = serde_json::to_value(&look).unwrap();
    assert_eq!(
        (&fields["gpu_index"], &fields["device"], &fields["tdp_w"]),
        (&3.into(), &"h200_sxm".into(), &700.0.into())
    );
    assert_eq!(fields["power_of_tdp"], 0.5);
    assert_eq!(fields["mem_used_mb"], 35 * 1024);
    assert_eq!(fields["errors"], serde_json::json!({ "temperature_throttle_c": "not supported" }));
}

#[test]
fn json_is_one_object_per_look() {
    let text = watched(Live::Json, 3);
    let looks: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!((1..=3).contains(&looks.len()), "{text}");
    assert!(looks.iter().all(|look| look["power_draw_w"] == 350), "{text}");
    assert!(looks.is_sorted_by_key(|look| look["elapsed_s"].as_f64().unwrap().to_bits()));
}

#[test]
fn csv_has_one_header_and_the_same_columns_whatever_fails() {
    let text = watched(Live::Csv, 3);
    assert_eq!(text.matches("power_draw_w").count(), 1, "{text}");
    let header = |source: Fake| row(&looking(source, 0).look()).0;
    assert_eq!(header(TALKING), header(Fake { silent: true }));
    assert!(text.contains("temperature_throttle_c: not supported"), "{text}");
}

#[test]
fn a_log_has_a_line_per_look() {
    let text = watched(Live::Lines, 2);
    let line = text.lines().next().unwrap();
    assert!(
        line.ends_with("busy  97 %  memory 35.0 GiB  power 350 W  SM 1485 MHz  51 °C  power limit  1 not read"),
        "{line}"
    );
}

#[test]
fn a_frame_goes_over_the_one_before() {
    let mut out = Vec::new();
    let (look, mut history, mut screen) = (looking(TALKING, 0).look(), History::default(), Screen::default());
    history.push(&look);
    let view = View { look: &look, history: &history };
    screen.draw(&view, (80, 24), &mut out).unwrap();
    let first = String::from_utf8(std::mem::take(&mut out)).unwrap();
    screen.draw(&view, (80, 24), &mut out).unwrap();
    let second = String::from_utf8(std::mem::take(&mut out)).unwrap();
    assert!(!first.contains("\x1b[14A") && second.starts_with("\x1b[14A\r"), "{second}");
    assert_eq!(second.trim_start_matches("\x1b[14A\r"), first);
    screen.draw(&view, (80, 5), &mut out).unwrap();
    assert_eq!(screen.drawn, 4, "a low terminal is not scrolled");
}

/// A look whose moment is known, so that a picture of it is always the same.
fn still(source: Fake) -> Look {
    Look { time: "DATE".into(), elapsed_s: 30.0, ..looking(source, 0).look() }
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn view(source: Fake, width: usize) -> String {
    let look = still(source);
    let mut history = History::default();
    for (second, power) in (0_u32..=30).zip((100..).step_by(13)) {
        let status = Status { power_draw: Some(Watts::new(f64::from(power))), ..look.status.clone() };
        history.push(&Look { elapsed_s: f64::from(second), status, ..still(source) });
    }
    plain(&View { look: &look, history: &history }.lines(width).join("\n"))
}

#[test]
fn the_live_view() {
    insta::assert_snapshot!("monitor_live", view(TALKING, 100));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in [0, 1, 12, 13, 14, 40, 79] {
        let text = view(TALKING, width);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
    }
}

#[test]
fn one_look_as_a_table() {
    let text = report::render(&Shown::all(&still(TALKING)), Format::Text).unwrap();
    insta::assert_snapshot!("monitor_once", plain(&text));
}

/// A GPU that fell off its bus is shown as that, not as zeros.
#[test]
fn a_silent_gpu_has_reasons_and_no_numbers() {
    let look = Look {
        status: Status { errors: BTreeMap::from([("memory", "lost".into())]), ..Status::default() },
        ..still(TALKING)
    };
    let text = plain(&report::render(&Shown::all(&look), Format::Text).unwrap());
    assert!(text.contains("memory (lost)") && !text.contains(" 0 W"), "{text}");
    insta::assert_snapshot!("monitor_silent", view(Fake { silent: true }, 60));
}

#[test]
fn times_are_seconds() {
    assert_eq!(interval("0.5"), Ok(0.5));
    assert_eq!(duration("90s"), Ok(90.0));
    for bad in ["0", "-1", "nan", "inf", "", "fast", "1e99"] {
        assert!(interval(bad).is_err() && duration(bad).is_err(), "{bad}");
    }
}
