use roxmltree::Document;

use super::{Pareto, samples, *};

const THEMES: [Theme; 2] = [Theme::Light, Theme::Dark];

/// The SVG without the font, which says nothing in a snapshot.
fn without_font(svg: &str) -> String {
    let (before, rest) = svg.split_once("base64,").unwrap();
    format!("{before}base64,...{}", &rest[rest.find(')').unwrap()..])
}

fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).unwrap();
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.map(|node| node.text().unwrap_or_default().to_owned()).collect()
}

pub(super) fn rooflines() -> Vec<Roofline> {
    let mut all = vec![Roofline::default(), samples::h200(), samples::three(), samples::model(), samples::hostile()];
    all.extend((0..6).map(|seed| samples::scattered(60, seed)));
    all.push(samples::crowded());
    all.push(Roofline { memories: Vec::new(), ..samples::three() });
    all.push(Roofline { ceilings: Vec::new(), ..samples::three() });
    all.push(Roofline { points: samples::three().points, ..Roofline::default() });
    all
}

#[test]
fn every_svg_is_well_formed_and_finite() {
    for theme in THEMES {
        let mut all: Vec<String> = rooflines().iter().map(|roofline| roofline.drawing(theme).svg()).collect();
        all.extend([samples::lines().drawing(theme).svg(), Lines::default().drawing(theme).svg()]);
        all.extend([samples::shares().drawing(theme).svg(), Shares::default().drawing(theme).svg()]);
        all.extend([samples::pareto().drawing(theme).svg(), Pareto::default().drawing(theme).svg()]);
        all.extend([samples::times().drawing(theme).svg(), Times::default().drawing(theme).svg()]);
        for svg in all {
            let document = Document::parse(&svg).unwrap();
            let numbers = document.descendants().flat_map(|node| node.attributes()).map(|attribute| attribute.value());
            assert!(numbers.into_iter().all(|value| !value.contains("NaN") && !value.contains("inf")), "{svg}");
            assert!(document.descendants().all(|node| !node.has_tag_name("script")));
        }
    }
}

#[test]
fn every_point_keeps_its_tooltip() {
    let svg = samples::scattered(60, 2).drawing(Theme::Light).svg();
    let document = Document::parse(&svg).unwrap();
    let titles: String =
        document.descendants().filter(|node| node.has_tag_name("title")).filter_map(|n| n.text()).collect();
    assert!((0..60).all(|at| titles.contains(&format!("layer {at} proj "))));
    assert!(titles.contains(" FLOP/B, ") && titles.contains(" TFLOP/s, measured"));
}

#[test]
fn texts_from_outside_arrive_as_texts() {
    let hostile = samples::hostile();
    let svg = hostile.drawing(Theme::Dark).svg();
    assert!(texts(&svg).iter().any(|text| text.starts_with("</text><script>alert('x')</script>&\"\u{fffd}")));
    assert!(!svg.contains('\u{1b}') && !svg.contains("<script"));
    assert!(!hostile.terminal(80, 20, false).contains('\u{1b}'));
}

#[test]
fn terminal_pictures_fit_the_width() {
    for width in [0, 1, 9, 24, 40, 80, 200] {
        for height in [0, 5, 24] {
            for color in [false, true] {
                let mut all: Vec<String> = rooflines().iter().map(|r| r.terminal(width, height, color)).collect();
                all.push(samples::lines().terminal(width, height, color));
                all.push(Lines::default().terminal(width, height, color));
                all.push(samples::shares().terminal(width, height, color));
                all.push(Shares::default().terminal(width, height, color));
                all.push(samples::times().terminal(width, color));
                all.push(Times::default().terminal(width, color));
                for text in all {
                    let plain = anstream::adapter::strip_str(&text).to_string();
                    assert!(plain.lines().all(|line| cells::text_width(line) <= width), "{width}:\n{plain}");
                    assert!(color || plain == text);
                }
            }
        }
    }
}

