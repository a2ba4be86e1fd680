use super::*;

fn candidate(name: &str, fp16: f64, time: f64, power: Option<f64>, batch: u64) -> Candidate {
    let registry = roofline_core::Registry::builtin();
    let nano = registry.find("jetson_orin_nano_8gb").unwrap();
    let mode = PowerMode {
        name: name.to_owned(),
        power: power.map(roofline_core::units::Watts::new),
        fp16: roofline_core::units::FlopRate::new(fp16),
        ..nano.power_modes[0].clone()
    };
    let time = Seconds::new(time);
    let energy = mode.power.map(|power| power * time / batch as f64);
    let (precision, method) = ("w4a16".to_owned(), "mse".to_owned());
    let (memory, bound, bits) = (Bytes::ZERO, Bound::Memory, 4);
    Candidate { mode, precision, method, batch, bits, time, energy, memory, bound }
}

#[test]
fn goals_choose() {
    let all = [
        candidate("15W", 10e12, 1e-3, Some(15.0), 1),
        candidate("7W", 3e12, 1e-3, Some(7.0), 1),
        candidate("MAXN", 12e12, 0.8e-3, None, 1),
        candidate("15W", 10e12, 1.5e-3, Some(15.0), 4),
    ];
    let name = |goal| select(&all, goal).map(|chosen| (chosen.mode.name.clone(), chosen.batch)).unwrap();
    assert_eq!(name(ScheduleGoal::Latency), ("MAXN".to_owned(), 1));
    assert_eq!(name(ScheduleGoal::Throughput), ("15W".to_owned(), 4));
    // 15 W x 1.5 ms over 4 tokens is 5.6 mJ; 7 W x 1 ms is 7 mJ; without a budget there is nothing to compare.
    assert_eq!(name(ScheduleGoal::Power), ("15W".to_owned(), 4));
    // The same time: the one with more compute.
    assert_eq!(select(&all[..2], ScheduleGoal::Latency).unwrap().mode.name, "15W");
    assert_eq!(select(&all[..2], ScheduleGoal::Power).unwrap().mode.name, "7W");
    assert!(select(&[], ScheduleGoal::Power).is_none());
    assert!(select(&all[2..3], ScheduleGoal::Power).is_none());
}
