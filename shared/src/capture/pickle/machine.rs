//! Executes the opcodes of a pickle on a stack machine whose objects are inert nodes.
//!
//! # Why this program has its own pickle machine
//!
//! A pickle is a program. Python imports and calls everything that the pickle's opcodes name, so opening a file in
//! Python runs code of the file's author. This machine cannot do that, because it has a fixed list of names
//! (`globals`), and a "call" of one of them is an arm of a `match` that builds a node (`calls`). Nothing is imported,
//! looked up at run time or executed.
//!
//! Existing pickle crates do not fit. Some decode into trees, in which a file of a few hundred bytes can expand to
//! terabytes. Others do not support torch's persistent ids. In this machine, objects are shared, and the stack, memo,
//! depth, objects, lengths and sums are checked against limits (`limits`) before anything is allocated.

use std::collections::HashMap;
use std::sync::Arc;

use super::StorageName;
use super::arena::Arena;
use super::globals::{self, Global, Name};
use super::node::{MadeNode, Node, NodeId, ObjectNode};
use super::opcode::{Decoder, Opcode};
use crate::capture::error::{ErrorKind, Fault, quoted};
use crate::capture::limits::{MAX_MARKS, MAX_MEMO, MAX_STACK, MAX_STORAGES};
use crate::capture::{DType, DictKind, SequenceKind};

pub(super) struct Machine {
    pub(super) arena: Arena,
    stack: Vec<NodeId>,
    /// The height of the stack at each open mark.
    marks: Vec<usize>,
    memo: HashMap<u32, NodeId>,
    pub(super) storages: Vec<StorageName>,
    /// The index of each storage in `storages`, by its key.
    by_key: HashMap<Arc<str>, u32>,
}

