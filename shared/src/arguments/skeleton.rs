//! Generates a C candidate to start from: it has a variable for every argument, and the argument table as a comment.
//!
//! Names and values come from captures, so they are made safe: every C and C++ compiler accepts the identifiers, and no
//! text can end the comment that contains it.

use std::collections::BTreeSet;

use super::Signature;
use super::describe::{Observed, PlainKind, Seen, table};

/// Words that cannot be variable names: keywords of C and C++, names that the header and the function use, and
/// macros that common compilers predefine.
const TAKEN: &[&str] = &[
    "NULL",
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "args",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "linux",
    "long",
    "mutable",
    "n",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "ret",
    "return",
    "self",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "typeof_unqual",
    "union",
    "unix",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
    "xor_eq",
];

/// A candidate in C that compiles, unpacks its arguments and returns `OPT_UNSUPPORTED`.
pub fn c_skeleton(signature: &Signature, observed: &Observed, symbol: &str) -> String {
    let mut taken = BTreeSet::new();
    let function = function_name(symbol, &mut taken);
    let mut lines = vec!["/* Arguments:".to_owned(), " *".to_owned()];
    lines.extend(table(signature, observed).lines().map(|line| format!(" * {}", comment(line))));
    lines.extend([
        " */".to_owned(),
        "#include \"opt_candidate.h\"".to_owned(),
        String::new(),
        format!("OPT_EXPORT int {function}(void *self, const OptAny *args, int32_t n, OptAny *ret)"),
        "{".to_owned(),
        "    (void)self;".to_owned(),
        "    (void)ret;".to_owned(),
    ]);
    let certain = observed.outputs.iter().take_while(|seen| seen.entries == observed.entries).count();
    let min_arguments = observed.arguments.len() + certain;
    lines.push(format!("    if (n < {min_arguments}) return -1;"));
    let mut variables = Vec::new();
    for (index, seen) in observed.arguments.iter().enumerate() {
        unpack(index, seen, &mut taken, &mut variables, &mut lines);
    }
    for (index, seen) in (observed.arguments.len()..).zip(&observed.outputs) {
        let name = identifier(&seen.path, &mut taken);
        let value = format!("args[{index}].value.v_tensor");
        let value = if index < min_arguments { value } else { format!("n > {index} ? {value} : 0") };
        lines.push(format!("    OptTensor *{name} = {value};"));
        variables.push(name);
    }
    lines.push(String::new());
    if variables.is_empty() {
        variables.push("args".to_owned());
    }
    lines.push(
        "    /* Compute here, then return OPT_OK. The casts below only keep the compiler quiet. */"
            .to_owned(),
    );
    lines.extend(variables.iter().map(|name| format!("    (void){name};")));
    lines.extend(["    return OPT_UNSUPPORTED;".to_owned(), "}".to_owned(), String::new()]);
    lines.join("\n")
}

