//! Bars that need no picture: the longest of a group fills its width.

use crate::report::html::escape;

/// Bars of one figure.
pub(super) struct Group {
    pub(super) title: String,
    pub(super) note: &'static str,
    pub(super) bars: Vec<Bar>,
}

/// One of them.
pub(super) struct Bar {
    pub(super) name: String,
    /// How it is painted.
    pub(super) class: &'static str,
    pub(super) value: f64,
    pub(super) text: String,
}

/// All groups that have bars, beside and below each other.
pub(super) fn groups(all: &[Group]) -> String {
    let shown: String = all.iter().filter(|group| !group.bars.is_empty()).map(group).collect();
    if shown.is_empty() { shown } else { format!("<div class=\"groups\">\n{shown}</div>\n") }
}

fn group(group: &Group) -> String {
    let longest = group.bars.iter().map(|bar| bar.value).filter(|value| value.is_finite()).fold(0.0, f64::max);
    let note = if group.note.is_empty() { String::new() } else { format!(" <small>{}</small>", escape(group.note)) };
    let bars: String = group.bars.iter().map(|bar| one(bar, longest)).collect();
    format!("<div class=\"group\"><h3>{}{note}</h3>\n{bars}</div>\n", escape(&group.title))
}

fn one(bar: &Bar, longest: f64) -> String {
    let drawn = bar.value.is_finite() && longest > 0.0;
    let width = if drawn { (100.0 * bar.value / longest).max(0.5) } else { 0.0 };
    format!(
        "<div class=\"row\"><span class=\"name\">{}</span><span class=\"track\"><i class=\"{}\" style=\"width:{width:.1}%\"></i></span>\
         <span class=\"value\">{}</span></div>\n",
        escape(&bar.name),
        bar.class,
        escape(&bar.text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_fills_its_width() {
        let bar = |value: f64| Bar { name: "<b>".to_owned(), class: "after", value, text: String::new() };
        let all = groups(&[Group { title: "t".to_owned(), note: "", bars: vec![bar(1.0), bar(4.0), bar(f64::NAN)] }]);
        assert!(all.contains("width:25.0%") && all.contains("width:100.0%") && all.contains("width:0.0%"), "{all}");
        assert!(all.contains("&lt;b&gt;"), "{all}");
        assert!(groups(&[Group { title: "t".to_owned(), note: "", bars: Vec::new() }]).is_empty());
    }
}