impl Machine {
    /// Executes the first pickle in `bytes`; returns its result and its length.
    pub(super) fn run(bytes: &[u8]) -> Result<(Self, NodeId, usize), Fault> {
        let mut machine = Self {
            arena: Arena::new(bytes.len()),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            storages: Vec::new(),
            by_key: HashMap::new(),
        };
        let mut decoder = Decoder::new(bytes);
        loop {
            let opcode = decoder.next()?;
            if matches!(opcode, Opcode::Stop) {
                let root = machine.pop()?;
                return Ok((machine, root, decoder.position()));
            }
            machine.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: Opcode<'_>) -> Result<(), Fault> {
        match opcode {
            Opcode::Protocol | Opcode::Frame | Opcode::Stop => Ok(()),
            Opcode::Pop => {
                // As in Python, a POP directly above a mark removes the mark.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                    return Ok(());
                }
                self.pop().map(drop)
            }
            Opcode::PopMark => self.pop_mark().map(drop),
            Opcode::Duplicate => {
                let top = self.top()?;
                self.push(top)
            }
            Opcode::Mark => {
                if self.marks.len() >= MAX_MARKS {
                    return Err(Fault::limit("the pickle has too many open marks", MAX_MARKS));
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            Opcode::None => self.push_new(Node::None),
            Opcode::Bool(value) => self.push_new(Node::Bool(value)),
            Opcode::Int(value) => self.push_new(Node::Int(value)),
            Opcode::BigInt(value) => self.push_new(Node::BigInt(Arc::new(value))),
            Opcode::Float(value) => self.push_new(Node::Float(value)),
            Opcode::Str(text) => self.push_new(Node::Str(text.into())),
            Opcode::EscapedStr(text) => self.push_new(Node::Str(text.into())),
            Opcode::Bytes(bytes) => self.push_new(Node::Bytes(bytes.into())),
            Opcode::ByteArray(bytes) => self.push_new(Node::ByteArray(bytes.into())),
            Opcode::EmptyList => self.push_sequence(SequenceKind::List, Vec::new()),
            Opcode::EmptyTuple => self.push_sequence(SequenceKind::Tuple, Vec::new()),
            Opcode::EmptyDict => {
                let dict = self.arena.new_dict(DictKind::Dict)?;
                self.push(dict)
            }
            Opcode::EmptySet => {
                let set = self.arena.new_set(SequenceKind::Set)?;
                self.push(set)
            }
            Opcode::ShortTuple(length) => {
                let items = self.pop_several(length)?;
                self.push_sequence(SequenceKind::Tuple, items)
            }
            Opcode::Tuple => {
                let items = self.pop_mark()?;
                self.push_sequence(SequenceKind::Tuple, items)
            }
            Opcode::List => {
                let items = self.pop_mark()?;
                self.push_sequence(SequenceKind::List, items)
            }
            Opcode::Dict => {
                let items = self.pop_mark()?;
                let dict = self.arena.new_dict(DictKind::Dict)?;
                self.set_items(dict, &items)?;
                self.push(dict)
            }
            Opcode::FrozenSet => {
                let items = self.pop_mark()?;
                let set = self.arena.new_set(SequenceKind::FrozenSet)?;
                self.add_members(set, &items)?;
                self.push(set)
            }
            Opcode::Append => {
                let item = self.pop()?;
                let list = self.top()?;
                self.append(list, &[item])
            }
            Opcode::Appends => {
                let items = self.pop_mark()?;
                let list = self.top()?;
                self.append(list, &items)
            }
            Opcode::SetItem => {
                let items = self.pop_several(2)?;
                let dict = self.top()?;
                self.set_items(dict, &items)
            }
            Opcode::SetItems => {
                let items = self.pop_mark()?;
                let dict = self.top()?;
                self.set_items(dict, &items)
            }
            Opcode::AddItems => {
                let items = self.pop_mark()?;
                let set = self.top()?;
                // A frozenset must not be changed, because it may already be a key, and keys are compared only once.
                if matches!(self.arena.get(set), Node::Set(set) if set.kind == SequenceKind::FrozenSet) {
                    return Err(Fault::bad_pickle("a member is added to a frozenset"));
                }
                self.add_members(set, &items)
            }
            Opcode::Global { module, name } => self.push_global(module, name),
            Opcode::StackGlobal => {
                let parts = self.pop_several(2)?;
                let (Some(module), Some(name)) = (self.arena.text(parts[0]), self.arena.text(parts[1]))
                else {
                    return Err(Fault::bad_pickle("the name of a global is not a string"));
                };
                let (module, name) = (module.clone(), name.clone());
                self.push_global(&module, &name)
            }
            Opcode::Instance { module, name } => {
                let class = self.global(module, name)?;
                let arguments = self.pop_mark()?;
                self.push_call(class, arguments, MadeNode::Called)
            }
            Opcode::Object => {
                let mut arguments = self.pop_mark()?;
                if arguments.is_empty() {
                    return Err(Fault::bad_pickle("an object has no class"));
                }
                let class = arguments.remove(0);
                self.push_call(class, arguments, MadeNode::Called)
            }
            Opcode::Reduce => {
                let parts = self.pop_several(2)?;
                let arguments = self.arguments(parts[1])?;
                self.push_call(parts[0], arguments, MadeNode::Called)
            }
            Opcode::NewObject => {
                let parts = self.pop_several(2)?;
                let arguments = self.arguments(parts[1])?;
                self.push_call(parts[0], arguments, MadeNode::New)
            }
            Opcode::NewObjectWithKeywords => {
                let parts = self.pop_several(3)?;
                let mut arguments = self.arguments(parts[1])?;
                match (self.arena.get(parts[0]), self.arena.get(parts[2])) {
                    (_, Node::Dict(keywords)) if keywords.items.is_empty() => {}
                    // The keywords are kept as one more argument and not interpreted.
                    (Node::Object(_), Node::Dict(_)) => arguments.push(parts[2]),
                    _ => {
                        return Err(Fault::unsupported(
                            "its pickle makes an object with keyword arguments, which this program does not support",
                        ));
                    }
                }
                self.push_call(parts[0], arguments, MadeNode::New)
            }
            Opcode::Build => {
                let state = self.pop()?;
                let target = self.top()?;
                self.build(target, state)
            }
            Opcode::PersistentId => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push_new(storage)
            }
            Opcode::Put(index) => {
                let top = self.top()?;
                self.memoize(index, top)
            }
            Opcode::Memoize => {
                let top = self.top()?;
                // The number of memo entries is limited to far fewer than u32::MAX.
                let index = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
                self.memoize(index, top)
            }
            Opcode::Get(index) => {
                let node = *self
                    .memo
                    .get(&index)
                    .ok_or_else(|| Fault::bad_pickle(format!("memo entry {index} does not exist")))?;
                self.push(node)
            }
            Opcode::Extension => Err(Fault::new(
                ErrorKind::UnsafeGlobal,
                "the pickle names a global by its number in `copyreg`'s registry, which a capture must not do",
            )),
            Opcode::OutOfBand(name) => {
                Err(Fault::bad_pickle(format!("opcode {name} needs something that is not in the file")))
            }
        }
    }

    fn push(&mut self, node: NodeId) -> Result<(), Fault> {
        if self.stack.len() >= MAX_STACK {
            return Err(Fault::limit("the pickle needs too large a stack", MAX_STACK));
        }
        self.stack.push(node);
        Ok(())
    }

    fn push_new(&mut self, node: Node) -> Result<(), Fault> {
        let id = self.arena.add(node)?;
        self.push(id)
    }

    fn push_sequence(&mut self, kind: SequenceKind, items: Vec<NodeId>) -> Result<(), Fault> {
        self.arena.charge_slots(items.len())?;
        self.push_new(Node::Sequence(kind, items))
    }

    fn push_global(&mut self, module: &str, name: &str) -> Result<(), Fault> {
        let node = self.global(module, name)?;
        self.push(node)
    }

    fn global(&mut self, module: &str, name: &str) -> Result<NodeId, Fault> {
        let node = match globals::resolve(module, name)? {
            Name::Known(Global::Ellipsis) => Node::Ellipsis,
            Name::Known(global) => Node::Global(global),
            Name::Unknown(name) => {
                self.arena.charge_derived(name.len())?;
                Node::Object(Box::new(ObjectNode { name, made: MadeNode::Named, state: Vec::new() }))
            }
        };
        self.arena.add(node)
    }

    /// Performs a call of a known name. A call of an unknown name is only recorded.
    fn push_call(
        &mut self,
        callee: NodeId,
        arguments: Vec<NodeId>,
        made: fn(Vec<NodeId>) -> MadeNode,
    ) -> Result<(), Fault> {
        let result = match self.arena.get(callee) {
            Node::Global(global) => {
                let global = *global;
                self.call(global, &arguments)?
            }
            Node::Object(object) if matches!(object.made, MadeNode::Named) => {
                let name = object.name.clone();
                self.arena.charge_slots(arguments.len())?;
                let object = ObjectNode { name, made: made(arguments), state: Vec::new() };
                self.arena.add(Node::Object(Box::new(object)))?
            }
            _ => return Err(Fault::bad_pickle("something is called that is not a global")),
        };
        self.push(result)
    }

    /// Appends items to a list, or to an object of an unknown class, because such an object may be a kind of list.
    fn append(&mut self, list: NodeId, items: &[NodeId]) -> Result<(), Fault> {
        if matches!(self.arena.get(list), Node::Object(_)) {
            return self.extend_object(list, items);
        }
        self.arena.extend_list(list, items)
    }

    pub(super) fn extend_object(&mut self, object: NodeId, items: &[NodeId]) -> Result<(), Fault> {
        self.arena.charge_slots(items.len())?;
        match self.arena.get_mut(object) {
            Node::Object(object) if !matches!(object.made, MadeNode::Named) => {
                object.state.extend_from_slice(items);
                Ok(())
            }
            _ => Err(Fault::bad_pickle("state is set on a name, of which no object was made")),
        }
    }

    /// Returns the height of the stack at the innermost open mark. Values below this height may not be popped.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<NodeId, Fault> {
        if self.stack.len() <= self.floor() {
            return Err(underflow());
        }
        self.stack.last().copied().ok_or_else(underflow)
    }

