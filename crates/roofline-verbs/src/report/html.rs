//! A report as one HTML page: no script, no request, readable in light and in dark.

use super::{Lead, Section, Tone, table::Table};
use crate::picture::Theme;

pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2933;--muted:#5f6c7b;--line:#dfe4ea;--back:#fff;--row:#f6f8fa;\
--good:#00795a;--fair:#9a5b00;--bad:#b4420a}\
@media(prefers-color-scheme:dark){:root{--ink:#e7ebf0;--muted:#9ba7b4;--line:#2a323c;--back:#12161c;--row:#1b2129;\
--good:#2bc79b;--fair:#f0b429;--bad:#ff8a47}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:78rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.35rem;font-weight:600;margin:0 0 1rem}h2{font-size:1.15rem;margin-top:2rem}\
.lead{border-left:.3rem solid var(--tone);background:var(--row);border-radius:.4rem;padding:.9rem 1.25rem;margin:0 0 1.5rem}\
.lead p{margin:.45rem 0 0;max-width:72rem}.lead .word{font-size:1.6rem;line-height:1.2;font-weight:700;letter-spacing:.03em;\
color:var(--tone);margin:0}.lead .first{font-size:1.08rem}.lead .name{color:var(--muted)}\
.good{--tone:var(--good)}.fair{--tone:var(--fair)}.bad{--tone:var(--bad)}\
details{border-top:1px solid var(--line);padding:.6rem 0}summary{cursor:pointer;font-weight:600}\
.wide{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums;font-size:.875rem}\
th,td{padding:.25rem .55rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}\
td:first-child{white-space:normal;min-width:9rem}code{font-size:.95em}\
th{color:var(--muted);font-weight:600}\
tbody tr:nth-child(odd){background:var(--row)}.number{text-align:right}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem}dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}\
p{overflow-wrap:anywhere}svg{display:block;width:100%;max-width:70rem;height:auto;margin:0 0 1rem}.dark{display:none}\
@media(prefers-color-scheme:dark){.light{display:none}.dark{display:block}}";

/// A page with `title` and the sections below it; the first heading is the title itself and is not repeated.
pub fn html(title: &str, sections: &[Section]) -> String {
    let title = escape(title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    let skip = usize::from(matches!(sections.first(), Some(Section::Heading(_))));
    page += &body(&sections[skip..]);
    page + "</body>\n</html>\n"
}

/// Sections without the page around them.
pub(crate) fn body(sections: &[Section]) -> String {
    let part = |section: &Section| match section {
        Section::Heading(heading) => format!("<h2>{}</h2>\n", escape(heading)),
        Section::Lead(found) => lead(found),
        Section::Folded(name, sections) => {
            format!("<details><summary>{}</summary>\n{}</details>\n", escape(name), body(sections))
        }
        Section::Table(table) => rows(table),
        Section::Facts(facts) => {
            let fact =
                |(name, value): &(String, String)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
            format!("<dl>{}</dl>\n", facts.iter().map(fact).collect::<String>())
        }
        Section::Paragraph(text) | Section::Line(text) => format!("<p>{}</p>\n", prose(text)),
        Section::Code(lines) => {
            let lines: Vec<String> = lines.iter().map(|line| escape(line)).collect();
            format!("<pre>{}</pre>\n", lines.join("\n"))
        }
        Section::Picture(picture) => format!(
            "<div class=\"light\">{}</div>\n<div class=\"dark\">{}</div>\n",
            picture.svg(Theme::Light),
            picture.svg(Theme::Dark)
        ),
    };
    sections.iter().map(part).collect()
}

/// The word large, what follows it as the first sentence, the other facts below with their names.
fn lead(Lead { word, tone, facts }: &Lead) -> String {
    let class = match tone {
        Tone::Good => "good",
        Tone::Fair => "fair",
        Tone::Bad => "bad",
    };
    let line = |(at, (name, value)): (usize, &(String, String))| {
        let rest = value.strip_prefix(&format!("{word}: ")).filter(|_| at == 0);
        match rest {
            Some(rest) => format!("<p class=\"first\">{}</p>\n", prose(&capital(rest))),
            None => format!("<p><span class=\"name\">{}:</span> {}</p>\n", escape(&capital(name)), prose(value)),
        }
    };
    let lines: String = facts.iter().enumerate().map(line).collect();
    format!("<div class=\"lead {class}\">\n<p class=\"word\">{}</p>\n{lines}</div>\n", escape(word))
}

/// A sentence, in which what stands between backticks is to be typed.
pub(crate) fn prose(text: &str) -> String {
    let escaped = escape(text);
    let parts: Vec<&str> = escaped.split('`').collect();
    // Where one is left over, none of them is a pair.
    if parts.len().is_multiple_of(2) {
        return escaped;
    }
    let part =
        |(at, part): (usize, &&str)| if at % 2 == 0 { (*part).to_owned() } else { format!("<code>{part}</code>") };
    parts.iter().enumerate().map(part).collect()
}

/// `text` as a sentence begins.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn rows(table: &Table) -> String {
    let (names, rows) = table.cells();
    let cell = |tag: &str, right: bool, text: &str| {
        let class = if right { " class=\"number\"" } else { "" };
        format!("<{tag}{class}>{}</{tag}>", escape(text))
    };
    let head: String = names.iter().map(|(name, right)| cell("th", *right, name)).collect();
    let row =
        |row: &Vec<&str>| row.iter().zip(&names).map(|(text, (_, right))| cell("td", *right, text)).collect::<String>();
    let body = rows.iter().map(row).collect::<Vec<_>>().join("</tr><tr>");
    format!("<div class=\"wide\"><table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table></div>\n")
}

