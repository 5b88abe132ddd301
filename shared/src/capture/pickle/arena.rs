//! Stores the objects of a pickle while the pickle is read, in an array of nodes.
//!
//! Nodes refer to each other by number. Because of this, containers can be filled after they have been shared, can
//! contain themselves, and are dropped without recursion. The arena enforces the limits on a pickle's objects, and
//! `convert` turns nodes into values.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::keys::Keys;
use super::node::{Dict, Node, NodeId, Set};
use crate::capture::error::Fault;
use crate::capture::limits::{MAX_DERIVED_SLACK_BYTES, MAX_NODES, MAX_SLOTS, TABLE_SLOTS};
use crate::capture::{DictKind, SequenceKind};

pub(super) struct Arena {
    nodes: Vec<Node>,
    keys: Keys,
    slots_left: usize,
    derived_left: u64,
}

impl Arena {
    pub(super) fn new(pickle_bytes: usize) -> Self {
        Self {
            nodes: Vec::new(),
            keys: Keys::default(),
            slots_left: MAX_SLOTS,
            derived_left: MAX_DERIVED_SLACK_BYTES.saturating_add(pickle_bytes as u64),
        }
    }

    pub(super) fn add(&mut self, node: Node) -> Result<NodeId, Fault> {
        if self.nodes.len() >= MAX_NODES {
            return Err(Fault::limit("the pickle has too many objects", MAX_NODES));
        }
        let id = u32::try_from(self.nodes.len())
            .map_err(|_| Fault::limit("the pickle has too many objects", u32::MAX))?;
        self.nodes.push(node);
        Ok(NodeId(id))
    }

    pub(super) fn get(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// Counts slots of a container against the limit, before they are used.
    pub(super) fn charge_slots(&mut self, count: usize) -> Result<(), Fault> {
        self.slots_left = self
            .slots_left
            .checked_sub(count)
            .ok_or_else(|| Fault::limit("the containers of the pickle have too many items", MAX_SLOTS))?;
        Ok(())
    }

    /// Counts bytes that a call derives from other bytes against the limit, before the bytes are created.
    pub(super) fn charge_derived(&mut self, bytes: usize) -> Result<(), Fault> {
        self.derived_left = self.derived_left.checked_sub(bytes as u64).ok_or_else(|| {
            Fault::limit(
                "the calls of the pickle create too many bytes",
                "the size of the pickle, plus 1 MiB",
            )
        })?;
        Ok(())
    }

    /// Appends items to a list.
    pub(super) fn extend_list(&mut self, list: NodeId, items: &[NodeId]) -> Result<(), Fault> {
        self.charge_slots(items.len())?;
        match self.get_mut(list) {
            Node::Sequence(SequenceKind::List, present) => {
                present.extend_from_slice(items);
                Ok(())
            }
            _ => Err(Fault::bad_pickle("items are appended to something that is not a list")),
        }
    }

    pub(super) fn new_dict(&mut self, kind: DictKind) -> Result<NodeId, Fault> {
        self.charge_slots(TABLE_SLOTS)?;
        self.add(Node::Dict(Box::new(Dict { kind, items: Vec::new(), positions: HashMap::new() })))
    }

    /// Sets an item of a dict. As in Python, if the dict already contains an equal key, that key keeps its position and
    /// its identity, and gets the new value.
    pub(super) fn set_item(&mut self, dict: NodeId, key: NodeId, value: NodeId) -> Result<(), Fault> {
        self.charge_slots(2)?;
        let number = self.keys.number(&self.nodes, key)?;
        match self.get_mut(dict) {
            Node::Dict(dict) => {
                if let Some(&position) = dict.positions.get(&number) {
                    dict.items[position].1 = value;
                } else {
                    dict.positions.insert(number, dict.items.len());
                    dict.items.push((key, value));
                }
                Ok(())
            }
            _ => Err(Fault::bad_pickle("an item is set in something that is not a dict")),
        }
    }

    pub(super) fn new_set(&mut self, kind: SequenceKind) -> Result<NodeId, Fault> {
        self.charge_slots(TABLE_SLOTS)?;
        self.add(Node::Set(Box::new(Set { kind, items: Vec::new(), members: HashSet::new() })))
    }

    pub(super) fn add_member(&mut self, set: NodeId, item: NodeId) -> Result<(), Fault> {
        self.charge_slots(1)?;
        let number = self.keys.number(&self.nodes, item)?;
        match self.get_mut(set) {
            Node::Set(set) => {
                if set.members.insert(number) {
                    set.items.push(item);
                }
                Ok(())
            }
            _ => Err(Fault::bad_pickle("a member is added to something that is not a set")),
        }
    }

    pub(super) fn int(&self, id: NodeId) -> Option<i64> {
        match self.get(id) {
            Node::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn size(&self, id: NodeId) -> Option<u64> {
        self.int(id).and_then(|value| u64::try_from(value).ok())
    }

    pub(super) fn text(&self, id: NodeId) -> Option<&Arc<str>> {
        match self.get(id) {
            Node::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list, tuple, `torch.Size` or return type.
    pub(super) fn sequence(&self, id: NodeId) -> Option<&[NodeId]> {
        match self.get(id) {
            Node::Sequence(_, items) => Some(items),
            _ => None,
        }
    }

    pub(super) fn tuple(&self, id: NodeId) -> Option<&[NodeId]> {
        match self.get(id) {
            Node::Sequence(SequenceKind::Tuple, items) => Some(items),
            _ => None,
        }
    }
}
