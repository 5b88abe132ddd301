//! Lays out rows of cells as lines of text. Each column is as wide as its widest cell, except for one elastic column.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// A cell and its style. Numbers are aligned to the right.
pub(super) struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style, right: false }
    }

    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self::new(text, Style::new())
    }

    pub(super) fn right(text: impl Into<String>) -> Self {
        Self { right: true, ..Self::plain(text) }
    }
}

/// Lays out `rows` in `width` columns of the terminal. The elastic column gets the width that the other columns leave,
/// but not more than it needs. If the width is both less than it needs and less than `least`, columns after it are
/// dropped, the last one first.
pub(super) fn lines<const N: usize>(
    rows: Vec<[Cell; N]>,
    elastic: usize,
    least: usize,
    width: usize,
) -> Vec<Line<'static>> {
    let mut widths = [0; N];
    for row in &rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(Span::raw(&cell.text).width());
        }
    }
    let mut shown = N;
    let room = |shown: usize, widths: &[usize; N]| {
        let fixed: usize =
            (0..shown).filter(|column| *column != elastic).map(|column| widths[column] + 2).sum();
        width.saturating_sub(fixed + 1)
    };
    let enough = widths[elastic].min(least);
    while elastic + 1 < shown && room(shown, &widths) < enough {
        shown -= 1;
    }
    widths[elastic] = widths[elastic].min(room(shown, &widths));
    let line = |row: [Cell; N]| {
        let mut line = Line::raw(" ");
        for (index, cell) in row.into_iter().take(shown).enumerate() {
            let text = fit(&cell.text, widths[index]);
            let gap = " ".repeat(widths[index].saturating_sub(Span::raw(&text).width()));
            let text = if cell.right { format!("{gap}{text}") } else { format!("{text}{gap}") };
            line.push_span(Span::styled(text, cell.style));
            line.push_span(Span::raw("  "));
        }
        line
    };
    rows.into_iter().map(line).collect()
}

/// Cuts out the middle of a text that is too wide. Both ends matter: names often differ at their ends, and sentences
/// begin with the important part.
pub(super) fn fit(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    if width == 0 {
        return String::new();
    }
    let taken = |letters: &mut dyn Iterator<Item = char>, most: usize| {
        let (mut taken, mut used) = (Vec::new(), 0);
        for letter in letters {
            let wide = Span::raw(letter.to_string()).width();
            if most < used + wide {
                break;
            }
            used += wide;
            taken.push(letter);
        }
        taken
    };
    let tail = (width - 1) / 2;
    let head: String = taken(&mut text.chars(), width - 1 - tail).into_iter().collect();
    let tail: String = taken(&mut text.chars().rev(), tail).into_iter().rev().collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_never_exceeds_the_width() {
        assert_eq!(fit("softmax/fast", 12), "softmax/fast");
        assert_eq!(fit("softmax/fast", 7), "sof…ast");
        assert_eq!(fit("softmax", 1), "…");
        assert_eq!(fit("softmax", 0), "");
        for width in 0..20 {
            for text in ["", "a", "名前名前名前名前", "e\u{301}e\u{301}e\u{301}", "plain text of some length"]
            {
                assert!(Span::raw(fit(text, width)).width() <= width, "{text} in {width}");
            }
        }
    }

    #[test]
    fn lines_shrink_the_elastic_column_before_dropping_others() {
        let row = || {
            [
                Cell::right("7"),
                Cell::plain("a_long_name_of_a_kernel"),
                Cell::plain("PASSED"),
                Cell::plain("2.00x"),
            ]
        };
        let at = |width| lines(vec![row()], 1, 10, width)[0].to_string().trim_end().to_owned();
        assert_eq!(at(60), " 7  a_long_name_of_a_kernel  PASSED  2.00x");
        assert_eq!(at(30), " 7  a_lon…ernel  PASSED  2.00x");
        assert_eq!(at(24), " 7  a_long…ernel  PASSED");
        assert_eq!(at(14), " 7  a_lon…rnel");
        assert_eq!(at(4), " 7");
    }
}
