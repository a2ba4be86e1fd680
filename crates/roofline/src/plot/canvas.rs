//! An SVG that is being written: shapes, texts and the frame with its grid.

use super::{
    axis::{Axis, Tick},
    cells::is_direction,
    font,
    theme::{Colors, Theme},
};

/// A place in a picture, in units of the SVG; y grows downwards.
pub(super) type Spot = (f64, f64);

/// A rectangle by its left upper corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    pub(super) fn around((x, y): Spot, width: f64, height: f64) -> Self {
        Self { x: x - width / 2.0, y: y - height / 2.0, width, height }
    }

    pub(super) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height
    }

    pub(super) fn center(&self) -> Spot {
        (self.x + self.width / 2.0, self.y + self.height / 2.0)
    }

    pub(super) fn grown(&self, by: f64) -> Self {
        Self { x: self.x - by, y: self.y - by, width: self.width + 2.0 * by, height: self.height + 2.0 * by }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.x < other.right() && other.x < self.right() && self.y < other.bottom() && other.y < self.bottom()
    }

    pub(super) fn holds(&self, other: &Self) -> bool {
        other.x >= self.x && other.right() <= self.right() && other.y >= self.y && other.bottom() <= self.bottom()
    }
}

#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Sizes of text.
pub(super) const TITLE: f64 = 19.0;
pub(super) const SUBTITLE: f64 = 13.0;
pub(super) const TEXT: f64 = 12.0;
pub(super) const SMALL: f64 = 11.0;

/// The width of every picture, and the room at its left and right edge.
pub(super) const WIDTH: f64 = 960.0;
pub(super) const EDGE: f64 = 24.0;

pub(super) struct Canvas {
    pub(super) colors: &'static Colors,
    body: String,
}

impl Canvas {
    /// A picture that begins with its title; what follows starts at the height that comes back.
    pub(super) fn titled(theme: Theme, title: &str, subtitle: &str) -> (Self, f64) {
        let mut canvas = Self { colors: theme.colors(), body: String::new() };
        let room = WIDTH - 2.0 * EDGE;
        let mut y = EDGE - 6.0;
        for (text, size, color) in [(title, TITLE, canvas.colors.ink), (subtitle, SUBTITLE, canvas.colors.muted)] {
            if !text.is_empty() {
                y += size + 7.0;
                canvas.text((EDGE, y), size, Anchor::Start, color, &font::fit(text, size, room));
            }
        }
        (canvas, y + 14.0)
    }

    /// The document, as high as it needs to be.
    pub(super) fn finish(self, title: &str, height: f64) -> String {
        let (family, data) = (font::FAMILY, font::base64(font::TTF));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" font-family=\"{family}, sans-serif\">\n\
             <style>@font-face{{font-family:{family};src:url(data:font/ttf;base64,{data})}}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n{}</svg>\n",
            escape(title),
            self.colors.background,
            self.body,
            height = height.ceil(),
        )
    }

    /// An element as it is; `content` must be escaped already.
    pub(super) fn element(&mut self, content: &str) {
        self.body += content;
        self.body.push('\n');
    }

    /// A line through `spots`; `style` is further attributes.
    pub(super) fn path(&mut self, spots: &[Spot], color: &str, width: f64, style: &str) {
        let mut data = String::new();
        for (at, (x, y)) in spots.iter().enumerate() {
            data += &format!("{}{} {}", if at == 0 { "M" } else { "L" }, px(*x), px(*y));
        }
        let space = if style.is_empty() { "" } else { " " };
        self.element(&format!(
            "<path d=\"{data}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"{space}{style}/>"
        ));
    }

    pub(super) fn text(&mut self, spot: Spot, size: f64, anchor: Anchor, color: &str, text: &str) {
        self.styled(spot, size, anchor, color, "", text);
    }

    /// A text with a rim of the background, so that lines behind it do not disturb.
    pub(super) fn haloed(&mut self, spot: Spot, size: f64, anchor: Anchor, color: &str, text: &str) {
        let rim = self.rim();
        self.styled(spot, size, anchor, color, &rim, text);
    }

    /// As [`Self::haloed`], turned around its middle by `angle` degrees.
    pub(super) fn turned(&mut self, (x, y): Spot, size: f64, color: &str, angle: f64, text: &str) {
        let style = format!("{} transform=\"rotate({} {} {})\"", self.rim(), px(angle), px(x), px(y));
        self.styled((x, y), size, Anchor::Middle, color, &style, text);
    }

    fn rim(&self) -> String {
        let color = self.colors.background;
        format!(" stroke=\"{color}\" stroke-width=\"3\" stroke-linejoin=\"round\" paint-order=\"stroke\"")
    }

    fn styled(&mut self, (x, y): Spot, size: f64, anchor: Anchor, color: &str, style: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let text = escape(text);
        self.element(&format!(
            "<text x=\"{}\" y=\"{}\" font-size=\"{size}\" fill=\"{color}\"{anchor}{style}>{text}</text>",
            px(x),
            px(y)
        ));
    }
}