    fn pop(&mut self) -> Result<NodeId, Fault> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_several(&mut self, count: usize) -> Result<Vec<NodeId>, Fault> {
        let start = self.stack.len().checked_sub(count).filter(|&start| start >= self.floor());
        Ok(self.stack.split_off(start.ok_or_else(underflow)?))
    }

    fn pop_mark(&mut self) -> Result<Vec<NodeId>, Fault> {
        let mark =
            self.marks.pop().ok_or_else(|| Fault::bad_pickle("an opcode needs a mark, and none is open"))?;
        Ok(self.stack.split_off(mark))
    }

    fn memoize(&mut self, index: u32, node: NodeId) -> Result<(), Fault> {
        if self.memo.len() >= MAX_MEMO {
            return Err(Fault::limit("the memo of the pickle is too large", MAX_MEMO));
        }
        self.memo.insert(index, node);
        Ok(())
    }

    pub(super) fn set_items(&mut self, dict: NodeId, items: &[NodeId]) -> Result<(), Fault> {
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(Fault::bad_pickle("a dict is given a key without a value"));
        };
        if matches!(self.arena.get(dict), Node::Object(_)) {
            return self.extend_object(dict, items);
        }
        pairs.iter().try_for_each(|&[key, value]| self.arena.set_item(dict, key, value))
    }

    pub(super) fn add_members(&mut self, set: NodeId, items: &[NodeId]) -> Result<(), Fault> {
        items.iter().try_for_each(|&item| self.arena.add_member(set, item))
    }

    fn arguments(&mut self, node: NodeId) -> Result<Vec<NodeId>, Fault> {
        let arguments = self
            .arena
            .tuple(node)
            .ok_or_else(|| Fault::bad_pickle("the arguments of a call are not a tuple"))?
            .to_vec();
        // Many calls can share a long tuple, and each call copies it. Every copy is counted against the limit, so that
        // their total size is bounded.
        self.arena.charge_slots(arguments.len())?;
        Ok(arguments)
    }

    /// Reads torch's persistent id: `("storage", class, key, location, elements[, view])`.
    fn storage(&mut self, id: NodeId) -> Result<Node, Fault> {
        let malformed = || Fault::bad_pickle("a persistent id does not name a storage");
        let parts = self.arena.tuple(id).ok_or_else(malformed)?;
        let (&[tag, class, key, location, elements], rest) =
            parts.split_first_chunk::<5>().ok_or_else(malformed)?;
        if self.arena.text(tag).is_none_or(|tag| &**tag != "storage") || rest.len() > 1 {
            return Err(malformed());
        }
        if rest.iter().any(|&view| !matches!(self.arena.get(view), Node::None)) {
            return Err(Fault::unsupported(
                "a storage is a view of another, as before torch 0.4 (save the file again with a newer torch)",
            ));
        }
        let dtype = match self.arena.get(class) {
            Node::Global(Global::Storage(dtype)) => dtype.unwrap_or(DType::UInt8),
            _ => return Err(malformed()),
        };
        let key = self.arena.text(key).ok_or_else(malformed)?.clone();
        if self.arena.text(location).ok_or_else(malformed)?.as_ref() == "meta" {
            return Err(Fault::unsupported(format!(
                "storage {} is on the meta device and has no data",
                quoted(&key)
            )));
        }
        let bytes = self
            .arena
            .size(elements)
            .and_then(|elements| elements.checked_mul(dtype.size()))
            .filter(|&bytes| i64::try_from(bytes).is_ok())
            .ok_or_else(|| {
                Fault::bad_pickle(format!(
                    "the size of storage {} is not a number, or too large",
                    quoted(&key)
                ))
            })?;
        let index = match self.by_key.get(&key) {
            Some(&index) => index,
            None => {
                if self.storages.len() >= MAX_STORAGES {
                    return Err(Fault::limit("the capture names too many storages", MAX_STORAGES));
                }
                let index = u32::try_from(self.storages.len())
                    .map_err(|_| Fault::limit("the capture names too many storages", MAX_STORAGES))?;
                self.by_key.insert(key.clone(), index);
                self.storages.push(StorageName { key: key.clone(), bytes, element_bytes: dtype.size() });
                index
            }
        };
        let storage = &self.storages[index as usize];
        if storage.bytes != bytes {
            return Err(Fault::bad_pickle(format!(
                "storage {} has {} bytes in one place and {bytes} in another",
                quoted(&key),
                storage.bytes
            )));
        }
        Ok(Node::Storage { index, dtype })
    }
}

fn underflow() -> Fault {
    Fault::bad_pickle("it takes a value from an empty stack")
}
