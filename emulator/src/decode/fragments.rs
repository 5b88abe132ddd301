//! Decodes instructions that multiply matrices in a warp's registers, and the loads and stores of `wmma`.

use super::builder::Builder;
use super::memory::address;
use super::qualifiers::Qualifiers;
use super::tensor::{push, rows};
use crate::code::{Address, Element, Fragment, MatrixOp, MemorySpace, Product, Role, StoredMatrix};
use crate::fault::LoadError;
use crate::lane::Type;
use crate::ptx::syntax::{Operand, Space};

/// The numbers M, N and K of a product of a matrix of M × K elements and one of K × N elements.
type Shape = (usize, usize, usize);

const TYPES: [(&str, Element); 7] = [
    ("f16", Element::F16),
    ("bf16", Element::Bf16),
    ("tf32", Element::Tf32),
    ("f32", Element::F32),
    ("s8", Element::S8),
    ("u8", Element::U8),
    ("s32", Element::S32),
];

impl Element {
    /// Returns the number of elements that fit into a register of 32 bits.
    pub fn in_register(self) -> usize {
        4 / self.bytes()
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::S8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::Tf32 | Self::F32 | Self::S32 => 4,
        }
    }

    fn register_type(self) -> Type {
        match self {
            Self::F32 => Type::F32,
            Self::S32 => Type::S32,
            _ => Type::B32,
        }
    }
}

impl Fragment {
    /// A fragment without registers.
    fn new(role: Role, element: Element, (m, n, k): Shape) -> Self {
        let (rows, columns) = match role {
            Role::First => (m, k),
            Role::Second => (k, n),
            Role::Sum => (m, n),
        };
        Self { role, element, rows, columns, registers: [0; 8], count: 0 }
    }

    /// Returns the number of registers that contain different elements.
    pub fn distinct(&self) -> usize {
        self.rows * self.columns / (32 * self.element.in_register())
    }

    /// Returns the number of registers in `wmma`, where a factor of `f16` has eight registers even if its elements fit
    /// into fewer.
    fn count_in_wmma(&self) -> usize {
        if self.element == Element::F16 && self.role != Role::Sum { 8 } else { self.distinct() }
    }

    fn read<'a>(
        self,
        count: usize,
        operand: &Operand<'a>,
        builder: &mut Builder<'_, 'a>,
        qualifiers: &Qualifiers<'a>,
    ) -> Result<Self, LoadError> {
        let ty = self.element.register_type();
        let registers =
            rows(operand, count, qualifiers, |part| builder.value(part, ty).map(|slot| slot.row))?;
        Ok(Self { registers, count, ..self })
    }

    fn write<'a>(
        self,
        count: usize,
        operand: &Operand<'a>,
        builder: &mut Builder<'_, 'a>,
        qualifiers: &Qualifiers<'a>,
    ) -> Result<Self, LoadError> {
        let ty = self.element.register_type();
        let registers =
            rows(operand, count, qualifiers, |part| builder.result(part, ty).map(|slot| slot.row))?;
        Ok(Self { registers, count, ..self })
    }
}

/// The types of the elements of a product's result, its two factors, and the matrix that is added.
type Types = [Element; 4];

/// Whether the result and the added matrix of a product can have these types. Restrictions by the shape are not checked
/// here.
fn sums_fit([to, first, second, sum]: Types) -> bool {
    use Element::{Bf16, F16, F32, S8, S32, Tf32, U8};
    match (first, second) {
        (F16, F16) => [to, sum].iter().all(|it| matches!(it, F16 | F32)),
        (Bf16, Bf16) | (Tf32, Tf32) => (to, sum) == (F32, F32),
        (S8 | U8, S8 | U8) => (to, sum) == (S32, S32),
        _ => false,
    }
}

pub fn mma<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    use Element::{Bf16, F16, S8, Tf32, U8};
    let depth = qualifiers.one_of(&[("m16n8k4", 4), ("m16n8k8", 8), ("m16n8k16", 16), ("m16n8k32", 32)]);
    let rest = ["sync", "aligned", "row", "col"].map(|name| qualifiers.take(name));
    let (Some(depth), [true, true, true, true]) = (depth, rest) else { return Err(qualifiers.unsupported()) };
    let types = types(qualifiers);
    let &[to, first, _, sum] = types.as_slice() else { return Err(qualifiers.unsupported()) };
    let fits = matches!((first, depth), (F16 | Bf16, 8 | 16) | (Tf32, 4 | 8) | (S8 | U8, 16 | 32));
    // Unlike in `wmma`, the result and the added matrix have the same type.
    if !fits || to != sum {
        return Err(qualifiers.unsupported());
    }
    product(builder, qualifiers, operands, (16, 8, depth), &types, |fragment| fragment.distinct())
}

