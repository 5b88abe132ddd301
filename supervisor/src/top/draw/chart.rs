//! Draws a chart of owed and reclaimable memory since the supervisor was started, compared with the ceiling. Owed
//! memory is drawn as blocks, reclaimable memory as dots, and the ceiling as a dashed line if it is within the chart.

use opt_shared::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Modifier};

use super::{Theme, clock};
use crate::top::model::{Model, Slot};

const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// The shortest time span of the chart, in seconds. A new run fills it from the left.
const MIN_SPAN: f64 = 60.0;
/// The width of a label such as `1023 MiB `.
const LABEL: u16 = 9;

pub(super) fn draw(buffer: &mut Buffer, model: &Model, theme: Theme, area: Rect) {
    if area.height < 2 || area.width < LABEL + 8 {
        return;
    }
    let plot = Rect { x: area.x + LABEL, width: area.width - LABEL, height: area.height - 1, ..area };
    let span = model.run.elapsed.max(model.history.last().map_or(0.0, |slot| slot.at)).max(MIN_SPAN);
    let columns = columns(&model.history, span, usize::from(plot.width));
    let highest =
        columns.iter().flatten().map(|slot| slot.owed.max(slot.reclaimable)).max().unwrap_or_default();
    let (top, ceiling) = scale(highest, model.memory.ceiling);
    let rows = usize::from(plot.height);
    if let Some(ceiling) = ceiling {
        let y = plot.y + row_of(ceiling, top, rows);
        for x in (plot.x..plot.x + plot.width).step_by(2) {
            buffer.set_string(x, y, "╌", theme.warning());
        }
    }
    for (x, slot) in (plot.x..).zip(&columns) {
        let Some(slot) = slot else { continue };
        let full = eighths(slot.owed, top, rows);
        for row in 0..rows {
            let level = full.saturating_sub((rows - 1 - row) * 8).min(8);
            if 0 < level {
                let y = plot.y + u16::try_from(row).unwrap_or(u16::MAX);
                buffer.set_string(x, y, EIGHTHS[level], theme.busy());
            }
        }
        if slot.reclaimable != Bytes::ZERO {
            let dot = Position { x, y: plot.y + row_of(slot.reclaimable, top, rows) };
            let style = theme.tint(Color::Magenta);
            match buffer.cell(dot).map(ratatui::buffer::Cell::symbol) {
                // The dot is drawn as a gap in the block.
                Some("█") => buffer.set_string(dot.x, dot.y, "•", style.add_modifier(Modifier::REVERSED)),
                Some(" " | "╌") => buffer.set_string(dot.x, dot.y, "•", style),
                // A partly filled cell cannot also show the dot.
                _ => {}
            }
        }
    }
    let label = |bytes: Bytes| format!("{:>8}", bytes.to_string());
    buffer.set_stringn(area.x, plot.y, label(top), usize::from(LABEL), theme.faint());
    let below = area.y + area.height - 1;
    if 1 < plot.height {
        buffer.set_stringn(area.x, below - 1, label(Bytes::ZERO), usize::from(LABEL), theme.faint());
    }
    let end = clock(span);
    let after = match (model.memory.ceiling, ceiling) {
        (Some(above), None) => format!("ceiling {above}, above the chart"),
        (Some(on), Some(_)) => format!("╌ ceiling {on}"),
        (None, _) => String::new(),
    };
    let width = usize::from(plot.width);
    buffer.set_stringn(plot.x, below, "0:00", width, theme.faint());
    let right = plot.width.saturating_sub(u16::try_from(end.len()).unwrap_or(u16::MAX));
    buffer.set_stringn(plot.x + right, below, &end, width, theme.faint());
    let length = after.chars().count();
    if length + end.len() + 8 <= width {
        let middle = u16::try_from((width - length) / 2).unwrap_or_default();
        buffer.set_stringn(plot.x + middle, below, &after, width, theme.faint());
    }
}