/// Text that stays text.
pub(crate) fn escape(text: &str) -> String {
    super::style::printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Align;

    #[test]
    fn what_a_file_says_is_text_not_markup() {
        let mut table = Table::default().column("<b>", Align::Left, 0).column("us", Align::Right, 0);
        table.row(["<script>".into(), "1 & 2".into()]);
        let facts = vec![("a\"b".to_owned(), "</dl>".to_owned())];
        let page = html("<title>", &[Section::Heading("<title>".into()), Section::Table(table), Section::Facts(facts)]);
        assert!(page.contains("<h1>&lt;title&gt;</h1>") && page.matches("&lt;title&gt;").count() == 2, "{page}");
        assert!(page.contains("<td>&lt;script&gt;</td><td class=\"number\">1 &amp; 2</td>"), "{page}");
        assert!(page.contains("<dt>a&quot;b</dt><dd>&lt;/dl&gt;</dd>"), "{page}");
        assert!(!page.contains("http"), "nothing outside the file");
    }

    #[test]
    fn the_lead_has_its_word_and_its_sentences() {
        let fact = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let facts =
            vec![fact("verdict", "MIXED: off by <2> %, run `roofline calibrate`."), fact("insight", "one `odd")];
        let page = html("t", &[Section::Lead(Lead { word: "MIXED".to_owned(), tone: Tone::Fair, facts })]);
        let lead = "<div class=\"lead fair\">\n<p class=\"word\">MIXED</p>\n\
                    <p class=\"first\">Off by &lt;2&gt; %, run <code>roofline calibrate</code>.</p>\n\
                    <p><span class=\"name\">Insight:</span> one `odd</p>\n</div>";
        assert!(page.contains(lead), "{page}");
        let page = html("t", &[Section::Code(vec!["one".to_owned(), "two < 3".to_owned()])]);
        assert!(page.contains("<pre>one\ntwo &lt; 3</pre>"), "{page}");
        let folded = Section::Folded("<more>".to_owned(), vec![Section::Paragraph("rest".to_owned())]);
        let page = html("t", &[folded]);
        assert!(page.contains("<details><summary>&lt;more&gt;</summary>\n<p>rest</p>\n</details>"), "{page}");
    }
}
