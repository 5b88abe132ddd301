//! Writes floats and strings as Python does.

/// Writes a float like Python's `repr`: the shortest digits that read back, with an exponent below 1e-4 and from 1e16
/// on.
pub(super) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // `Display` also writes the shortest digits, but never an exponent.
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Writes a string like Python's `repr`, but does not escape characters above U+009F that cannot be printed.
pub(super) fn quoted_text(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut shown = String::with_capacity(text.len() + 2);
    shown.push(quote);
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            '\\' => shown.push_str("\\\\"),
            _ if character == quote => shown.extend(['\\', quote]),
            _ if character.is_control() => shown.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ => shown.push(character),
        }
    }
    shown.push(quote);
    shown
}

/// Appends a string as `json.dumps` writes it, in ASCII only.
pub(super) fn json_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(character),
            _ => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-1e-5, "-1e-05"),
            (1e-4, "0.0001"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_text(value), text);
        }
    }

    #[test]
    fn strings_are_quoted_as_python_does() {
        for (value, text) in
            [("a", "'a'"), ("it's", "\"it's\""), ("'\"", "'\\'\"'"), ("a\n\u{1}", "'a\\n\\x01'")]
        {
            assert_eq!(quoted_text(value), text);
        }
        let mut out = String::new();
        json_text("a\"\u{1f525}é", &mut out);
        assert_eq!(out, "\"a\\\"\\ud83d\\udd25\\u00e9\"");
    }
}
