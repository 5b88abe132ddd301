//! Builds a kernel while it is decoded: keeps the names in scope, register rows, labels, and the code so far.

use std::collections::HashMap;

use super::{Symbols, operands};
use crate::code::{ALWAYS, File, Guard, Instruction, Kernel, LaneOp, Op, Slot, Special};
use crate::fault::LoadError;
use crate::lane::Function as LaneFunction;
use crate::limits;
use crate::ptx::lexer::clipped;
use crate::ptx::syntax::{Location, Position, RegisterClass, Source, Space, Statement, Variable};

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub enum Name {
    Register(Slot),
    /// If `dynamic`, the address is counted from the end of the static shared memory.
    Variable {
        space: Space,
        address: u64,
        dynamic: bool,
    },
}

#[derive(Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Name>,
    /// Declarations such as `%r<12>`, which declares `%r0` to `%r11`: the prefix, the first slot, and the count.
    ranges: HashMap<&'a str, (Slot, u32)>,
}

impl Scope<'_> {
    fn find(&self, name: &str) -> Option<Name> {
        if let Some(found) = self.names.get(name) {
            return Some(*found);
        }
        let prefix = name.trim_end_matches(|char: char| char.is_ascii_digit());
        let (first, count) = self.ranges.get(prefix)?;
        let index: u32 = name[prefix.len()..].parse().ok().filter(|index| index < count)?;
        Some(Name::Register(Slot { row: first.row + index, ..*first }))
    }
}

/// The state of the function that is being decoded: the entry, or a function that is inlined.
#[derive(Default)]
pub struct Frame<'a> {
    scopes: Vec<Scope<'a>>,
    /// The size of the local memory in use, in bytes.
    pub local: u64,
    /// The value of `local` at the beginning of each open scope.
    local_before: Vec<u64>,
    labels: HashMap<&'a str, u32>,
    /// Branches and table entries whose labels are not resolved yet, each with its label and its line.
    pub branches: Vec<(Patch, &'a str, u32)>,
    /// The labels of each `.branchtargets` list, by the name of the list.
    pub targets: HashMap<&'a str, Vec<&'a str>>,
    /// The line from which the function is called.
    caller: Option<Location>,
    /// For each position of this function, the line that was last reported for it.
    lines: HashMap<Position, Location>,
}

/// An instruction or table entry that will be patched with a label's position.
#[derive(Clone, Copy)]
pub enum Patch {
    Branch(usize),
    Table { table: usize, entry: usize },
}

impl Frame<'_> {
    pub fn new(local: u64, caller: Option<Location>) -> Self {
        Self { scopes: vec![Scope::default()], local, caller, ..Self::default() }
    }
}

/// The longest path of a source that is compared with other paths, in bytes.
const MAX_PATH: usize = 4096;

pub struct Builder<'s, 'a> {
    pub source: &'s Source<'a>,
    symbols: &'s Symbols<'a>,
    pub kernel: Kernel,
    pub frames: Vec<Frame<'a>>,
    /// The part of the budget `limits::DECODED` that is left.
    pub left: usize,
    /// The entry and the functions that are being inlined, outermost first.
    pub called: Vec<&'a str>,
    pub location: Option<Location>,
    /// The file of the kernel itself: the file of its first line that does not come from an inlined function.
    home: Option<u32>,
    line: u32,
    guard: Option<Guard>,
    module_shared: HashMap<&'a str, u64>,
    narrow_constants: HashMap<u32, u32>,
    wide_constants: HashMap<u64, u32>,
    /// Constants to which the size of static shared memory will be added: the index of each constant, and whether it is
    /// in the list of wide constants.
    dynamic: Vec<(usize, bool)>,
    dynamic_align: u64,
    specials: Vec<(Special, u32)>,
}

impl<'s, 'a> Builder<'s, 'a> {
    pub fn new(source: &'s Source<'a>, symbols: &'s Symbols<'a>, name: &'a str, left: usize) -> Self {
        // Two rows are reserved: `CARRY` and `ALWAYS`.
        let kernel = Kernel { name: name.to_owned(), flag_rows: ALWAYS + 1, ..Kernel::default() };
        Self {
            source,
            symbols,
            kernel,
            frames: vec![Frame::new(0, None)],
            left,
            called: vec![name],
            location: None,
            home: None,
            line: 0,
            guard: None,
            module_shared: HashMap::new(),
            narrow_constants: HashMap::new(),
            wide_constants: HashMap::new(),
            dynamic: Vec::new(),
            dynamic_align: 16,
            specials: Vec::new(),
        }
    }