/// The rectangle that data are drawn in, with its axes.
pub(super) struct Frame {
    pub(super) rect: Rect,
    pub(super) x: Axis,
    pub(super) y: Axis,
}

impl Frame {
    /// Where two values meet; none outside.
    pub(super) fn spot(&self, x: f64, y: f64) -> Option<Spot> {
        self.x.position(x)?;
        self.y.position(y)?;
        Some((self.across(x), self.up(y)))
    }

    pub(super) fn across(&self, x: f64) -> f64 {
        self.rect.x + self.x.fraction(x) * self.rect.width
    }

    pub(super) fn up(&self, y: f64) -> f64 {
        self.rect.bottom() - self.y.fraction(y) * self.rect.height
    }

    /// The widest label of the y axis, for which the frame leaves room.
    pub(super) fn margin(y: &Axis) -> f64 {
        let labels = y.ticks(8).into_iter().filter_map(|tick| tick.label);
        EDGE + 8.0 + labels.map(|label| font::width(&label, TEXT)).fold(16.0, f64::max)
    }

    /// Grid, ticks and the names of the axes; the y name stands above the axis, where it can be read unturned.
    pub(super) fn draw(&self, canvas: &mut Canvas, x_label: &str, y_label: &str) {
        let (rect, colors) = (self.rect, canvas.colors);
        let (columns, rows) = (self.x.ticks(10), self.y.ticks(8));
        let color = |tick: &Tick| if tick.label.is_some() { colors.grid } else { colors.fine_grid };
        for major in [false, true] {
            for tick in columns.iter().filter(|tick| tick.label.is_some() == major) {
                let x = self.across(tick.value);
                canvas.path(&[(x, rect.y), (x, rect.bottom())], color(tick), 1.0, "");
            }
            for tick in rows.iter().filter(|tick| tick.label.is_some() == major) {
                let y = self.up(tick.value);
                canvas.path(&[(rect.x, y), (rect.right(), y)], color(tick), 1.0, "");
            }
        }
        let corners = [(rect.x, rect.y), (rect.x, rect.bottom()), (rect.right(), rect.bottom())];
        canvas.path(&corners, colors.frame, 1.0, "");
        for tick in &columns {
            let spot = (self.across(tick.value), rect.bottom() + 18.0);
            canvas.text(spot, TEXT, Anchor::Middle, colors.muted, tick.label.as_deref().unwrap_or_default());
        }
        for tick in &rows {
            let spot = (rect.x - 8.0, self.up(tick.value) + 4.0);
            canvas.text(spot, TEXT, Anchor::End, colors.muted, tick.label.as_deref().unwrap_or_default());
        }
        let middle = (rect.center().0, rect.bottom() + 38.0);
        canvas.text(middle, TEXT, Anchor::Middle, colors.ink, &font::fit(x_label, TEXT, rect.width));
        canvas.text((EDGE, rect.y - 12.0), TEXT, Anchor::Start, colors.ink, &font::fit(y_label, TEXT, rect.width));
    }
}

/// A coordinate with a hundredth of a unit, without idle digits.
pub(super) fn px(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// `text` for XML, in which most control characters may not even be written as references.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\n' => out.push('\n'),
            '\u{fffe}' | '\u{ffff}' => out.push(char::REPLACEMENT_CHARACTER),
            letter if letter.is_control() || is_direction(letter) => out.push(char::REPLACEMENT_CHARACTER),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_stays_text() {
        assert_eq!(escape("<a href='x'>&\"\u{1b}[31m\u{0}\u{ffff}"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;�[31m��");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([1.0, 0.126, -0.001, 1234.5].map(px), ["1", "0.13", "0", "1234.5"]);
    }
}