/// Returns the value at the top of the chart, and the ceiling if it is below that value. The chart does not always
/// reach up to the ceiling, because a run that stays far below it would then be a line at the bottom.
fn scale(highest: Bytes, ceiling: Option<Bytes>) -> (Bytes, Option<Bytes>) {
    let ceiling = ceiling.filter(|ceiling| *ceiling != Bytes::ZERO);
    match ceiling {
        Some(ceiling) if ceiling.fraction(0.3) <= highest => {
            let highest = highest.max(ceiling);
            (highest + highest.fraction(0.05), Some(ceiling))
        }
        _ => (highest.max(Bytes::mib(1)) + highest.fraction(0.1), None),
    }
}

/// Returns the highest values in each column. A column without slots repeats the previous column. The columns after the
/// last slot are empty.
fn columns(history: &[Slot], span: f64, count: usize) -> Vec<Option<Slot>> {
    let mut columns: Vec<Option<Slot>> = vec![None; count];
    let mut last = 0;
    for slot in history {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a position on a screen: times are not negative"
        )]
        let at = ((slot.at / span * count as f64) as usize).min(count.saturating_sub(1));
        let Some(column) = columns.get_mut(at) else { continue };
        last = at;
        *column = Some(column.map_or(*slot, |it| Slot {
            owed: it.owed.max(slot.owed),
            reclaimable: it.reclaimable.max(slot.reclaimable),
            ..it
        }));
    }
    let mut before = None;
    for column in columns.iter_mut().take(last + 1) {
        *column = column.or(before);
        before = *column;
    }
    columns
}

/// Returns the height of a value in eighths of a row. Any value above zero is visible.
fn eighths(bytes: Bytes, top: Bytes, rows: usize) -> usize {
    if bytes == Bytes::ZERO {
        return 0;
    }
    let share = u128::from(bytes.get()) * (rows as u128 * 8) / u128::from(top.get().max(1));
    usize::try_from(share).unwrap_or(usize::MAX).clamp(1, rows * 8)
}

/// Returns the row in which a value is drawn, counted from the top.
fn row_of(bytes: Bytes, top: Bytes, rows: usize) -> u16 {
    let level = eighths(bytes, top, rows).saturating_sub(1) / 8;
    u16::try_from(rows.saturating_sub(1 + level)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(at: f64, mib: u64) -> Slot {
        Slot { at, owed: Bytes::mib(mib), reclaimable: Bytes::ZERO }
    }

    #[test]
    fn columns_keep_peaks_and_fill_gaps_before_the_last_slot() {
        let history = [slot(0.0, 1), slot(1.0, 9), slot(1.5, 2), slot(30.0, 3)];
        let columns = columns(&history, 60.0, 30);
        let owed: Vec<Option<u64>> = columns.iter().map(|it| it.map(|it| it.owed.get() >> 20)).collect();
        assert_eq!(owed[0], Some(9));
        assert_eq!(owed[14], Some(9), "nothing was sampled in between");
        assert_eq!(owed[15], Some(3));
        assert_eq!(owed[16..], [None; 14]);
    }

    #[test]
    fn ceiling_is_shown_only_if_it_is_near() {
        let ceiling = Some(Bytes::gib(8));
        assert_eq!(scale(Bytes::mib(100), ceiling).1, None);
        let (top, shown) = scale(Bytes::gib(3), ceiling);
        assert_eq!(shown, ceiling);
        assert!(Bytes::gib(8) < top);
        assert!(scale(Bytes::gib(9), ceiling).0 > Bytes::gib(9), "a value above the ceiling is visible");
        assert_eq!(eighths(Bytes::new(1), Bytes::gib(8), 4), 1);
        assert_eq!(eighths(Bytes::gib(8), Bytes::gib(8), 4), 32);
        assert_eq!(
            (row_of(Bytes::gib(8), Bytes::gib(8), 4), row_of(Bytes::new(1), Bytes::gib(8), 4)),
            (0, 3)
        );
    }
}