    pub fn frame(&mut self) -> &mut Frame<'a> {
        self.frames.last_mut().expect("the entry's frame is never removed")
    }

    /// Sets the line that is reported for the following instructions. For code from a header outside the kernel's
    /// folder, such as a header of the toolkit, the line that calls this code is reported instead, because a line of
    /// the header would rarely help the author of a kernel.
    pub fn locate(&mut self, at: Position, inlined_at: Option<Position>) {
        if inlined_at.is_none() && self.frames.len() == 1 {
            self.home.get_or_insert(at.file);
        }
        let frame = self.frames.last().expect("the entry's frame is never removed");
        let line_of = |it: Position| Location { file: it.file, line: it.line };
        let is_own = |it: &Position| self.home.is_none_or(|home| self.is_beside(it.file, home));
        let caller = match inlined_at {
            Some(call) => frame.lines.get(&call).copied().or(Some(call).filter(is_own).map(line_of)),
            None => frame.caller,
        };
        let reported = caller.filter(|caller| !self.is_beside(at.file, caller.file));
        let reported = reported.unwrap_or_else(|| line_of(at));
        self.frame().lines.insert(at, reported);
        self.location = Some(reported);
    }

    /// Returns true if a source is in the folder of another one, or in a folder below that.
    fn is_beside(&self, file: u32, other: u32) -> bool {
        let path = |file: u32| self.source.files.get(&file).filter(|path| path.len() <= MAX_PATH);
        match (path(file), path(other)) {
            _ if file == other => true,
            (Some(path), Some(other)) => match other.rsplit_once('/') {
                Some(("", _)) => path.rfind('/') == Some(0),
                Some((folder, _)) => path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')),
                None => !path.starts_with('/'),
            },
            _ => false,
        }
    }

    pub fn line(&self) -> u32 {
        self.line
    }

    pub fn set_line(&mut self, line: u32) {
        self.line = line;
    }

    /// The guard of the current statement; `None` if all lanes execute it.
    pub fn guard(&self) -> Option<Guard> {
        self.guard
    }

    /// Sets or removes the guard of the following instructions.
    pub fn set_guard(&mut self, guard: Option<Guard>) {
        self.guard = guard;
    }

    /// Subtracts `amount` from the budget `limits::DECODED`.
    pub fn spend(&mut self, amount: usize) -> Result<(), LoadError> {
        self.left = self.left.checked_sub(amount).ok_or_else(|| {
            let what = format!(
                "the kernels are too large: with all calls inlined, they have more than {} items, such as statements \
                 and operands",
                limits::DECODED
            );
            LoadError::limit(self.line, what)
        })?;
        Ok(())
    }

    /// Starts a statement: sets its line and its guard, and checks the numbers of instructions and registers so far.
    pub fn begin(&mut self, statement: &Statement<'a>) -> Result<(), LoadError> {
        self.line = statement.line;
        self.guard = match statement.guard {
            None => None,
            Some((name, negated)) => Some(Guard { row: self.flag(name)?, negated }),
        };
        if limits::INSTRUCTIONS < self.kernel.code.len() {
            let most = limits::INSTRUCTIONS;
            let what =
                format!("the kernel has too many instructions: with all calls inlined, more than {most}");
            return Err(LoadError::limit(self.line, what));
        }
        let rows = self.kernel.flag_rows + self.kernel.narrow_rows + self.kernel.wide_rows;
        if limits::REGISTERS < rows as usize {
            let most = limits::REGISTERS;
            let what = format!("the kernel has more than {most} registers, constants and special values");
            return Err(LoadError::limit(self.line, what));
        }
        Ok(())
    }

    pub fn emit(&mut self, op: Op) {
        self.kernel.code.push(Instruction { guard: self.guard, op });
        self.kernel.lines.push(self.line);
        self.kernel.locations.push(self.location);
    }

    /// Emits an instruction without a guard.
    pub fn emit_plain(&mut self, op: Op) {
        let guard = self.guard.take();
        self.emit(op);
        self.guard = guard;
    }

    pub fn emit_lane(&mut self, function: LaneFunction, to: Slot, from: Vec<Slot>) {
        self.emit_lane_with(function, to, None, from);
    }

    pub fn emit_lane_with(
        &mut self,
        function: LaneFunction,
        to: Slot,
        second: Option<Slot>,
        from: Vec<Slot>,
    ) {
        let index = index_of(self.kernel.lane_ops.len());
        self.kernel.lane_ops.push(LaneOp { function, to, second, from });
        self.emit(Op::Lane(index));
    }

    pub fn syntax(&self, what: String) -> LoadError {
        LoadError::syntax(self.line, what)
    }

    pub fn position(&self) -> u32 {
        index_of(self.kernel.code.len())
    }

    // Methods for names.

    pub fn open_scope(&mut self) {
        let frame = self.frame();
        frame.scopes.push(Scope::default());
        frame.local_before.push(frame.local);
    }

    pub fn close_scope(&mut self) {
        let frame = self.frame();
        frame.scopes.pop();
        if let Some(local) = frame.local_before.pop() {
            frame.local = local;
        }
    }

    pub fn declare(&mut self, name: &'a str, meaning: Name) {
        if let Some(scope) = self.frame().scopes.last_mut() {
            scope.names.insert(name, meaning);
        }
    }

    pub fn find(&mut self, name: &str) -> Option<Name> {
        let found = self.frame().scopes.iter().rev().find_map(|scope| scope.find(name));
        found.or_else(|| self.find_in_module(name))
    }

    fn find_in_module(&mut self, name: &str) -> Option<Name> {
        if let Some(address) = self.symbols.get(name) {
            return Some(Name::Variable { space: Space::Global, address: *address, dynamic: false });
        }
        let source = self.source;
        let variable = &source.variables[*source.shared.get(name)?];
        if variable.unsized_array {
            self.dynamic_align = self.dynamic_align.max(variable.align);
            return Some(Name::Variable { space: Space::Shared, address: 0, dynamic: true });
        }
        let address = match self.module_shared.get(variable.name) {
            Some(address) => *address,
            None => {
                let address = self.allocate_shared(variable);
                self.module_shared.insert(variable.name, address);
                address
            }
        };
        Some(Name::Variable { space: Space::Shared, address, dynamic: false })
    }

    fn allocate_shared(&mut self, variable: &Variable<'_>) -> u64 {
        let address = self.kernel.static_shared.next_multiple_of(variable.align);
        self.kernel.static_shared = address + variable.bytes;
        address
    }

    pub fn new_row(&mut self, class: RegisterClass) -> Slot {
        let (file, bits, rows) = match class {
            RegisterClass::Predicate => (File::Flag, 1, &mut self.kernel.flag_rows),
            RegisterClass::Narrow(bits) => (File::Narrow, bits, &mut self.kernel.narrow_rows),
            RegisterClass::Wide => (File::Wide, 64, &mut self.kernel.wide_rows),
        };
        let row = *rows;
        *rows += 1;
        Slot { file, row, bits }
    }

    pub fn declare_registers(
        &mut self,
        line: u32,
        name: &'a str,
        count: Option<u32>,
        class: RegisterClass,
    ) -> Result<(), LoadError> {
        let Some(count) = count else {
            let slot = self.new_row(class);
            self.declare(name, Name::Register(slot));
            return Ok(());
        };
        let rows = self.kernel.flag_rows + self.kernel.narrow_rows + self.kernel.wide_rows;
        if limits::REGISTERS < rows.saturating_add(count) as usize {
            return Err(LoadError::limit(
                line,
                format!(
                    "with `{}<{count}>`, the kernel has too many registers (limit: {})",
                    clipped(name),
                    limits::REGISTERS
                ),
            ));
        }
        let first = self.new_row(class);
        let rest = count.saturating_sub(1);
        match class {
            RegisterClass::Predicate => self.kernel.flag_rows += rest,
            RegisterClass::Narrow(_) => self.kernel.narrow_rows += rest,
            RegisterClass::Wide => self.kernel.wide_rows += rest,
        }
        if let Some(scope) = self.frame().scopes.last_mut() {
            scope.ranges.insert(name, (first, count));
        }
        Ok(())
    }

    pub fn declare_variable(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        let name = match variable.space {
            Space::Shared if variable.unsized_array => {
                self.dynamic_align = self.dynamic_align.max(variable.align);
                Name::Variable { space: Space::Shared, address: 0, dynamic: true }
            }
            Space::Shared => {
                let address = self.allocate_shared(variable);
                Name::Variable { space: Space::Shared, address, dynamic: false }
            }
            // Parameters of calls belong to the thread, like local variables.
            _ => {
                let frame = self.frame();
                let address = frame.local.next_multiple_of(variable.align);
                frame.local = address + variable.bytes;
                let used = frame.local;
                self.kernel.local_bytes = self.kernel.local_bytes.max(used);
                if limits::LOCAL_BYTES < used {
                    return Err(LoadError::limit(
                        variable.line,
                        format!("a thread needs more than {} bytes of local memory", limits::LOCAL_BYTES),
                    ));
                }
                Name::Variable { space: Space::Local, address, dynamic: false }
            }
        };
        if limits::SHARED_BYTES < self.kernel.static_shared {
            let most = limits::STATIC_SHARED_BYTES;
            let what = format!("the kernel declares too much shared memory (limit: {most} bytes)");
            return Err(LoadError::limit(variable.line, what));
        }
        self.declare(variable.name, name);
        Ok(())
    }

    // Methods for labels.

    pub fn declare_label(&mut self, line: u32, name: &'a str) -> Result<(), LoadError> {
        let position = self.position();
        match self.frame().labels.insert(name, position) {
            None => Ok(()),
            Some(_) => {
                Err(LoadError::syntax(line, format!("the label `{}` is defined twice", clipped(name))))
            }
        }
    }

    pub fn resolve_labels(&mut self) -> Result<(), LoadError> {
        let branches = std::mem::take(&mut self.frame().branches);
        for (patch, name, line) in branches {
            let Some(target) = self.frame().labels.get(name).copied() else {
                return Err(LoadError::syntax(line, format!("there is no label `{}`", clipped(name))));
            };
            match patch {
                Patch::Branch(at) => self.kernel.code[at].op = Op::Branch { target },
                Patch::Table { table, entry } => self.kernel.tables[table][entry] = target,
            }
        }
        Ok(())
    }

    // Methods for constants.

    pub fn narrow_constant(&mut self, value: u32) -> u32 {
        if let Some(row) = self.narrow_constants.get(&value) {
            return *row;
        }
        let row = self.new_row(RegisterClass::Narrow(32)).row;
        self.narrow_constants.insert(value, row);
        self.kernel.narrow_constants.push((row, value));
        row
    }

    pub fn wide_constant(&mut self, value: u64) -> u32 {
        if let Some(row) = self.wide_constants.get(&value) {
            return *row;
        }
        let row = self.new_row(RegisterClass::Wide).row;
        self.wide_constants.insert(value, row);
        self.kernel.wide_constants.push((row, value));
        row
    }

    pub fn dynamic_constant(&mut self, offset: u64, wide: bool) -> u32 {
        let row;
        if wide {
            row = self.new_row(RegisterClass::Wide).row;
            self.kernel.wide_constants.push((row, offset));
        } else {
            row = self.new_row(RegisterClass::Narrow(32)).row;
            self.kernel.narrow_constants.push((row, operands::low(offset)));
        }
        let constants =
            if wide { self.kernel.wide_constants.len() } else { self.kernel.narrow_constants.len() };
        self.dynamic.push((constants - 1, wide));
        row
    }

    pub fn special(&mut self, special: Special) -> u32 {
        if let Some((_, row)) = self.specials.iter().find(|(known, _)| *known == special) {
            return *row;
        }
        let row = self.new_row(RegisterClass::Narrow(32)).row;
        self.specials.push((special, row));
        self.kernel.specials.push((row, special));
        row
    }

    pub fn finish(mut self) -> Result<Kernel, LoadError> {
        let base = self.kernel.static_shared.next_multiple_of(self.dynamic_align);
        if !self.dynamic.is_empty() {
            self.kernel.static_shared = base;
        }
        for (index, wide) in &self.dynamic {
            if *wide {
                let (_, value) = &mut self.kernel.wide_constants[*index];
                *value = value.wrapping_add(base);
            } else {
                let (_, value) = &mut self.kernel.narrow_constants[*index];
                *value = value.wrapping_add(operands::low(base));
            }
        }
        if limits::STATIC_SHARED_BYTES < self.kernel.static_shared {
            let what = format!(
                "`{}` declares {} bytes of shared memory, but at most {} are allowed",
                clipped(&self.kernel.name),
                self.kernel.static_shared,
                limits::STATIC_SHARED_BYTES
            );
            return Err(LoadError::limit(self.line, what));
        }
        Ok(self.kernel)
    }
}

pub fn index_of(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
