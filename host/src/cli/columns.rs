//! Tables as they are printed: columns begin at the margin and stand two blanks apart.

use comfy_table::{Table, presets::NOTHING};

/// A table without lines, to be [`printed`].
pub(super) fn columns() -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table
}

/// The lines of a table, without blanks at their ends.
pub(super) fn printed(mut table: Table) -> String {
    // The preset pads the outer sides too.
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    format!("{}\n", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_begin_at_the_margin_and_end_without_blanks() {
        let mut table = columns();
        table.set_header(["POOL", "STATE"]).add_row(["chat", "up"]);
        assert_eq!(printed(table), "POOL  STATE\nchat  up\n");
    }
}