/// Declares a variable of the type that the entries have. If the value is None in some entries, a pointer is null in
/// that case, and a variable of another type gets a second variable, `has_…`. If the entries have different types, the
/// only variable is the OptAny itself.
fn unpack(
    index: usize,
    seen: &Seen,
    taken: &mut BTreeSet<String>,
    variables: &mut Vec<String>,
    lines: &mut Vec<String>,
) {
    let mut kinds: BTreeSet<CType> = seen.plain.iter().filter_map(|kind| CType::of(*kind)).collect();
    if !seen.dtypes.is_empty() {
        kinds.insert(CType::Tensor);
    }
    let optional = seen.plain.contains(&PlainKind::None);
    let mut kinds = kinds.into_iter();
    let Some(kind) = kinds.next() else {
        lines.push(format!("    /* args[{index}], {}, is None in every entry. */", comment(&seen.path)));
        return;
    };
    let name = identifier(&seen.path, taken);
    if kinds.next().is_some() {
        lines
            .push(format!("    OptAny {name} = args[{index}]; /* its type_index differs between entries */"));
    } else {
        let (declaration, member) = kind.declaration();
        let value = format!("args[{index}].value.{member}");
        match kind {
            CType::Tensor | CType::Str if optional => lines.push(format!(
                "    {declaration}{name} = args[{index}].type_index == OPT_NONE ? 0 : {value};"
            )),
            CType::Bool => lines.push(format!("    {declaration}{name} = {value} != 0;")),
            _ => lines.push(format!("    {declaration}{name} = {value};")),
        }
        if optional && !matches!(kind, CType::Tensor | CType::Str) {
            let flag = identifier(&format!("has_{}", seen.path), taken);
            lines.push(format!("    int {flag} = args[{index}].type_index != OPT_NONE;"));
            variables.push(flag);
        }
    }
    variables.push(name);
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CType {
    Tensor,
    Int,
    Float,
    Bool,
    Str,
    DataType,
    Device,
}

impl CType {
    fn of(kind: PlainKind) -> Option<Self> {
        match kind {
            PlainKind::None => None,
            PlainKind::Int => Some(Self::Int),
            PlainKind::Float => Some(Self::Float),
            PlainKind::Bool => Some(Self::Bool),
            PlainKind::Str => Some(Self::Str),
            PlainKind::DType => Some(Self::DataType),
            PlainKind::Device => Some(Self::Device),
            PlainKind::Ints | PlainKind::Floats | PlainKind::Bools => Some(Self::Tensor),
        }
    }

    /// The type as written in a declaration, and the member of the OptAny's payload that contains the value.
    fn declaration(self) -> (&'static str, &'static str) {
        match self {
            Self::Tensor => ("const OptTensor *", "v_tensor"),
            Self::Int => ("int64_t ", "v_int64"),
            Self::Float => ("double ", "v_float64"),
            Self::Bool => ("int ", "v_int64"),
            Self::Str => ("const char *", "v_c_str"),
            Self::DataType => ("OptDataType ", "v_dtype"),
            Self::Device => ("OptDevice ", "v_device"),
        }
    }
}

/// Returns the symbol itself if C can declare it, because the loader looks up that name. Otherwise returns a similar
/// name.
fn function_name(symbol: &str, taken: &mut BTreeSet<String>) -> String {
    let letters = symbol.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let starts = symbol.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if letters && starts && !TAKEN.contains(&symbol) {
        taken.insert(symbol.to_owned());
        return symbol.to_owned();
    }
    identifier(symbol, taken)
}

/// Returns a unique name that every C and C++ compiler accepts: `tensors[1]` becomes `tensors_1`, and `float` becomes
/// `float_`.
fn identifier(text: &str, taken: &mut BTreeSet<String>) -> String {
    let mut name: String = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    // Names with two consecutive underscores, or with one before a capital letter, are reserved for the compiler.
    while name.contains("__") {
        name = name.replace("__", "_");
    }
    let name = name.trim_end_matches('_');
    let first = name.strip_prefix('_').unwrap_or(name).chars().next();
    let reserved =
        first.is_none_or(|c| c.is_ascii_digit() || (name.starts_with('_') && c.is_ascii_uppercase()));
    let mut name = if reserved { format!("x{name}") } else { name.to_owned() };
    if TAKEN.contains(&name.as_str()) || name.ends_with("_t") || name.to_lowercase().starts_with("opt") {
        name.push('_');
    }
    let mut unique = name.clone();
    let mut count = 1;
    while !taken.insert(unique.clone()) {
        count += 1;
        unique = format!("{}_{count}", name.trim_end_matches('_'));
    }
    unique
}

/// Makes text safe in a block comment, so that it can neither end the comment nor begin another one. `*` becomes `+`,
/// and `??` and all characters other than printable ASCII become dots.
fn comment(text: &str) -> String {
    let ascii: String = text.chars().map(|c| if (' '..='~').contains(&c) { c } else { '.' }).collect();
    ascii.replace('*', "+").replace("??", "..")
}