#[test]
fn absurd_lines_and_shares_are_drawn_without_their_absurd_parts() {
    let values = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e308, 1e-310, 1.0];
    let points: Vec<(f64, f64)> = values.iter().flat_map(|x| values.iter().map(|y| (*x, *y))).collect();
    for (log_x, log_y) in [(false, false), (true, false), (true, true)] {
        let series = vec![Series { label: "<&>".to_owned(), points: points.clone() }; 40];
        let lines = Lines { log_x, log_y, series, ..samples::lines() };
        assert!(!lines.drawing(Theme::Light).svg().contains("NaN") && !lines.terminal(60, 20, true).is_empty());
    }
    let parts = values.iter().map(|value| ("<&>".to_owned(), *value)).collect();
    let shares = Shares { bars: vec![Bar { label: "<&>".to_owned(), parts }], ..Shares::default() };
    assert!(texts(&shares.drawing(Theme::Dark).svg()).contains(&"100 %".to_owned()));
}

#[test]
fn small_parts_become_one() {
    let svg = texts(&samples::shares().drawing(Theme::Light).svg());
    assert!(svg.contains(&"other".to_owned()) && svg.contains(&"gate and up".to_owned()));
    assert!(!svg.contains(&"sampling".to_owned()));
}

#[test]
fn a_roofline() {
    let roofline = Roofline { ceilings: samples::h200().ceilings.split_off(2), ..samples::three() };
    insta::assert_snapshot!("roofline_svg", without_font(&roofline.drawing(Theme::Light).svg()));
    insta::assert_snapshot!("roofline_terminal", roofline.terminal(80, 22, false));
}

#[test]
fn a_line_chart() {
    let mut lines = samples::lines();
    lines.series.truncate(2);
    insta::assert_snapshot!("lines_svg", without_font(&lines.drawing(Theme::Light).svg()));
    insta::assert_snapshot!("lines_terminal", lines.terminal(70, 18, false));
}

#[test]
fn shares_of_time() {
    let mut shares = samples::shares();
    shares.bars.truncate(2);
    insta::assert_snapshot!("shares_svg", without_font(&shares.drawing(Theme::Light).svg()));
    insta::assert_snapshot!("shares_terminal", shares.terminal(70, 18, false));
}

#[test]
fn plans_on_a_front() {
    let pareto = samples::pareto();
    insta::assert_snapshot!("pareto_svg", without_font(&pareto.drawing(Theme::Light).svg()));
    insta::assert_snapshot!("pareto_terminal", pareto.terminal(70, 18, false));
    // A limit that is far away would push the plans together, and is not drawn.
    let far = Pareto { limit: Some(1e6), ..pareto };
    assert!(!far.drawing(Theme::Light).svg().contains("what there is"));
}

#[test]
fn times_of_kernels() {
    let times = samples::times();
    insta::assert_snapshot!("times_svg", without_font(&times.drawing(Theme::Light).svg()));
    insta::assert_snapshot!("times_terminal", times.terminal(90, false));
    // Numbers give way to the bars, the last of them last.
    let narrow = times.terminal(48, false);
    assert!(narrow.contains("of roof") && !narrow.contains("ideal  expected") && narrow.contains('█'), "{narrow}");
}

/// What stands beside the picture is not said again, and a kernel's two points are one entry.
#[test]
fn a_brief_legend_has_names_alone() {
    let pair = |label: &str| {
        let point = |efficiency| samples::point(label, Class::Product, "fp8", 600.0, efficiency);
        [point(1.0), point(0.5)]
    };
    let points = [pair("q_proj"), pair("o_proj")].concat();
    let text = Roofline { points, brief: true, ..samples::h200() }.terminal(80, 22, false);
    assert!(text.ends_with("points: small letters are predicted, capitals measured\na fp8 q_proj, o_proj\n"), "{text}");
}