pub fn wmma<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    use Element::{F16, F32, Tf32};
    let shape = qualifiers.one_of(&[
        ("m16n16k16", (16, 16, 16)),
        ("m32n8k16", (32, 8, 16)),
        ("m8n32k16", (8, 32, 16)),
        ("m16n16k8", (16, 16, 8)),
    ]);
    let rest = ["sync", "aligned"].map(|name| qualifiers.take(name));
    let (Some(shape), [true, true]) = (shape, rest) else { return Err(qualifiers.unsupported()) };
    // The factors are `tf32` if and only if K is 8.
    let fits = |factor: Element| (factor == Tf32) == (shape.2 == 8);
    if qualifiers.take("mma") {
        let layouts: [Option<()>; 2] =
            std::array::from_fn(|_| qualifiers.one_of(&[("row", ()), ("col", ())]));
        let types = match *types(qualifiers).as_slice() {
            [to, sum] => [to, F16, F16, sum],
            [to, first, second, sum] if first != F16 => [to, first, second, sum],
            _ => return Err(qualifiers.unsupported()),
        };
        if layouts.contains(&None) || !fits(types[1]) {
            return Err(qualifiers.unsupported());
        }
        return product(builder, qualifiers, operands, shape, &types, Fragment::count_in_wmma);
    }
    let is_load = qualifiers.take("load");
    let role = if is_load {
        qualifiers.one_of(&[("a", Role::First), ("b", Role::Second), ("c", Role::Sum)])
    } else {
        qualifiers.take("store").then(|| qualifiers.take("d").then_some(Role::Sum)).flatten()
    };
    let by_columns = qualifiers.one_of(&[("row", false), ("col", true)]);
    let space = qualifiers.one_of(&[
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
    ]);
    let types = types(qualifiers);
    let (Some(role), Some(by_columns), &[element]) = (role, by_columns, types.as_slice()) else {
        return Err(qualifiers.unsupported());
    };
    let is_supported = match (role, element) {
        (Role::Sum, F32) => true,
        (Role::Sum, F16 | Element::S32) => shape.2 == 16,
        (Role::Sum, _) | (_, F32 | Element::S32) => false,
        (_, factor) => fits(factor),
    };
    if !is_supported {
        return Err(qualifiers.unsupported());
    }
    let fragment = Fragment::new(role, element, shape);
    let count = fragment.count_in_wmma();
    let (registers, at, stride) = match operands {
        [registers, at, stride @ ..] if is_load => (registers, at, stride),
        [at, registers, stride @ ..] => (registers, at, stride),
        _ => return Err(qualifiers.wrong_operands()),
    };
    let stride = match stride {
        [] => None,
        [one] => Some(builder.value(one, Type::U32)?),
        _ => return Err(qualifiers.wrong_operands()),
    };
    let (space, base, offset) = address(builder, space.unwrap_or(Space::Generic), at, qualifiers)?;
    if !matches!(space, MemorySpace::Global | MemorySpace::Shared | MemorySpace::Generic) {
        return Err(qualifiers.wrong_operands());
    }
    let stored = StoredMatrix { space, at: Address { base, offset }, stride, by_columns };
    let op = if is_load {
        MatrixOp::LoadFragment { from: stored, to: fragment.write(count, registers, builder, qualifiers)? }
    } else {
        MatrixOp::StoreFragment { from: fragment.read(count, registers, builder, qualifiers)?, to: stored }
    };
    push(builder, op);
    Ok(())
}

/// Takes all qualifiers that are types of elements.
fn types(qualifiers: &mut Qualifiers<'_>) -> Vec<Element> {
    std::iter::from_fn(|| qualifiers.one_of(&TYPES)).collect()
}

/// Emits a product of matrices. `count` returns the number of a fragment's registers.
fn product<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
    shape: Shape,
    types: &[Element],
    count: impl Fn(&Fragment) -> usize,
) -> Result<(), LoadError> {
    let &[to, first, second, sum] = types else { return Err(qualifiers.unsupported()) };
    if !sums_fit([to, first, second, sum]) {
        return Err(qualifiers.unsupported());
    }
    let saturate = to == Element::S32 && qualifiers.take("satfinite");
    let [to_operand, operands @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    let [first_operand, second_operand, sum_operand] = operands else {
        return Err(qualifiers.wrong_operands());
    };
    let to = Fragment::new(Role::Sum, to, shape);
    let to = to.write(count(&to), to_operand, builder, qualifiers)?;
    let mut read = |role, element, operand| {
        let fragment = Fragment::new(role, element, shape);
        fragment.read(count(&fragment), operand, builder, qualifiers)
    };
    let first = read(Role::First, first, first_operand)?;
    let second = read(Role::Second, second, second_operand)?;
    let sum = read(Role::Sum, sum, sum_operand)?;
    push(builder, MatrixOp::Product(Product { first, second, sum, to, saturate }));
    Ok(())
}
