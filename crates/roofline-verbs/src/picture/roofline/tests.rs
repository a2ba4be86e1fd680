use super::{
    super::{canvas::Rect, samples, tests::rooflines},
    Roofline,
};

#[test]
fn labels_overlap_nothing() {
    for roofline in rooflines() {
        let scene = roofline.scene(80.0);
        let mut boxes: Vec<Rect> = scene.labels.iter().map(|label| label.placed.rect).collect();
        let marks = scene.clusters.iter().flat_map(|cluster| &cluster.marks);
        let glyphs: Vec<Rect> =
            marks.map(|mark| Rect::around(mark.spot, 2.0 * scene.radius, 2.0 * scene.radius)).collect();
        while let Some(label) = boxes.pop() {
            assert!(boxes.iter().chain(&glyphs).all(|other| !other.overlaps(&label)), "{label:?}");
            assert!(label.x > 0.0 && label.right() < 960.0, "{label:?}");
        }
    }
}

#[test]
fn few_points_are_all_labelled_and_many_mostly() {
    let labelled = |roofline: &Roofline| roofline.scene(80.0).labels.len();
    assert_eq!(labelled(&samples::three()), 3);
    assert!(labelled(&samples::scattered(60, 1)) >= 40);
}

#[test]
fn points_of_the_roof_are_drawn_on_the_roof() {
    let roofline = samples::three();
    let scene = roofline.scene(80.0);
    let [diagonal] = scene.plan.memories.as_slice() else { panic!("one memory") };
    let ((x0, y0), (x1, y1)) = scene.segment(diagonal);
    let off = |(x, y): (f64, f64)| (y0 + (y1 - y0) / (x1 - x0) * (x - x0) - y).abs();
    let ceilings: Vec<_> = scene.plan.ceilings.iter().map(|roof| scene.segment(roof)).collect();
    assert!(ceilings.len() == 4 && ceilings.iter().all(|(from, to)| from.1 == to.1 && off(*from) < 1e-6));
    assert!(scene.plan.ridges.iter().all(|ridge| off(scene.drop_line(*ridge).0) < 1e-6));
    // The decode total waits for memory, the prefill total for the BF16 unit.
    let spots: Vec<_> = scene.clusters.iter().map(|cluster| cluster.marks[0].spot).collect();
    assert!(off(spots[0]) < 1e-6 && (spots[2].1 - ceilings[2].0.1).abs() < 1e-6, "{spots:?}");
}
