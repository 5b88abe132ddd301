//! Decides which panes are shown on a screen of a given size, and their positions.

use ratatui::layout::Rect;

use crate::top::model::Pane;

/// The areas of a frame.
pub(super) struct Layout {
    pub header: Rect,
    /// The panes that are shown, in the order of `ORDER`.
    pub panes: Vec<(Pane, Rect)>,
    pub footer: Rect,
}

/// The number of rows that the workers and the policy log could fill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub workers: u16,
    pub decisions: u16,
}

/// Returns the smallest height of a pane, including the line with its title.
fn least(pane: Pane, wanted: Wanted) -> u16 {
    match pane {
        Pane::Memory | Pane::Candidates => 5,
        Pane::Workers => 4,
        Pane::Policy => wanted.decisions.clamp(1, 3) + 1,
    }
}

const ORDER: [Pane; 4] = [Pane::Memory, Pane::Workers, Pane::Candidates, Pane::Policy];
/// The order in which panes are added to the focused pane while there is room.
const FIRST: [Pane; 4] = [Pane::Candidates, Pane::Workers, Pane::Memory, Pane::Policy];
/// The width and height from which on the panes are laid out in two columns.
const WIDE: (u16, u16) = (140, 30);

pub(super) fn layout(area: Rect, focus: Pane, wanted: Wanted) -> Layout {
    let head = area.height.min(2);
    let foot = u16::from(head < area.height);
    let header = Rect { height: head, ..area };
    let footer = Rect { y: area.y + area.height - foot, height: foot, ..area };
    let middle = Rect { y: area.y + head, height: area.height - head - foot, ..area };
    let panes = if WIDE.0 <= area.width && WIDE.1 <= area.height {
        in_two_columns(middle, wanted)
    } else {
        in_one_column(middle, focus, wanted)
    };
    Layout { header, panes, footer }
}

fn in_two_columns(area: Rect, wanted: Wanted) -> Vec<(Pane, Rect)> {
    let policy = area.height / 4;
    let upper = area.height - policy;
    let left = area.width / 2;
    let workers = wanted.workers.saturating_add(2).clamp(6, upper / 2);
    let memory = upper - workers;
    let right = area.width - left;
    vec![
        (Pane::Memory, Rect { width: left - 1, height: memory, ..area }),
        (Pane::Workers, Rect { y: area.y + memory, width: left - 1, height: workers, ..area }),
        (Pane::Candidates, Rect { x: area.x + left, width: right, height: upper, ..area }),
        (Pane::Policy, Rect { y: area.y + upper, height: policy, ..area }),
    ]
}

fn in_one_column(area: Rect, focus: Pane, wanted: Wanted) -> Vec<(Pane, Rect)> {
    let mut shown = vec![focus];
    let mut height_left = area.height.saturating_sub(least(focus, wanted));
    for pane in FIRST {
        if pane != focus && least(pane, wanted) <= height_left {
            height_left -= least(pane, wanted);
            shown.push(pane);
        }
    }
    // Of the remaining rows, the workers get as many as they still need, up to four, and the chart gets up to a third.
    // The rest goes to the candidates or, if these are not shown, to the focused pane.
    let more = wanted.workers.saturating_add(2).saturating_sub(least(Pane::Workers, wanted)).min(4);
    let mut more = [(Pane::Workers, more), (Pane::Memory, height_left / 3)].map(|(pane, rows)| {
        let given = if shown.contains(&pane) { rows.min(height_left) } else { 0 };
        height_left -= given;
        (pane, given)
    });
    let rest = if shown.contains(&Pane::Candidates) { Pane::Candidates } else { focus };
    let mut y = area.y;
    let mut panes = Vec::new();
    for pane in ORDER.into_iter().filter(|pane| shown.contains(pane)) {
        let given: u16 = more.iter_mut().filter(|(of, _)| *of == pane).map(|(_, rows)| *rows).sum();
        let rest = if pane == rest { height_left } else { 0 };
        let height = (least(pane, wanted) + given + rest).min(area.y + area.height - y);
        panes.push((pane, Rect { y, height, ..area }));
        y += height;
    }
    panes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_fills_any_size_without_overlap() {
        for width in [0, 1, 40, 80, 139, 140, 200, 500] {
            for height in 0..120 {
                for focus in ORDER {
                    for workers in [0, 1, 5, 40, u16::MAX] {
                        let area = Rect { x: 0, y: 0, width, height };
                        let wanted = Wanted { workers, decisions: workers / 2 };
                        let places = layout(area, focus, wanted);
                        let rows: u32 = places.panes.iter().map(|(_, it)| u32::from(it.height)).sum();
                        for (pane, it) in &places.panes {
                            assert_eq!(it.intersection(area), *it, "{pane:?} at {width}x{height}");
                        }
                        for (index, (_, one)) in places.panes.iter().enumerate() {
                            for (_, other) in &places.panes[..index] {
                                assert!(!one.intersects(*other), "at {width}x{height}: {:?}", places.panes);
                            }
                        }
                        assert!(places.panes.iter().any(|(pane, _)| *pane == focus));
                        if width < WIDE.0 && 3 < height {
                            assert_eq!(rows, u32::from(height) - 3, "{focus:?} at {width}x{height}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn layout_shows_fewer_panes_on_small_screens() {
        let shown = |width, height, focus| {
            let wanted = Wanted { workers: 2, decisions: 100 };
            let places = layout(Rect { x: 0, y: 0, width, height }, focus, wanted);
            places.panes.iter().map(|(pane, _)| *pane).collect::<Vec<_>>()
        };
        assert_eq!(shown(80, 24, Pane::Candidates), ORDER);
        assert_eq!(shown(200, 50, Pane::Candidates), ORDER);
        assert_eq!(shown(60, 15, Pane::Candidates), [Pane::Workers, Pane::Candidates]);
        assert_eq!(shown(60, 15, Pane::Memory), [Pane::Memory, Pane::Candidates]);
        assert_eq!(shown(40, 10, Pane::Candidates), [Pane::Candidates]);
        assert_eq!(shown(40, 10, Pane::Policy), [Pane::Policy]);
    }
}
